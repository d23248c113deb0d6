//! Copies from this machine: to the destination, or to the buffer of a PoP.

use super::copy_plan::Spec;
use super::files_from::Listed;
use super::source::Sources;
use super::transfer::Run;
use renkei_core::buffer::{place, source, split};
use renkei_core::error::Error;
use renkei_core::path::RelPath;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::{Existing, OpenReceive, Opened, ReceiveOptions, Request, Summary};
use renkei_mover::connect::dial::Session;
use renkei_mover::send::{SendJob, send};
use renkei_mover::walk::Root;
use renkei_net::identity::account::Account;

impl Run<'_> {
    pub(super) fn up(
        &self,
        mut session: Session,
        copy: &OpenCopy,
        mut roots: Vec<Root>,
    ) -> Result<Summary, Error> {
        let mut _marker = None;
        let opened = session.open_copy(copy, |layout| {
            _marker = self.keep_intent(layout)?;
            let targets = layout.targets(&self.names()?, copy.to.path.name())?;
            roots.iter_mut().zip(targets).for_each(|(root, target)| root.to = target);
            Ok(())
        })?;
        self.send_local(session, &opened, roots)
    }

    /// Sends the sources to the opened destination.
    fn send_local(&self, mut session: Session, opened: &Opened, roots: Vec<Root>) -> Result<Summary, Error> {
        let streams = self.dialler.join(&mut session, opened)?;
        let job = SendJob {
            roots,
            recursive: self.job.recursive,
            offers: opened.offers,
            digests: self.compares_content() && self.buffer.is_none(),
            dry_run: self.job.options.dry_run,
            limit: self.job.common.limit,
            class: self.job.common.class(),
            on_error: self.job.common.on_error(),
            onto: opened.onto.clone(),
            filter: self.filter.clone(),
            account: Account::own()?,
            side: "client".into(),
            keep: None,
            compare: None,
        };
        send(job, &mut session.control, streams, &self.watch, &self.stop)
            .map_err(|error| session.reach.blame(error).at("client"))
    }

    /// Sends the sources to the buffer, each by its number.
    pub(super) fn up_to_buffer(&self, mut session: Session) -> Result<Summary, Error> {
        // The PoP knows the existing files of an upload that is continued.
        let options = ReceiveOptions::plain(Existing::Replace);
        let names = (0..self.sources.len()).map(|number| split(&source(&self.transfer, number)));
        let roots = self.local_roots(names.flatten().map(|(_, name)| name).collect())?;
        let opened = session.ask_open(Request::OpenReceive(OpenReceive {
            transfer: self.transfer,
            job: self.key(),
            to: place(&self.transfer),
            options,
            class: self.job.common.class(),
            max_streams: self.job.common.max_streams(),
            rules: Vec::new(),
        }))?;
        self.send_local(session, &opened, roots)
    }

    pub(crate) fn local_roots(&self, targets: Vec<RelPath>) -> Result<Vec<Root>, Error> {
        let mut sources = Sources::default();
        let root = |((spec, listed), to): ((&Spec, Option<&Listed>), RelPath)| {
            let contents = self.job.means_contents(spec);
            let root = sources.root(spec.local()?, contents, self.job.recursive, to);
            let root = root.map_err(|error| error.at("client"))?;
            Ok(match listed {
                Some(Listed { path, alone }) => Root { from: path.clone(), alone: *alone, ..root },
                None => root,
            })
        };
        self.parts().zip(targets).map(root).collect()
    }
}
