//! The invariants, checked on simulated disks.
//!
//! A violation is reported as a text; the simulation stops at the first.

use super::content::Content;
use super::disk::{Body, Disk, Node};
use renkei_core::path::RelPath;
use renkei_store::temp::is_temp_name;
use std::collections::BTreeMap;

/// All contents that each file of the source ever had, oldest first.
#[derive(Clone, Default)]
pub struct Versions(BTreeMap<RelPath, Vec<Content>>);

impl Versions {
    /// Records the present contents of the files of a disk.
    pub fn note(&mut self, disk: &Disk) {
        for (path, content) in files(disk) {
            self.note_one(path, content);
        }
    }

    /// Records a content.
    pub fn note_one(&mut self, path: RelPath, content: &Content) {
        let known = self.0.entry(path).or_default();
        if !known.contains(content) {
            known.push(content.clone());
        }
    }

    fn position(&self, path: &RelPath, content: &Content) -> Option<usize> {
        self.0.get(path)?.iter().position(|known| known == content)
    }

    /// Every file under a final name is a version that the source had, or was there before.
    ///
    /// # Errors
    /// A file for which this is false.
    pub fn check_final_names(&self, disk: &Disk) -> Result<(), String> {
        let partial = files(disk).find(|(path, content)| {
            !is_temp_name(path.name().unwrap_or_default()) && self.position(path, content).is_none()
        });
        partial.map_or(Ok(()), |(path, content)| {
            Err(format!("{path} is partial: {} bytes, {:?}", content.size(), content.next_data(0)))
        })
    }
}

fn files(disk: &Disk) -> impl Iterator<Item = (RelPath, &Content)> {
    let content = |(path, ino)| Some((path, disk.content(ino).ok()?));
    disk.walk().into_iter().filter_map(content)
}

/// Acknowledged paths, with the version of files.
#[derive(Clone, Default)]
pub struct Acknowledged(BTreeMap<RelPath, Option<usize>>);

impl Acknowledged {
    /// Records the acknowledgement of the entry at `path` on `disk`.
    ///
    /// # Errors
    /// The entry is missing or incomplete.
    pub fn note(&mut self, path: RelPath, disk: &Disk, versions: &Versions) -> Result<(), String> {
        let Some(node) = node(disk, &path) else { return Err(format!("{path} acknowledged and not there")) };
        let version = match &node.body {
            Body::File(content) => {
                let version = versions.position(&path, content);
                Some(version.ok_or_else(|| format!("{path} acknowledged and not whole"))?)
            }
            _ => None,
        };
        self.0.insert(path, version);
        Ok(())
    }

    /// Every acknowledged entry exists, in that version or a newer one.
    ///
    /// # Errors
    /// An entry for which this is false.
    pub fn check(&self, disk: &Disk, versions: &Versions) -> Result<(), String> {
        self.0.iter().try_for_each(|(path, version)| {
            let node = node(disk, path).ok_or_else(|| format!("{path} was acknowledged and is lost"))?;
            let found = match &node.body {
                Body::File(content) => versions.position(path, content),
                _ => None,
            };
            if found >= *version { Ok(()) } else { Err(format!("{path} was acknowledged and is older")) }
        })
    }

    /// Drops entries that were removed on request.
    pub fn forget(&mut self, removed: &RelPath) {
        self.0.retain(|path, _| !path.starts_with(removed));
    }
}

fn node<'d>(disk: &'d Disk, path: &RelPath) -> Option<&'d Node> {
    if path.is_root() {
        return disk.live(super::disk::ROOT);
    }
    let (dir, name) = disk.place(path).ok()?;
    disk.live(disk.entry(dir, name).ok()?.ino)
}

/// Entries that a destination may have beside the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surplus {
    /// None.
    Nothing,
    /// Entries that were there before, but no temporary names.
    Others,
    /// Anything.
    Anything,
}

/// The destination is a copy of the source.
///
/// # Errors
/// The first difference.
pub fn check_copy(source: &Disk, destination: &Disk, surplus: Surplus) -> Result<(), String> {
    let mut copies = BTreeMap::new();
    for (path, ino) in std::iter::once((RelPath::root(), super::disk::ROOT)).chain(source.walk()) {
        let original = source.live(ino).expect("walked");
        let copy = node(destination, &path).ok_or_else(|| format!("{path} is missing"))?;
        check_node(&path, original, copy)?;
        if let Some(first) = copies.insert(ino, path.clone())
            && inode(destination, &first) != inode(destination, &path)
        {
            return Err(format!("{first} and {path} are one file at the source"));
        }
    }
    destination.walk().iter().try_for_each(|(path, _)| check_surplus(source, path, surplus))
}

fn inode(disk: &Disk, path: &RelPath) -> Option<u64> {
    let (dir, name) = disk.place(path).ok()?;
    Some(disk.entry(dir, name).ok()?.ino)
}

fn check_node(path: &RelPath, original: &Node, copy: &Node) -> Result<(), String> {
    let same = match (&original.body, &copy.body) {
        (Body::Dir(_), Body::Dir(_)) => true,
        (original, copy) => original == copy,
    };
    if !same {
        return Err(format!("{path} differs in kind or content"));
    }
    if original.meta != copy.meta {
        return Err(format!("{path} has {:?} for {:?}", copy.meta, original.meta));
    }
    Ok(())
}

fn check_surplus(source: &Disk, path: &RelPath, surplus: Surplus) -> Result<(), String> {
    if surplus != Surplus::Anything && is_temp_name(path.name().unwrap_or_default()) {
        return Err(format!("{path} was left behind"));
    }
    if surplus == Surplus::Nothing && node(source, path).is_none() {
        return Err(format!("{path} should have been removed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::disk::{Crash, Fuse, ROOT};
    use super::*;
    use renkei_store::temp::temp_name;

    fn disk(content: &[u8]) -> Disk {
        let mut disk = Disk::new(Fuse::default(), true, 0);
        disk.replace(ROOT, b"f", &Content::of(content)).unwrap();
        disk
    }

    fn path() -> RelPath {
        RelPath::parse(b"f").unwrap()
    }

    #[test]
    fn a_partial_file_is_detected() {
        let mut versions = Versions::default();
        versions.note(&disk(b"whole"));
        assert!(versions.check_final_names(&disk(b"whole")).is_ok());
        assert!(versions.check_final_names(&disk(b"who")).is_err());
    }

    #[test]
    fn a_lost_or_older_file_is_detected() {
        let (mut versions, mut acknowledged) = (Versions::default(), Acknowledged::default());
        versions.note(&disk(b"old"));
        versions.note(&disk(b"new"));
        let mut copy = disk(b"new");
        acknowledged.note(path(), &copy, &versions).unwrap();
        assert!(acknowledged.check(&copy, &versions).is_ok());
        assert!(acknowledged.check(&disk(b"old"), &versions).is_err());
        copy.crash(Crash::PowerLosesAll, &mut renkei_core::sim::chance::Chance::new(1));
        assert!(acknowledged.check(&copy, &versions).is_err());
        acknowledged.forget(&RelPath::root());
        assert!(acknowledged.check(&copy, &versions).is_ok());
    }

    #[test]
    fn differences_and_leftovers_are_detected() {
        let source = disk(b"f");
        let mut copy = disk(b"f");
        // The disks count their changes alike, so the times agree.
        assert_eq!(check_copy(&source, &copy, Surplus::Nothing), Ok(()));
        assert!(check_copy(&source, &disk(b"g"), Surplus::Anything).is_err());
        let root = copy.root_meta();
        copy.replace(ROOT, &temp_name(1, &path()), &Content::default()).unwrap();
        copy.set_meta(ROOT, &root).unwrap();
        assert!(check_copy(&source, &copy, Surplus::Others).is_err());
        assert!(check_copy(&source, &copy, Surplus::Anything).is_ok());
    }
}
