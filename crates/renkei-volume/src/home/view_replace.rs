//! Replacement of a file at the home: a new version replaces the version that its writer has seen. If another site's
//! version came in between, the new one becomes a conflict copy.
//!
//! The version is checked while the reconciler changes no names, right before the rename; later decisions of the
//! reconciler are based on what it finds in the plain tree.

use super::quota;
use super::view::{VolumeDir, leave};
use super::view_remote::{AwayFile, shown_path};
use crate::follower::view::is_shown;
use renkei_catalogue::OWN;
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::tree::beside_name;
use renkei_core::namespace::{Kind, Name, Node};
use renkei_store::{Detail, Dir, Replaced};

/// Alternative names tried for a conflict copy.
const MAX_BESIDE: u32 = 1000;

/// The entry under the name that gets a new version.
enum There {
    /// The version that the writer has seen, or one of the home; with the remote file, if its content is remote.
    Seen(Option<Box<AwayFile>>),
    /// Another site's version that the writer has not seen.
    Unseen,
}

impl VolumeDir {
    /// Publishes a new version under a name.
    pub(crate) fn replace_seen(
        &self,
        from: &[u8],
        to_dir: &VolumeDir,
        to: &[u8],
        seen: &Stamp,
    ) -> Result<Replaced, Error> {
        let shared = &self.volume.shared;
        let path = to_dir.noted(to);
        let parts = || quota::of_rename((&*self.inner, from), (&*to_dir.inner, to));
        let replaced = self.add("publish", path.clone(), parts, || {
            let _names = shared.names.share();
            let paths = path.iter().cloned().collect();
            let There::Seen(away) = to_dir.what_is_there(to, seen)? else {
                // The reservation is cancelled.
                drop(shared.notes.touch(paths));
                return Ok(false);
            };
            if let Some(away) = &away {
                self.note_successor(from, away)?;
            }
            let version = away.map(|away| away.content.version);
            let mut touch = shared.notes.touch_away(paths, path.clone().zip(version));
            let renamed = self.inner.rename(from, &*to_dir.inner, to);
            leave(&mut touch, &[(to_dir, to)]);
            if renamed.is_ok() {
                touch.done();
            }
            renamed.map(|()| true)
        });
        // Also after a failure: part of the work may be done.
        to_dir.call_back(&[(to_dir, to)]);
        match replaced? {
            true => Ok(Replaced::default()),
            false => self.put_beside(from, to_dir, to),
        }
    }

    /// Compares the entry of a name with the version that a writer has seen.
    fn what_is_there(&self, name: &[u8], seen: &Stamp) -> Result<There, Error> {
        if let Some(away) = self.away(name)? {
            // The writer has seen the plain file of a corrupt version.
            let is_seen = away.is_wrong || away.content.by.0 == OWN || is_shown(seen, away.id, &away.content);
            return Ok(if is_seen { There::Seen(Some(Box::new(away))) } else { There::Unseen });
        }
        let stamp = match self.inner.entry(name, Detail::Basic) {
            Ok((entry, _)) => match entry.kind {
                EntryKind::File { stamp, .. } => stamp,
                _ => return Ok(There::Seen(None)),
            },
            Err(error) if error.code == Code::PathNotFound => return Ok(There::Seen(None)),
            Err(error) => return Err(error),
        };
        if stamp.ino == seen.ino {
            return Ok(There::Seen(None));
        }
        let tree = &self.volume.tree;
        let Ok(spot) = self.spot(name) else { return Ok(There::Seen(None)) };
        let Some((id, Node { kind: Kind::File(content), .. })) = tree.child(&spot)? else {
            return Ok(There::Seen(None));
        };
        // A plain file that is not the catalogue's version was written here a moment ago.
        let is_it = tree.held(id)?.is_some_and(|held| held.is_of(&content) && held.stamp.ino == stamp.ino);
        let is_seen = content.by.0 == OWN || !is_it || is_shown(seen, id, &content);
        Ok(if is_seen { There::Seen(None) } else { There::Unseen })
    }

    fn put_beside(&self, from: &[u8], to_dir: &VolumeDir, to: &[u8]) -> Result<Replaced, Error> {
        let (name, number) = (Name(to.to_vec()), self.volume.tree.position()?.seq);
        for count in 0..MAX_BESIDE {
            let Name(beside) = beside_name(&name, (OWN, number), count);
            match self.rename_no_replace(from, to_dir, &beside) {
                Err(error) if error.code == Code::PathExists => {}
                renamed => {
                    renamed?;
                    let name = String::from_utf8_lossy(&beside).into_owned();
                    tracing::info!(path = %shown_path(&to_dir.real, to), name, "both versions were kept");
                    return Ok(Replaced { beside: Some(beside), stamp: None });
                }
            }
        }
        let cause = "and so are all alternative names";
        Err(Error::new(Code::PathExists, "publish", shown_path(&to_dir.real, to), cause))
    }
}
