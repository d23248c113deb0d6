//! COPY within the server: a file, a directory alone, or a tree (RFC 4918, section 9.8).
//!
//! Extended attributes of users are copied, dead properties among them. A file is seen when all of it is durable; a tree
//! appears entry by entry, and what failed in it is listed. Copies between servers are made elsewhere (`tpc`).

use super::error::{invalid, missing_parent, status};
use super::multistatus::{BEGIN, END, empty, href, status_line};
use super::request::{Depth, Target};
use super::session::Session;
use super::xml;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::Item;
use renkei_mover::Stop;
use renkei_mover::files::workspace::{Create, Follow, Workspace};

/// Bytes copied at a time.
const BLOCK_BYTES: usize = 1 << 20;
/// Most failures that are listed.
const MAX_FAILURES: usize = 100;
/// What extended attributes of users begin with.
const OF_USERS: &[u8] = b"user.";

/// Answers COPY.
pub(super) fn answer(session: &Session, target: &Target) -> Result<Response, Error> {
    let to = target.destination()?;
    let is_tree = match target.depth()?.unwrap_or(Depth::Infinity) {
        Depth::Infinity => true,
        Depth::Zero => false,
        Depth::One => return Err(invalid("the depth of a copy is 0 or infinity")),
    };
    let (from, path) = session.files(&target.place, Need::Read)?;
    let item = from.stat(&path, Follow::Yes)?;
    let was_there = make_room(session, target, &to, item.entry.kind == EntryKind::Dir)?;
    let (into, to_path) = session.files(&to, Need::Write)?;
    let is_own = to.storage == target.place.storage;
    let mut copier = Copier { from, into, root: to, is_own, failures: Vec::new() };
    match copier.copy(&item, &path, &to_path, is_tree) {
        Err(error) => missing_parent(error),
        Ok(()) if !copier.failures.is_empty() => Ok(copier.told()),
        Ok(()) if was_there => Ok(empty(StatusCode::NO_CONTENT)),
        Ok(()) => Ok(empty(StatusCode::CREATED)),
    }
}

fn overlaps(one: &Place, other: &Place) -> bool {
    one.storage == other.storage && (one.path.starts_with(&other.path) || other.path.starts_with(&one.path))
}

/// An entry; a symbolic link is not followed, but for those on the way.
pub(super) fn lstat(files: &Workspace, path: &RelPath) -> Result<Item, Error> {
    match files.stat(path, Follow::No) {
        Err(error) if error.code == Code::NotADirectory => files.stat(path, Follow::Yes),
        found => found,
    }
}

fn one_in_the_other(to: &Place) -> Error {
    Error::new(Code::NotAllowed, "replace", to, "source and destination lie one within the other")
}

/// Whether a directory with this inode number is on the way to a place, or the place itself: symbolic links may lead there.
fn is_around(session: &Session, place: &Place, ino: u64) -> bool {
    let above = |path: &RelPath| path.parent();
    let mut paths = std::iter::successors(Some(place.path.clone()), above);
    paths.any(|path| {
        let files = session.files(&Place { path, ..place.clone() }, Need::Look);
        files.and_then(|(files, path)| files.stat(&path, Follow::Yes)).is_ok_and(|item| item.ino == ino)
    })
}

/// Removes what a directory replaces, or what a directory was, if the client lets it be replaced; gives whether something
/// was there. A file is replaced by a file in one step, later.
pub(super) fn make_room(session: &Session, target: &Target, to: &Place, by_dir: bool) -> Result<bool, Error> {
    if overlaps(&target.place, to) {
        return Err(one_in_the_other(to));
    }
    let (files, path) = session.files(to, Need::Write)?;
    let existing = match lstat(&files, &path) {
        Ok(existing) => existing,
        Err(error) if error.code == Code::PathNotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if target.keeps_existing() {
        return Err(Error::new(
            Code::PathExists,
            "replace",
            to,
            "the client asked to keep it (Overwrite: F)",
        ));
    }
    if by_dir || existing.entry.kind == EntryKind::Dir {
        if to.storage == target.place.storage && is_around(session, &target.place, existing.ino) {
            return Err(one_in_the_other(to));
        }
        session.site.file_service().remove(&session.access, to, true, &Stop::default())?;
    }
    Ok(true)
}

struct Copier {
    from: Workspace,
    into: Workspace,
    /// The destination, for messages.
    root: Place,
    /// Whether source and destination are in one storage.
    is_own: bool,
    failures: Vec<(Place, Error)>,
}

/// A directory that is copied, with its place for messages.
struct Pending {
    from: RelPath,
    to: RelPath,
    place: Place,
}

impl Copier {
    /// Copies an entry; what fails below it is noted.
    ///
    /// # Errors
    /// Those of the entry itself.
    fn copy(&mut self, item: &Item, from: &RelPath, to: &RelPath, is_tree: bool) -> Result<(), Error> {
        self.copy_one(item, from, to)?;
        if !is_tree || item.entry.kind != EntryKind::Dir {
            return Ok(());
        }
        let made = lstat(&self.into, to)?.ino;
        let mut pending = vec![Pending { from: from.clone(), to: to.clone(), place: self.root.clone() }];
        while let Some(dir) = pending.pop().filter(|_| self.failures.len() < MAX_FAILURES) {
            if let Err(error) = self.copy_members(&dir, made, &mut pending) {
                self.failures.push((dir.place, error));
            }
        }
        Ok(())
    }

    /// Copies the members of a directory, of directories the names alone: they are `pending` then. The directory that was
    /// `made` is not copied into itself, should a symbolic link have led it there.
    fn copy_members(&mut self, dir: &Pending, made: u64, pending: &mut Vec<Pending>) -> Result<(), Error> {
        let mut listing = self.from.read_dir(&dir.from)?;
        let is_own = self.is_own;
        while let Some(items) = listing.next_batch()? {
            for item in items.into_iter().filter(|item| !(is_own && item.ino == made)) {
                let name = item.entry.path.as_bytes();
                let place = Place { path: dir.place.path.child(name)?, ..dir.place.clone() };
                let member = Pending { from: dir.from.child(name)?, to: dir.to.child(name)?, place };
                match self.copy_one(&item, &member.from, &member.to) {
                    Ok(()) if item.entry.kind == EntryKind::Dir => pending.push(member),
                    Ok(()) => {}
                    Err(error) => self.failures.push((member.place, error)),
                }
            }
        }
        Ok(())
    }

    fn copy_one(&self, item: &Item, from: &RelPath, to: &RelPath) -> Result<(), Error> {
        match &item.entry.kind {
            EntryKind::Dir => drop(self.into.mkdir(to, item.entry.meta.mode)?),
            EntryKind::Symlink { target } => return self.into.symlink(target, to).map(drop),
            _ => self.copy_content(item, from, to)?,
        }
        for xattr in self.from.xattrs(from)?.iter().filter(|xattr| xattr.name.starts_with(OF_USERS)) {
            match self.into.set_xattr(to, &xattr.name, &xattr.value) {
                Err(error) if error.code != Code::Unsupported => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn copy_content(&self, item: &Item, from: &RelPath, to: &RelPath) -> Result<(), Error> {
        let reader = self.from.open(from)?;
        let writer = self.into.create(to, Create { mode: item.entry.meta.mode, ..Create::default() })?;
        reader.expect_order();
        let (mut block, mut offset) = (vec![0; BLOCK_BYTES], 0);
        loop {
            match reader.read_at(&mut block, offset)? {
                0 => return writer.publish(None, None).map(drop),
                count => writer.write_at(&block[..count], offset)?,
            }
            offset += BLOCK_BYTES as u64;
        }
    }

    /// The response that lists what failed.
    fn told(&self) -> Response {
        let one = |(place, error): &(Place, Error)| {
            let (href, status) = (href(place, false), status_line(status(error)));
            let why = xml::text(&error.to_string());
            format!(
                "<D:response>{href}{status}<D:responsedescription>{why}</D:responsedescription></D:response>\n"
            )
        };
        let all: String = self.failures.iter().map(one).collect();
        (StatusCode::MULTI_STATUS, [(CONTENT_TYPE, xml::TYPE)], format!("{BEGIN}{all}{END}")).into_response()
    }
}
