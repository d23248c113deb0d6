//! Detection of a copy of a directory onto or into itself, whatever names its two ends have.
//!
//! Two storages may share a folder, and links lead from one name to another, so names prove nothing. The receiver
//! sends the ancestors of its base, from the base up to the root of its machine, as digests of boot, device and
//! inode; the sender looks for its sources among them before anything is sent. Ends on two machines never agree; a
//! file system that both have mounted is not detected.

use super::journal::boot_id;
use super::walk::Root;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::message::Onto;
use renkei_store::{Detail, Dir};

/// Identifier of a directory in messages.
type Id = [u8; 16];

/// The lineage of a receiver's base; nothing where the boot id is unknown.
pub fn tell(base: &dyn Dir, removes: bool) -> Option<Onto> {
    let boot = boot_id();
    let lineage = base.lineage().into_iter().map(|(device, inode)| id(&boot, device, inode));
    (boot != [0; 16]).then(|| Onto { lineage: lineage.collect(), removes })
}

/// The lineage of a base that is created in `parent` for the transfer.
pub fn tell_within(parent: &dyn Dir) -> Option<Onto> {
    let mut onto = tell(parent, false)?;
    // No existing directory has this id.
    onto.lineage.insert(0, [0; 16]);
    Some(onto)
}

fn id(boot: &Id, device: u64, inode: u64) -> Id {
    let mut hasher = blake3::Hasher::new();
    hasher.update(boot).update(&device.to_le_bytes()).update(&inode.to_le_bytes());
    *hasher.finalize().as_bytes().first_chunk().expect("32 bytes")
}

/// Checks whether the sources may be sent there.
///
/// # Errors
/// `SameFile`, `IntoItself`. A source that cannot be examined is no error here: the walk reports it.
pub(super) fn check(roots: &[Root], onto: &Onto) -> Result<(), Error> {
    let Some(base) = onto.lineage.first() else { return Ok(()) };
    let boot = boot_id();
    roots.iter().try_for_each(|root| check_one(root, onto, base, &boot))
}

fn check_one(root: &Root, onto: &Onto, base: &Id, boot: &Id) -> Result<(), Error> {
    let refuse = |code, cause| Err(root.error(code, "copy", &root.from, cause));
    let (own, above) = identify(root, boot);
    let onto_itself = match own {
        Some(own) if root.to.is_root() => own == *base,
        // Placed in a directory beside others: the same directory, and the same name in it.
        _ => above.first() == Some(base) && root.from.name() == Some(root.to.as_bytes()),
    };
    if onto_itself {
        return refuse(Code::SameFile, "by another name");
    }
    if own.is_some_and(|own| onto.lineage.contains(&own)) && !root.alone {
        return refuse(Code::IntoItself, "the destination is inside the source");
    }
    if onto.removes && above.contains(base) {
        return refuse(Code::IntoItself, "the source is inside the destination, --delete would remove it");
    }
    Ok(())
}

/// The id of a source that is a directory, and the ids of the ancestors of any source.
fn identify(root: &Root, boot: &Id) -> (Option<Id>, Vec<Id>) {
    let lineage = |dir: &dyn Dir| -> Vec<Id> {
        dir.lineage().into_iter().map(|(device, inode)| id(boot, device, inode)).collect()
    };
    let Some((parent, name)) = root.from.split() else {
        let mut all = lineage(&*root.dir);
        let own = (!all.is_empty()).then(|| all.remove(0));
        return (own, all);
    };
    let dir = RelPath::parse(parent).and_then(|parent| root.dir.descend(&parent));
    let Ok(dir) = dir else { return (None, Vec::new()) };
    let own = match dir.entry(name, Detail::Basic) {
        Ok((entry, raw)) if entry.kind == EntryKind::Dir => Some(id(boot, raw.dev, raw.ino)),
        _ => None,
    };
    (own, lineage(&*dir))
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::path::Path;

    fn open(path: &Path) -> std::sync::Arc<dyn Dir> {
        LocalStore::open(path, AccessMode::ReadOnly).unwrap().root().unwrap()
    }

    fn refused(folder: &Path, source: &str, to: &str, base: &str, removes: bool) -> Option<Code> {
        let rel = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        // As a site opens a source: through its parent directory, by whatever links lead there.
        let (dir, from) = match source.rsplit_once('/') {
            Some((dir, from)) => (folder.join(dir), from),
            None => (folder.to_path_buf(), source),
        };
        let root = Root { dir: open(&dir), from: rel(from), to: rel(to), alone: false, shown: String::new() };
        let onto = tell(&*open(&folder.join(base)), removes).unwrap();
        check(&[root], &onto).err().map(|error| error.code)
    }

    #[test]
    fn names_do_not_matter() {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path();
        std::fs::create_dir_all(folder.join("a/b/c")).unwrap();
        std::fs::create_dir_all(folder.join("d")).unwrap();
        std::fs::write(folder.join("a/f"), "x").unwrap();
        std::os::unix::fs::symlink("a", folder.join("link")).unwrap();
        let refused = |source, to, base| refused(folder, source, to, base, false);
        let (same, into) = (Some(Code::SameFile), Some(Code::IntoItself));
        for base in ["a", "link"] {
            assert_eq!(refused("a/f", "f", base), same);
            assert_eq!(refused("link/f", "f", base), same);
            assert_eq!(refused("a/f", "g", base), None);
            assert_eq!(refused("a", "", base), same);
            assert_eq!(refused("a", "a", base), into);
            assert_eq!(refused("a/b", "x", base), None);
            assert_eq!(refused("d", "d", base), None);
        }
        assert_eq!(refused("a", "a", ""), same);
        assert_eq!(refused("a", "x", ""), None);
        assert_eq!(refused("a", "x", "link/b/c"), into);
        assert_eq!(refused("a/b", "b", "d"), None);
    }

    #[test]
    fn a_new_base_lies_in_its_existing_parent() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("a")).unwrap();
        let (dir, onto) = (open(top.path()), tell_within(&*open(&top.path().join("a"))).unwrap());
        let root = |from: &str| Root {
            dir: dir.clone(),
            from: RelPath::parse(from.as_bytes()).unwrap(),
            to: RelPath::root(),
            alone: false,
            shown: String::new(),
        };
        assert_eq!(check(&[root("a")], &onto).unwrap_err().code, Code::IntoItself);
        check(&[root("b")], &onto).unwrap();
    }

    #[test]
    fn a_destination_with_delete_must_not_contain_its_source() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("a/b")).unwrap();
        assert_eq!(refused(top.path(), "a/b", "", "a", false), None);
        assert_eq!(refused(top.path(), "a/b", "", "a", true), Some(Code::IntoItself));
        assert_eq!(refused(top.path(), "a", "", "a/b", true), Some(Code::IntoItself));
    }
}
