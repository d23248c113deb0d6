//! Open directories, whose listings are read in pages as programs ask.

use super::attributes::InodeAttr;
use super::errno::FuseError;
use super::{Mark, Mounted};
use renkei_core::error::Error;
use renkei_core::wire::file::{Answer, Handle, Item, Op};
use std::sync::{Arc, Mutex, PoisonError};

/// Entries that the site does not list: `.` and `..`.
const DOTS: u64 = 2;

/// An open directory of a program.
pub(super) struct Listing {
    dir: u64,
    source: Source,
}

/// The source of the entries.
enum Source {
    /// A listing at the other side.
    Remote(Mutex<Part>),
    /// The names that were cached when the directory was opened.
    Cached(Vec<(Vec<u8>, u64)>),
}

/// The last page of entries. A seek to before it restarts the listing.
struct Part {
    handle: Handle,
    items: Vec<Item>,
    /// Number of entries before this page.
    before: u64,
    more: bool,
    /// The marks of the listing's start and of the request for this page.
    begun: Mark,
    asked: Mark,
    /// The directory's count of dropped children at the start.
    losses: u64,
    /// The number that marks the inodes of this listing.
    number: u64,
    /// The last inode that did not fit into the kernel's reply.
    left: Option<u64>,
}

/// One entry of a listing, as readdirplus returns it.
pub(super) struct Dirent {
    pub(super) id: u64,
    pub(super) name: Vec<u8>,
    pub(super) known: InodeAttr,
    /// Whether it counts as a lookup of the kernel: not for `.` and `..`.
    pub(super) counts: bool,
}

impl Mounted {
    pub(super) fn open_dir(&self, id: u64) -> Result<u64, FuseError> {
        let source = match self.is_listing_cached(id) {
            true => Source::Cached(self.table().names(id)),
            false => Source::Remote(Mutex::new(self.begin(id)?)),
        };
        let fh = self.next();
        let listing = Arc::new(Listing { dir: id, source });
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).insert(fh, listing);
        Ok(fh)
    }

    fn begin(&self, id: u64) -> Result<Part, Error> {
        let (begun, losses) = (self.mark(id), self.table().node(id)?.losses);
        let (handle, _) = self.at(|table| table.path(id), |path| self.ask_open(Op::OpenDir(path.clone())))?;
        let begun = begun.held(true);
        let (items, number) = (Vec::new(), self.next());
        Ok(Part { handle, items, before: 0, more: true, begun, asked: begun, losses, number, left: None })
    }

    pub(super) fn close_dir(&self, fh: u64) {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh);
        if let Some(Source::Remote(part)) = listing.as_deref().map(|listing| &listing.source) {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            self.close(part.handle);
            if let Some(left) = part.left {
                self.table().drop_if_unused(left);
            }
        }
    }

    /// Passes the entries from `offset` on to `add`, until that returns that the reply is full or there are no more.
    pub(super) fn list(
        &self,
        fh: u64,
        offset: u64,
        add: impl FnMut(u64, &Dirent) -> bool,
    ) -> Result<(), FuseError> {
        let listing = self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&fh).cloned();
        let listing = listing.ok_or(FuseError::plain(libc::EBADF))?;
        match &listing.source {
            Source::Cached(names) => self.list_known(listing.dir, names, offset, add),
            Source::Remote(part) => {
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                self.list_asked(&listing, &mut part, offset, add)
            }
        }
    }

    fn list_known(
        &self,
        dir: u64,
        names: &[(Vec<u8>, u64)],
        offset: u64,
        mut add: impl FnMut(u64, &Dirent) -> bool,
    ) -> Result<(), FuseError> {
        for at in offset..DOTS + names.len() as u64 {
            if at < DOTS {
                if add(at + 1, &self.dots(dir, at)?) {
                    break;
                }
                continue;
            }
            let (name, id) = &names[usize::try_from(at - DOTS).unwrap_or(usize::MAX)];
            // Names that were removed since the directory was opened are skipped, as POSIX permits. Counted before
            // the kernel sees the entry: it may forget it at once.
            if !self.table().count_if(dir, name, *id) {
                continue;
            }
            let known = self.shown(*id)?;
            if add(at + 1, &Dirent { id: *id, name: name.clone(), known, counts: true }) {
                self.table().forget(*id, 1);
                break;
            }
        }
        Ok(())
    }

    fn list_asked(
        &self,
        listing: &Listing,
        part: &mut Part,
        offset: u64,
        mut add: impl FnMut(u64, &Dirent) -> bool,
    ) -> Result<(), FuseError> {
        for at in offset.. {
            let Some(line) = self.line(listing, part, at)? else {
                self.believe_listed(listing.dir, part);
                break;
            };
            if add(at + 1, &line) {
                // It comes again with the next request.
                part.left = line.counts.then_some(line.id);
                break;
            }
            if line.counts {
                self.table().count(line.id);
            }
        }
        Ok(())
    }

    /// The listing is complete: it is cached if no child was dropped since it was begun.
    fn believe_listed(&self, dir: u64, part: &Part) {
        let mut table = self.table();
        if table.node(dir).is_ok_and(|node| node.losses == part.losses) {
            self.cache_listing(&mut table, dir, part.begun);
            if table.node(dir).is_ok_and(|node| node.listing_epoch.is_some()) {
                // Names that are not in the listing were removed elsewhere.
                table.keep_listed(dir, part.number);
            }
        }
    }

    fn line(&self, listing: &Listing, part: &mut Part, at: u64) -> Result<Option<Dirent>, Error> {
        if at < DOTS {
            return self.dots(listing.dir, at).map(Some);
        }
        if at == DOTS && (part.before > 0 || !part.items.is_empty()) {
            // Rewound to the start: the listing is read anew.
            self.restart(listing.dir, part)?;
        }
        let Some(item) = self.item_at(listing.dir, part, at - DOTS)? else { return Ok(None) };
        let name = item.entry.path.as_bytes().to_vec();
        let known = self.owners.attr(item);
        let (asked, number) = (part.asked, part.number);
        let id = {
            let mut table = self.table();
            let id = table.enter(listing.dir, &name, known);
            if let Ok(node) = table.node(id) {
                node.listed = number;
            }
            self.cache_attr(&mut table, id, listing.dir, asked);
            id
        };
        Ok(Some(Dirent { id, name, known: self.shown(id)?, counts: true }))
    }

    fn dots(&self, dir: u64, at: u64) -> Result<Dirent, Error> {
        let (id, name) =
            if at == 0 { (dir, b".".to_vec()) } else { (self.table().parent(dir), b"..".to_vec()) };
        Ok(Dirent { id, name, known: self.shown(id)?, counts: false })
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
            let asked = self.mark(dir);
            let (items, more, is_held) = self.next_items(part.handle)?;
            (part.items, part.more) = (items, more);
            part.asked = asked.held(is_held);
            part.begun.is_held &= is_held;
        }
        let within = usize::try_from(at - part.before).unwrap_or(usize::MAX);
        Ok(part.items.get(within))
    }

    fn next_items(&self, handle: Handle) -> Result<(Vec<Item>, bool, bool), Error> {
        match self.ask_parted(Op::ReadDir(handle))? {
            (Answer::Items { items, more }, held) => Ok((items, more, held.is_some())),
            (other, _) => Err(super::unexpected(&other)),
        }
    }
}
