//! Open directories, read on as programs ask.

use super::Mounted;
use super::attributes::Known;
use super::errno::Refusal;
use renkei_core::error::Error;
use renkei_core::wire::file::{Answer, Handle, Item, Op};
use std::sync::{Arc, Mutex, PoisonError};

/// Entries of a directory that it does not list: itself and the one above.
const DOTS: u64 = 2;

/// An open directory of a program.
pub(super) struct Listing {
    dir: u64,
    part: Mutex<Part>,
}

/// The entries that came last. Going back before them begins anew.
struct Part {
    handle: Handle,
    items: Vec<Item>,
    /// How many came before.
    before: u64,
    more: bool,
}

/// One line of a listing.
pub(super) struct Line {
    pub(super) id: u64,
    pub(super) name: Vec<u8>,
    pub(super) known: Known,
    /// Whether the kernel is told of a file: not for the directory itself and the one above.
    pub(super) counts: bool,
}

impl Mounted {
    pub(super) fn open_dir(&self, id: u64) -> Result<u64, Refusal> {
        let part = Mutex::new(self.begin(id)?);
        let fh = self.next();
        let listing = Arc::new(Listing { dir: id, part });
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).insert(fh, listing);
        Ok(fh)
    }

    fn begin(&self, id: u64) -> Result<Part, Error> {
        let (handle, _) = self.at(|table| table.path(id), |path| self.ask_open(Op::OpenDir(path.clone())))?;
        Ok(Part { handle, items: Vec::new(), before: 0, more: true })
    }

    pub(super) fn close_dir(&self, fh: u64) {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh);
        if let Some(listing) = listing {
            let handle = listing.part.lock().unwrap_or_else(PoisonError::into_inner).handle;
            self.close(handle);
        }
    }

    /// Gives the lines from `offset` on to `add`, until that says there is no room or there are no more.
    pub(super) fn list(
        &self,
        fh: u64,
        offset: u64,
        mut add: impl FnMut(u64, &Line) -> bool,
    ) -> Result<(), Refusal> {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&fh).cloned();
        let listing = listing.ok_or(Refusal::plain(libc::EBADF))?;
        let mut part = listing.part.lock().unwrap_or_else(PoisonError::into_inner);
        for at in offset.. {
            let Some(line) = self.line(&listing, &mut part, at)? else { break };
            if add(at + 1, &line) {
                self.table().drop_if_unused(line.id);
                break;
            }
            if line.counts {
                self.table().count(line.id);
            }
        }
        Ok(())
    }

    fn line(&self, listing: &Listing, part: &mut Part, at: u64) -> Result<Option<Line>, Error> {
        if at < DOTS {
            return self.dots(listing.dir, at).map(Some);
        }
        if at == DOTS && (part.before > 0 || !part.items.is_empty()) {
            // Read from the start again: what is there now.
            self.restart(listing.dir, part)?;
        }
        let Some(item) = self.item_at(listing.dir, part, at - DOTS)? else { return Ok(None) };
        let name = item.entry.path.as_bytes().to_vec();
        let known = self.owners.known(item);
        let id = self.table().enter(listing.dir, &name, known);
        Ok(Some(Line { id, name, known: self.shown(id)?, counts: true }))
    }

    fn dots(&self, dir: u64, at: u64) -> Result<Line, Error> {
        let (id, name) =
            if at == 0 { (dir, b".".to_vec()) } else { (self.table().parent(dir), b"..".to_vec()) };
        Ok(Line { id, name, known: self.shown(id)?, counts: false })
    }

    fn restart(&self, dir: u64, part: &mut Part) -> Result<(), Error> {
        let fresh = self.begin(dir)?;
        let old = std::mem::replace(part, fresh);
        self.close(old.handle);
        Ok(())
    }

    fn item_at<'a>(&self, dir: u64, part: &'a mut Part, at: u64) -> Result<Option<&'a Item>, Error> {
        if at < part.before {
            self.restart(dir, part)?;
        }
        while at >= part.before + part.items.len() as u64 {
            if !part.more {
                return Ok(None);
            }
            part.before += part.items.len() as u64;
            (part.items, part.more) = self.next_items(part.handle)?;
        }
        let within = usize::try_from(at - part.before).unwrap_or(usize::MAX);
        Ok(part.items.get(within))
    }

    fn next_items(&self, handle: Handle) -> Result<(Vec<Item>, bool), Error> {
        match self.ask(Op::ReadDir(handle))? {
            Answer::Items { items, more } => Ok((items, more)),
            other => Err(super::unexpected(&other)),
        }
    }
}
