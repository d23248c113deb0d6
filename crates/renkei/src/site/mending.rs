//! At the home of a volume: plain files that are wrong, and how they are mended from replicas at other sites.
//!
//! Damage is a file that shows the size, time and inode number it had and has other bytes, or cannot be read. It is given out no
//! more from the moment it is known (`volume::Judged`), and comes from a site that holds it as what others wrote does
//! (`collecting`): beside its place, compared with the digest, then in its place. A file that shows a change is its owner's new
//! version, and none of this is done to it.

use super::Site;
use super::access::Access;
use super::collecting::collect;
use super::replicas::{
    Checked, Counts, Found, Read, Verdict, check, dir_of, each_file, found_wrong, no_volume, verify_one,
};
use crate::catalogue::VolumeTree;
use crate::mover::Stop;
use crate::store::{Detail, Store};
use crate::volume::{Facts, Judged};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::NodeId;
use renkei_core::path::Place;
use renkei_core::wire::volume::Tally;
use std::collections::HashMap;

impl Site {
    /// Reads the plain files of a volume of this site at a place and below it, as whoever asks; with `repair` those that are
    /// wrong are brought from other sites at once.
    ///
    /// # Errors
    /// As those of a file system, and `CatalogueFailed`.
    pub(super) fn verify_at_home(
        &self,
        access: &Access,
        place: &Place,
        facts: &Facts,
        repair: bool,
        stop: &Stop,
    ) -> Result<Tally, Error> {
        let opened = access.open(place, false)?;
        let volume = self.snapshot().volume(&place.storage).ok_or_else(|| no_volume(place))??;
        volume.flush()?;
        let (tree, plain, stopped) = (volume.tree().clone(), volume.plain().clone(), stop.clone());
        let (mut tally, wrong, judged) = opened.run("verify", move |_, path| {
            let (mut tally, mut wrong, mut all) = (Tally::default(), HashMap::new(), Vec::new());
            each_file(&tree, path, &mut |found| {
                let read = |checked: &Checked<'_>| check(&*plain, checked);
                let (verdict, judged) = judge(&tree, &*plain, &found, &stopped, read)?;
                all.extend(judged);
                match verdict {
                    Verdict::NotHeld => {}
                    Verdict::Good => tally.count(&found),
                    Verdict::Wrong(error, _) => {
                        wrong.insert(found.path.clone(), (found.id, found.content.version));
                        tally.fail(&found.path, error);
                    }
                }
                Ok(())
            })?;
            Ok((tally, wrong, all))
        })?;
        volume.judge(judged)?;
        if repair && !wrong.is_empty() {
            self.collecting.forget_failures(facts.id);
            collect(self, &place.storage, facts, &volume)?;
        }
        for failure in &mut tally.failures {
            if let Some((id, version)) = wrong.get(&failure.path) {
                let became = became(volume.tree(), *id, *version, repair)?;
                failure.error = found_wrong(&failure.error, became);
            }
        }
        Ok(tally)
    }
}

/// What became of a file that was found wrong.
fn became(tree: &VolumeTree, id: NodeId, version: u64, repair: bool) -> Result<&'static str, Error> {
    let held = tree.held(id)?;
    Ok(match held {
        Some(held) if held.version == version && repair => "it was fetched again from another site",
        Some(held) if held.expected(version).is_none() => {
            "its digest is not known, so nothing can be put in its place"
        }
        _ if repair => "no other site sent it; it is left unchanged and no longer served",
        _ => "it is no longer served, and comes from a site that holds it",
    })
}

/// Reads a plain file of the home; gives what the volume is to be told of it, if it is not what the volume knows.
pub(super) fn judge(
    tree: &VolumeTree,
    plain: &dyn Store,
    found: &Found,
    stop: &Stop,
    check: impl Fn(&Checked<'_>) -> Result<Read, Error>,
) -> Result<(Verdict, Option<Judged>), Error> {
    let version = found.content.version;
    let Some(held) = tree.held(found.id)? else { return Ok((Verdict::NotHeld, None)) };
    let told = |digest, is_wrong| Judged { id: found.id, version, stamp: held.stamp, digest, is_wrong };
    if let Some(expected) = held.expected(version) {
        return match check(&Checked { path: &found.path, held: &held, stop }) {
            Ok((digest, _)) if digest == expected => Ok((Verdict::Good, Some(told(expected, false)))),
            Err(error) if error.code == Code::Cancelled => Err(error),
            _ if is_other(tree, plain, found)? => Ok((Verdict::NotHeld, None)),
            Ok(_) => {
                let cause = "it was found corrupt before";
                let error = Error::new(Code::DigestMismatch, "verify", &found.path, cause);
                Ok((Verdict::Wrong(error, Some(expected)), None))
            }
            Err(error) => Ok((Verdict::Wrong(error, Some(expected)), None)),
        };
    }
    match verify_one(tree, found, stop, check)? {
        Verdict::Wrong(..) if is_other(tree, plain, found)? => Ok((Verdict::NotHeld, None)),
        Verdict::Wrong(error, known) => {
            let is_damage = matches!(error.code, Code::DigestMismatch | Code::IoFailed);
            let judged = known.filter(|_| is_damage).map(|digest| told(digest, true));
            Ok((Verdict::Wrong(error, known), judged))
        }
        verdict => Ok((verdict, None)),
    }
}

/// Whether the plain file is another one than the catalogue knows: at the home that one is right, and the keeper finds it.
fn is_other(tree: &VolumeTree, plain: &dyn Store, found: &Found) -> Result<bool, Error> {
    let looked = dir_of(plain, &found.path).and_then(|(dir, name)| dir.entry(name, Detail::Basic));
    Ok(match (looked.map(|(entry, _)| entry.kind), tree.held(found.id)?) {
        (Ok(EntryKind::File { stamp, .. }), Some(held)) => {
            (stamp.size, stamp.mtime, stamp.ino) != (held.stamp.size, held.stamp.mtime, held.stamp.ino)
        }
        (Err(error), _) => matches!(error.code, Code::PathNotFound | Code::NotADirectory),
        _ => true,
    })
}
