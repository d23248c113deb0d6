//! Opens copies whose layout the destination resolves, at PoPs of both versions of the wire, and follows pushes.

use super::dial::Session;
use crate::Stop;
use crate::progress::Watch;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::mover::layout::CopyLayout;
use renkei_core::path::{Place, SiteName};
use renkei_core::wire::copy::{CopySender, OpenCopy};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{Control, DestinationKind, OpenReceive, Opened, Reply, Request, Summary};
use renkei_core::wire::wire3::DestinationReport;
use renkei_core::wire::{WireVersion, violation};

impl Session {
    /// Opens a copy that this side sends; `on_layout` learns what becomes of the sources, before anything is created
    /// in their names.
    pub fn open_copy(
        &mut self,
        copy: &OpenCopy,
        mut on_layout: impl FnMut(CopyLayout) -> Result<(), Error>,
    ) -> Result<Opened, Error> {
        let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Asker };
        self.ask_to_open(request, &mut |destination| on_layout(destination.layout(copy)?))?
    }

    /// Has the site grant a copy to `peer`, which sends it; returns what becomes of the sources too.
    pub fn grant_copy(&mut self, copy: &OpenCopy, peer: &SiteName) -> Result<(CopyLayout, Ticket), Error> {
        if self.version() < WireVersion::V4 {
            return self.grant_copy_of_wire3(copy, peer);
        }
        let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Site(peer.clone()) };
        let (id, report) = match self.ask_whom_it_concerns(request) {
            // The storage has an agent, which is older than its PoP.
            Err(error) if error.code == Code::VersionMismatch && self.version() < WireVersion::V4 => {
                return self.grant_copy_of_wire3(copy, peer);
            }
            asked => asked?,
        };
        let layout = DestinationReport::of(report?)?.layout(copy)?;
        Ok((layout, granted(self.reply_to(id)?)?))
    }

    /// The same at a PoP of wire 3: this side looks at the destination and resolves the layout.
    fn grant_copy_of_wire3(
        &mut self,
        copy: &OpenCopy,
        peer: &SiteName,
    ) -> Result<(CopyLayout, Ticket), Error> {
        let found = self.find(&copy.to)?;
        let site = self.site().as_str();
        let resolved = copy.resolve(found).map_err(|error| error.at(site))?;
        if resolved.make {
            match self.ask(Request::Mkdir { place: copy.to.clone(), parents: false }) {
                // Another copy into it was opened at the same time.
                Err(error) if error.code == Code::PathExists => {}
                made => drop(made?),
            }
        }
        Ok((resolved.layout, self.grant(copy.receive(resolved.layout), peer)?))
    }

    /// Has the site grant a transfer into a known base to `peer`, which sends it.
    pub fn grant(&mut self, open: OpenReceive, peer: &SiteName) -> Result<Ticket, Error> {
        granted(self.ask(Request::Grant { open, peer: peer.clone() })?)
    }

    /// Has the PoP push, and follows it to its end; `on_message` gets what is not about the progress.
    pub fn push(
        &mut self,
        push: Request,
        watch: &Watch,
        stop: &Stop,
        on_message: &mut dyn FnMut(Control) -> Result<(), Error>,
    ) -> Result<Summary, Error> {
        match self.ask(push)? {
            Reply::Pushing => {}
            other => return Err(violation("push", format_args!("{other:?}"))),
        }
        let link = self.control.sender();
        let _hook = stop.on_stop(move |error| drop(link.send(&Control::Abort(error))));
        loop {
            match self.control.recv()? {
                Control::Progress(progress) => watch.set(progress),
                Control::WouldSend(paths) => watch.note_would_send(paths),
                Control::Finished(ended) => return ended,
                other => on_message(other)?,
            }
        }
    }

    /// The kind of a destination.
    fn find(&mut self, place: &Place) -> Result<DestinationKind, Error> {
        match self.ask(Request::StatDir(Some(place.clone()))) {
            Ok(Reply::Entry(entry)) if entry.kind == EntryKind::Dir => Ok(DestinationKind::Dir),
            Ok(Reply::Entry(_)) => Ok(DestinationKind::Other),
            Ok(other) => Err(violation("reply", format_args!("{other:?}"))),
            Err(error) if error.code == Code::NotADirectory => Ok(DestinationKind::Other),
            Err(error) if error.code == Code::PathNotFound => Ok(DestinationKind::Nothing),
            Err(error) => Err(error),
        }
    }
}

fn granted(reply: Reply) -> Result<Ticket, Error> {
    match reply {
        Reply::Granted(grant) => Ok(grant),
        other => Err(violation("grant", format_args!("{other:?}"))),
    }
}
