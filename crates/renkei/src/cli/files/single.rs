//! Operations on single names at sites: one file session per named directory.

use super::cat::split;
use crate::cli::Context;
use crate::cli::connect::{dialler, place};
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName};
use renkei_core::wire::file::{Answer, Files, Item, Op};
use renkei_core::wire::violation;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles};
use std::collections::HashMap;

/// The file sessions of one command.
pub(crate) struct FileSessions<'c> {
    context: &'c Context,
    open: HashMap<(SiteName, Place), RemoteFiles>,
}

impl<'c> FileSessions<'c> {
    /// Without open sessions.
    pub(crate) fn new(context: &'c Context) -> Self {
        FileSessions { context, open: HashMap::new() }
    }

    /// The session of the parent directory of `path`, and the name there; a storage itself has none.
    pub(crate) fn parent_of(&mut self, path: &EndpointPath) -> Result<(&RemoteFiles, RelPath), Error> {
        let (dir, name) = split(&place(path)?)?;
        let key = (path.site.clone(), dir.clone());
        if !self.open.contains_key(&key) {
            let dialler = dialler(self.context, &[&path.site])?;
            let far = RemoteDir { dialler, site: path.site.clone(), place: dir, write: true };
            self.open.insert(key.clone(), RemoteFiles::open(far, Config::default())?);
        }
        Ok((&self.open[&key], name))
    }
}

/// Runs an operation that is answered with an item.
pub(crate) fn item(files: &RemoteFiles, op: Op) -> Result<Item, Error> {
    match files.operate(op, b"")? {
        Answer::Item(item) => Ok(item),
        other => Err(violation("answer", format_args!("{other:?}"))),
    }
}

/// Runs an operation without a result.
pub(crate) fn done(files: &RemoteFiles, op: Op) -> Result<(), Error> {
    match files.operate(op, b"")? {
        Answer::Done => Ok(()),
        other => Err(violation("answer", format_args!("{other:?}"))),
    }
}

/// The entries of a directory.
pub(crate) fn list(files: &RemoteFiles, dir: &RelPath) -> Result<Vec<Item>, Error> {
    let Answer::Opened { handle, .. } = files.operate(Op::OpenDir(dir.clone()), b"")? else {
        return Err(Error::new(Code::NotADirectory, "list", dir, ""));
    };
    let mut all = Vec::new();
    loop {
        match files.operate(Op::ReadDir(handle), b"")? {
            Answer::Items { items, more } => {
                all.extend(items);
                if !more {
                    break;
                }
            }
            other => return Err(violation("answer", format_args!("{other:?}"))),
        }
    }
    done(files, Op::Close(handle))?;
    Ok(all)
}
