//! Rescue of unknown files at a writing follower that was restored from a backup: plain files that the restored copy of
//! the catalogue does not know may be the only content of a change that was acknowledged here after the backup.
//!
//! Each such file gets a further name in a folder of the plain files, before anything is fetched or moved; replicas
//! that came since the backup are among them. Guarantee: no content that was here is lost by the restore. Non-goal: to
//! know which file had the content.

use super::outbox::Outbox;
use super::restored_home::{KEPT, Move, link};
use crate::plain_entry::is_same_content;
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::Error;
use renkei_core::path::RelPath;
use renkei_store::local::LocalStore;
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, Store};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Result of a rescue.
#[derive(Debug, Default)]
pub struct Rescued {
    /// Number of files that got a further name.
    pub count: u64,
    /// Number of files and directories that could not be examined or linked.
    pub failed: u64,
    /// The folder of the further names.
    pub folder: String,
}

/// Gives a further name to each plain file that the restored copy does not know.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system for the top directory.
pub fn keep_unknown(pending: &Outbox, plain: &LocalStore) -> Result<Rescued, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let folder = format!("{KEPT}{now}");
    let mut rescued = Rescued { folder: folder.clone(), ..Rescued::default() };
    let (root, into) = (plain.root()?, RelPath::parse(folder.as_bytes())?);
    let mut todo = vec![RelPath::root()];
    while let Some(path) = todo.pop() {
        for (child, kind) in entries(&root, &path, &mut rescued)? {
            let done = match kind {
                EntryKind::Dir if path.is_root() && child.as_bytes().starts_with(KEPT.as_bytes()) => Ok(()),
                EntryKind::Dir => {
                    todo.push(child);
                    Ok(())
                }
                EntryKind::File { stamp, .. } if !is_known(pending, &child, &stamp)? => {
                    rescued.count += 1;
                    let to = into.join(&child)?;
                    link(plain, &[Move { id: None, from: child, to }])
                }
                _ => Ok(()),
            };
            if let Err(error) = done {
                rescued.failed += 1;
                tracing::error!(%error, "a file that the restored catalogue does not know is not kept");
            }
        }
    }
    Ok(rescued)
}

fn entries(
    root: &Arc<dyn Dir>,
    path: &RelPath,
    rescued: &mut Rescued,
) -> Result<Vec<(RelPath, EntryKind)>, Error> {
    let opened = if path.is_root() { Ok(root.clone()) } else { root.descend(path) };
    let listed = opened.and_then(|dir| Ok((dir.list()?.collect::<Result<Vec<_>, _>>()?, dir)));
    let (listed, dir) = match listed {
        Ok(listed) => listed,
        Err(error) if path.is_root() => return Err(error),
        Err(error) => {
            rescued.failed += 1;
            tracing::error!(%path, %error, "a directory is not looked through after the restore");
            return Ok(Vec::new());
        }
    };
    let names = listed.into_iter().map(|listed| listed.name).filter(|name| !is_temp_name(name));
    let found =
        names.filter_map(|name| Some((path.child(&name), dir.entry(&name, Detail::Basic).ok()?.0.kind)));
    found.map(|(child, kind)| Ok((child?, kind))).collect()
}

/// Whether a plain file is as the copy notes it.
fn is_known(pending: &Outbox, path: &RelPath, stamp: &Stamp) -> Result<bool, Error> {
    let Some((id, _)) = pending.at(path)? else { return Ok(false) };
    Ok(pending.held(id)?.is_some_and(|held| is_same_content(&held.stamp, stamp)))
}
