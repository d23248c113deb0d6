//! Verification of one plain file of a volume: its digest against that of the catalogue, and the errors of corrupt files.

use super::tree_walk::WalkedFile;
use crate::files::checksum;
use renkei_catalogue::{HeldReplica, VolumeTree};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::message::Algorithm;
use renkei_mover::Stop;
use renkei_store::tree::dir_of;
use renkei_store::{Detail, ReadFile, Store};
use renkei_volume::FileVerdict;

/// The digest of a file that was read, and its stamp.
pub(crate) type Read = ([u8; 32], Stamp);

/// A file to check.
pub(crate) struct Checked<'a> {
    pub(crate) path: &'a RelPath,
    pub(crate) held: &'a HeldReplica,
    pub(crate) stop: &'a Stop,
}

/// The digest of a plain file, which must have the recorded stamp.
pub(crate) fn check(plain: &dyn Store, checked: &Checked<'_>) -> Result<Read, Error> {
    check_through(plain, checked, |file| file)
}

/// The same, read through a wrapper.
pub(crate) fn check_through(
    plain: &dyn Store,
    checked: &Checked<'_>,
    through: impl FnOnce(Box<dyn ReadFile>) -> Box<dyn ReadFile>,
) -> Result<Read, Error> {
    let (dir, name) = dir_of(plain, checked.path)?;
    let file = through(dir.open_read(name)?);
    let facts = |stamp: &Stamp| (stamp.size, stamp.mtime, stamp.ino);
    let stamp = file.stamp()?;
    if facts(&stamp) != facts(&checked.held.stamp) {
        let cause = "the plain file was changed";
        return Err(Error::new(Code::DigestMismatch, "verify", checked.path, cause));
    }
    let digest = checksum(&*file, Algorithm::Blake3, checked.stop)?;
    Ok((*digest.first_chunk().expect("BLAKE3 has 32 bytes"), stamp))
}

/// The verdict on a plain file.
pub(crate) enum Verdict {
    /// This site does not hold the current version.
    NotHeld,
    /// It has the expected digest.
    Good,
    /// It differs or cannot be read; with the expected digest, if that is known.
    Wrong(Error, Option<[u8; 32]>),
}

/// Verifies one file. If no digest was known, the computed one is stored.
pub(crate) fn verify_one(
    tree: &VolumeTree,
    found: &WalkedFile,
    stop: &Stop,
    check: impl Fn(&Checked<'_>) -> Result<Read, Error>,
) -> Result<Verdict, Error> {
    let held = tree.held(found.id)?.filter(|held| held.is_of(&found.content));
    let Some(held) = held else { return Ok(Verdict::NotHeld) };
    let known = held.digest.or(found.content.digest);
    let error = match check(&Checked { path: &found.path, held: &held, stop }) {
        Ok((digest, stamp)) if known.is_none_or(|known| known == digest) => {
            let now = HeldReplica { digest: Some(digest), stamp, ..held.clone() };
            if now != held {
                // Compare and swap: not if it was rewritten meanwhile.
                tree.replace_held(found.id, &held, Some(&now))?;
            }
            return Ok(Verdict::Good);
        }
        Ok(_) => {
            let cause = "the disk returns other bytes than were written";
            Error::new(Code::DigestMismatch, "verify", &found.path, cause)
        }
        Err(error) if error.code == Code::Cancelled => return Err(error),
        Err(error) => error,
    };
    if tree.held(found.id)? != Some(held.clone()) {
        // It was rewritten or removed while it was read.
        return Ok(Verdict::NotHeld);
    }
    tracing::warn!(path = %found.path, "a plain file of a volume is corrupt");
    Ok(Verdict::Wrong(error, known))
}

/// The error for a corrupt file that no site can serve.
pub(crate) fn lost(error: &Error, became: &str) -> Error {
    match found_wrong(error, became) {
        error if error.code == Code::ReplicaWrong => Error { code: Code::ContentLost, ..error },
        error => error,
    }
}

/// The error for a corrupt file of this site, with the outcome.
pub(crate) fn found_wrong(error: &Error, became: &str) -> Error {
    let code = match error.code {
        Code::DigestMismatch | Code::PathNotFound | Code::NotADirectory => Code::ReplicaWrong,
        code => code,
    };
    let what = match error.code {
        Code::PathNotFound | Code::NotADirectory => "its plain file no longer exists",
        _ => error.cause.as_str(),
    };
    Error { code, cause: format!("{what}; {became}"), ..error.clone() }
}

/// Verifies a plain file of the home; also returns the new verdict for the volume, if there is one.
pub(crate) fn judge(
    tree: &VolumeTree,
    plain: &dyn Store,
    found: &WalkedFile,
    stop: &Stop,
    check: impl Fn(&Checked<'_>) -> Result<Read, Error>,
) -> Result<(Verdict, Option<FileVerdict>), Error> {
    let version = found.content.version;
    let Some(held) = tree.held(found.id)? else { return Ok((Verdict::NotHeld, None)) };
    let told = |digest, is_wrong| FileVerdict { id: found.id, version, stamp: held.stamp, digest, is_wrong };
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

/// Whether the plain file was changed by other means: at the home it is then the newer version, and the reconciler
/// finds it.
fn is_other(tree: &VolumeTree, plain: &dyn Store, found: &WalkedFile) -> Result<bool, Error> {
    let looked = dir_of(plain, &found.path).and_then(|(dir, name)| dir.entry(name, Detail::Basic));
    Ok(match (looked.map(|(entry, _)| entry.kind), tree.held(found.id)?) {
        (Ok(EntryKind::File { stamp, .. }), Some(held)) => {
            (stamp.size, stamp.mtime, stamp.ino) != (held.stamp.size, held.stamp.mtime, held.stamp.ino)
        }
        (Err(error), _) => matches!(error.code, Code::PathNotFound | Code::NotADirectory),
        _ => true,
    })
}
