//! Folders, or chosen entries of one, as one archive (tar), which is made while the client takes it.
//!
//! Memory is used for one block and for the names in the directories on the way. Symbolic links are in it as such. An entry
//! that cannot be opened is left out, and listed in `NOT-INCLUDED.txt` at the end of the archive; a file that fails while it is read
//! ends the archive before its end, which every program notices.

use super::query::{Query, escaped};
use super::tar::{self, Member};
use super::{Shown, guarded};
use crate::http::activity::Activity;
use crate::webdav::document::document;
use crate::webdav::session::Session;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use renkei_core::entry::{EntryKind, FileTime};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_mover::files::workspace::{Follow, Reader, Workspace};
use renkei_site::files::body::{NextBlock, Progress, Streamed};

/// Bytes of a block of the archive.
const BLOCK_BYTES: usize = 1 << 20;
/// Blocks are sent from so many bytes on.
const ENOUGH_BYTES: usize = 256 << 10;
/// Most entries that are listed as left out.
const MAX_OMITTED: usize = 10_000;
const OMITTED: &[u8] = b"NOT-INCLUDED.txt";

/// Answers a request for an archive; chosen names are in the query or in the form that was sent.
/// For a link, causes of what is left out are not told.
pub(super) async fn answer(
    shown: Shown,
    body: Body,
    activity: Activity,
    is_link: bool,
) -> Result<Response, Error> {
    let form = document(body, &activity).await?;
    let chosen = Query::parse(&String::from_utf8_lossy(&form)).names;
    let connection = activity.clone();
    let opened = activity.run(move || {
        let session = Session::open(shown.site, shown.evidence)?;
        connection.authenticated();
        let (files, path) = session.files(&shown.place, Need::Read)?;
        let names = if chosen.is_empty() { shown.query.names } else { chosen };
        let archive = Archive::open(files, &path, &names, &name_of(&shown.place))?;
        Ok((if is_link { archive.for_strangers() } else { archive }, shown.place))
    });
    let (archive, place) = opened.await?;
    Ok(response(archive.blocks(), &name_of(&place), activity))
}

/// The name of the archive, without its end.
pub(super) fn name_of(place: &Place) -> Vec<u8> {
    place.path.name().unwrap_or(place.storage.as_bytes()).to_vec()
}

/// The response with an archive of a name.
pub(super) fn response(blocks: NextBlock, name: &[u8], activity: Activity) -> Response {
    let disposition = format!("attachment; filename*=UTF-8''{}.tar", escaped(name));
    let headers = [(CONTENT_TYPE, "application/x-tar".to_owned()), (CONTENT_DISPOSITION, disposition)];
    guarded((StatusCode::OK, headers, Body::new(Streamed::new(blocks, activity))).into_response())
}

/// An archive that is being made.
pub(super) struct Archive {
    files: Workspace,
    /// Entries to come, the next one last: the path, and the name in the archive.
    pending: Vec<(RelPath, Vec<u8>)>,
    /// The file that is being read, and the offset.
    current: Option<(Reader, u64)>,
    omitted: Vec<String>,
    /// Whether it is for strangers, to whom causes would tell accounts and paths.
    hides_causes: bool,
    is_done: bool,
}

impl Archive {
    /// An archive of a directory or file, or of these entries of a directory; its names begin with `name`.
    ///
    /// # Errors
    /// Those of the directory; `BadPath` for what is no name.
    pub(super) fn open(
        files: Workspace,
        path: &RelPath,
        names: &[Vec<u8>],
        name: &[u8],
    ) -> Result<Self, Error> {
        files.stat(path, Follow::Yes)?;
        let mut pending = Vec::new();
        for chosen in names.iter().rev() {
            let at = path.child(chosen)?;
            files.stat(&at, Follow::No)?;
            pending.push((at, chosen.clone()));
        }
        if names.is_empty() {
            pending.push((path.clone(), name.to_vec()));
        }
        Ok(Archive {
            files,
            pending,
            current: None,
            omitted: Vec::new(),
            hides_causes: false,
            is_done: false,
        })
    }

    /// The same without the causes of what is left out.
    pub(super) fn for_strangers(self) -> Self {
        Archive { hides_causes: true, ..self }
    }

    /// The blocks of the archive.
    pub(super) fn blocks(mut self) -> NextBlock {
        Box::new(move || self.next_block())
    }

    fn next_block(&mut self) -> Result<Option<Bytes>, Error> {
        let mut out = Vec::new();
        while out.len() < ENOUGH_BYTES && !self.is_done {
            match self.current.take() {
                Some((reader, offset)) => self.add_content(&mut out, reader, offset)?,
                None => match self.pending.pop() {
                    Some((path, name)) => {
                        if let Err(error) = self.add_entry(&mut out, &path, name) {
                            self.omit(error)?;
                        }
                    }
                    None => self.finish(&mut out),
                },
            }
        }
        Ok(Some(Bytes::from(out)).filter(|block| !block.is_empty()))
    }

    /// Notes what cannot be opened.
    ///
    /// # Errors
    /// Those that concern all of it.
    fn omit(&mut self, error: Error) -> Result<(), Error> {
        match error.code {
            Code::NotMapped | Code::PopStopping | Code::StorageMissing => Err(error),
            _ => {
                if self.omitted.len() < MAX_OMITTED {
                    let hidden = self.hides_causes.then(|| "an entry could not be read".into());
                    self.omitted.push(hidden.unwrap_or_else(|| error.to_string()));
                }
                Ok(())
            }
        }
    }

    fn add_entry(&mut self, out: &mut Vec<u8>, path: &RelPath, name: Vec<u8>) -> Result<(), Error> {
        // The topmost directory may be a link itself.
        let follow = if path.is_root() { Follow::Yes } else { Follow::No };
        let item = self.files.stat(path, follow)?;
        let (mode, mtime) = (item.entry.meta.mode, item.entry.meta.mtime);
        match &item.entry.kind {
            EntryKind::Dir => {
                let mut names = self.names(path)?;
                names.sort_unstable_by(|a, b| b.cmp(a));
                tar::add(out, &[&name[..], b"/"].concat(), Member::Dir, mode, mtime);
                for one in names {
                    self.pending.push((path.child(&one)?, [&name[..], b"/", &one].concat()));
                }
            }
            EntryKind::Symlink { target } => tar::add(out, &name, Member::Symlink(target), mode, mtime),
            EntryKind::Special => {
                return Err(Error::new(Code::Unsupported, "archive", path, "it is no file, folder or link"));
            }
            EntryKind::File { .. } | EntryKind::HardLink { .. } => {
                let reader = self.files.open(path)?;
                reader.expect_order();
                tar::add(out, &name, Member::File(reader.size()), mode, mtime);
                self.current = Some((reader, 0));
            }
        }
        Ok(())
    }

    fn names(&self, dir: &RelPath) -> Result<Vec<Vec<u8>>, Error> {
        let (mut listing, mut names) = (self.files.read_dir(dir)?, Vec::new());
        while let Some(items) = listing.next_batch()? {
            names.extend(items.iter().map(|item| item.entry.path.as_bytes().to_vec()));
        }
        Ok(names)
    }

    fn add_content(&mut self, out: &mut Vec<u8>, reader: Reader, offset: u64) -> Result<(), Error> {
        let size = reader.size();
        let wanted = (size - offset).min(BLOCK_BYTES as u64) as usize;
        let start = out.len();
        out.resize(start + wanted, 0);
        let count = if wanted == 0 { 0 } else { reader.read_at(&mut out[start..], offset)? };
        if count != wanted {
            let cause = format!("{count} bytes at {offset} in place of {wanted}");
            return Err(Error::new(Code::SourceChanged, "read", &reader.item().entry.path, cause));
        }
        match offset + wanted as u64 {
            end if end == size => tar::fill(out, size),
            end => self.current = Some((reader, end)),
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.omitted.is_empty() {
            let text = format!("Entries that could not be read, and why:\n{}\n", self.omitted.join("\n"));
            tar::add(out, OMITTED, Member::File(text.len() as u64), 0o644, FileTime::default());
            out.extend_from_slice(text.as_bytes());
            tar::fill(out, text.len() as u64);
        }
        tar::end(out);
        self.is_done = true;
    }
}
