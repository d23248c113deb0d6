//! File sessions: a client works on single files below a place, for as long as it keeps the session.
//!
//! Authorised once, when it is opened; judged again when trust, mapping or rights change, as a transfer is. Drafts are
//! temporary files under a key of the session. A journal names the place and the key, so that what a killed PoP left is
//! removed with what abandoned transfers left.

use super::access::Access;
use super::transfer::{Stop, Watch, offer_streams, running};
use super::{Counters, Site};
use crate::mover::clerk::{ClerkJob, attend};
use crate::mover::hex;
use crate::mover::journal::{Journal, boot_id, check_unfinished};
use crate::net::control::ControlReceiver;
use crate::store::desk::Desk;
use renkei_core::error::Error;
use renkei_core::mover::journal::{Header, VERSION};
use renkei_core::wire::file::OpenFiles;
use renkei_core::wire::message::Class;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Journals of one principal, of sessions that write, which are kept for a week after a crash.
const MAX_UNFINISHED: usize = 4096;

impl Site {
    /// Serves a file session; `request` is answered when the streams may come.
    ///
    /// # Errors
    /// The outer one before that answer, for the caller to send; the inner one is how the session ended.
    pub fn attend(
        &self,
        access: &Access,
        open: &OpenFiles,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<(), Error>, Error> {
        let id = hex(&open.id);
        let span = tracing::info_span!("files", session = id, principal = %access.principal);
        let _entered = span.enter();
        let side = |error: Error| error.at(access.site());
        let ended = self.try_attend(access, open, request, control).map_err(side)?.map_err(side);
        match &ended {
            Ok(()) => tracing::info!("closed"),
            Err(error) => tracing::warn!(%error, "ended early"),
        }
        Ok(ended)
    }

    fn try_attend(
        &self,
        access: &Access,
        open: &OpenFiles,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<(), Error>, Error> {
        let (watch, stop) = (Watch::default(), Stop::default());
        let entry = running(access, open.id, "files", open.place.to_string(), Class::Normal, &watch, &stop);
        let listed = self.transfers.enter(self.transfers.fresh_key(), entry)?;
        let (desk, job) = open_desk(access, open)?;
        let journal = self.draft_journal(access, open, &desk, &job)?;
        tracing::info!(target: "audit", principal = %access.principal, account = job.account.name, place = %open.place,
            write = open.write, "file session");
        let waiting =
            self.issue_streams(access, self.stream_count(access, open.max_streams, None, control))?;
        offer_streams(&waiting, (false, None), false, request, control)?;
        let streams = match waiting.gather(&stop, control.sender().socket()) {
            Ok(streams) => streams,
            Err(error) => return Ok(Err(error)),
        };
        listed.tell(format!("data streams open: {}", streams.len()), control.round_trip());
        let counters = &self.counters;
        Counters::add(&counters.file_sessions_total, 1);
        counters.file_sessions.fetch_add(1, Ordering::Relaxed);
        // What closes the files are the threads of the account.
        drop(desk);
        let (operations, bytes, ended) = attend(job, control, streams, &watch, &stop);
        counters.file_sessions.fetch_sub(1, Ordering::Relaxed);
        Counters::add(&counters.file_operations_total, operations);
        Counters::add(&counters.file_bytes_total, bytes);
        if let Some(journal) = journal {
            journal.remove();
        }
        Ok(ended)
    }

    /// Keeps the key of a session's drafts on the disk.
    fn draft_journal(
        &self,
        access: &Access,
        open: &OpenFiles,
        desk: &Desk,
        job: &ClerkJob,
    ) -> Result<Option<Journal>, Error> {
        if !open.write {
            return Ok(None);
        }
        let header = Header {
            version: VERSION,
            job: desk.job(),
            boot: boot_id(),
            to: Some(open.place.clone()),
            local: Vec::new(),
            account: job.account.name.clone(),
        };
        let (folder, owner) = (self.home().journal_dir(), access.principal.to_string());
        check_unfinished(&folder, &header, &owner, MAX_UNFINISHED)?;
        let (mut journal, state) = Journal::open(&folder, &header, &|_| Ok(()))?;
        journal.sign(&state, &owner)?;
        Ok(Some(journal))
    }
}

/// Opens the place as its account.
fn open_desk(access: &Access, open: &OpenFiles) -> Result<(Arc<Desk>, ClerkJob), Error> {
    let place = access.open(&open.place, open.write)?;
    let root = format!("/{}", open.place.storage);
    let (store, account, write) = (place.store.clone(), place.account.clone(), open.write);
    let desk = place.run("open", move |_, path| Desk::new(store, path.clone(), write).map(Arc::new));
    let desk = desk.map_err(|error| error.under(&root))?;
    let job = ClerkJob {
        files: desk.clone(),
        account,
        side: access.site().into(),
        root,
        silence: access.snapshot.config.stall_timeout(),
    };
    Ok((desk, job))
}
