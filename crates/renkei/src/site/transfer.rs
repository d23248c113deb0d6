//! Transfers a PoP takes part in: receiving from, sending to, and sending on a client's behalf to another site.

use super::access::{Access, Proof};
use super::running::{Judged, Running};
use super::snapshot::Snapshot;
use super::tickets::Waiting;
use super::{Counters, Site};
use crate::identity::account::Account;
pub use crate::mover::Stop;
use crate::mover::dial::{Ahead, Dialler};
use crate::mover::hex;
use crate::mover::journal::{Allow, Journal, boot_id, check_unfinished};
pub use crate::mover::progress::{Note, Watch};
use crate::mover::receive::{ReceiveJob, receive};
use crate::mover::send::{SendJob, send};
use crate::mover::walk::Root;
use crate::net::control::ControlReceiver;
use crate::store::{Dir, Store};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link;
use renkei_core::mover::journal::{Header, State, VERSION};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{
    Class, Control, Existing, OpenReceive, OpenSend, Opened, Progress, Reply, Request, Summary,
    TransferStatus,
};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};

/// Buffers of one data stream: ciphertext in and out, a frame, a block, and what TLS and the kernel add.
pub(super) const STREAM_BYTES: u64 = 6 << 20;

/// Journals of unfinished transfers of one account, which are kept for a week.
const MAX_UNFINISHED: usize = 4096;

/// Data streams that one push dials before the other site has accepted its grant, pushes of one principal, and all:
/// nobody has this PoP dial as often as he likes with grants that nobody gave.
const AHEAD_OF_PUSH: usize = 16;
const AHEAD_OF_ONE: usize = 32;
const AHEAD_OF_ALL: usize = 64;

/// Sources of one transfer at most; each holds a descriptor.
const MAX_SOURCES: usize = 1024;

fn running(
    access: &Access,
    id: [u8; 16],
    direction: &str,
    place: String,
    class: Class,
    watch: &Watch,
    stop: &Stop,
) -> Running {
    let status = TransferStatus {
        id: hex(&id),
        principal: access.principal.to_string(),
        direction: direction.into(),
        place,
        class,
        progress: Progress::default(),
    };
    let judge = {
        let access = access.clone();
        Arc::new(move |now: &Arc<Snapshot>| access.judge_again(now))
    };
    Running { status, watch: watch.clone(), stop: stop.clone(), judge, judged: Judged::default() }
}

/// Data streams dialled now by pushes whose grant is not accepted yet, by who asked.
#[derive(Default)]
pub(crate) struct Dialled(Mutex<HashMap<Principal, usize>>);

/// The streams that one push may dial ahead, until this ends.
struct Share<'a> {
    all: &'a Dialled,
    principal: Principal,
    count: u16,
}

impl Dialled {
    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// As many as wanted, or as are left, which may be none.
    fn take(&self, principal: &Principal, wanted: u16) -> Share<'_> {
        let mut dialled = self.lock();
        let left = AHEAD_OF_ALL.saturating_sub(dialled.values().sum());
        let own = dialled.entry(principal.clone()).or_default();
        let most = AHEAD_OF_PUSH.min(left).min(AHEAD_OF_ONE.saturating_sub(*own));
        let count = wanted.min(u16::try_from(most).unwrap_or(u16::MAX));
        *own += usize::from(count);
        Share { all: self, principal: principal.clone(), count }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut dialled = self.all.lock();
        if let Some(own) = dialled.get_mut(&self.principal) {
            *own -= usize::from(self.count);
        }
        dialled.retain(|_, own| *own > 0);
    }
}

impl Site {
    /// Receives what the asker sends; `request` is answered when the streams may come.
    ///
    /// # Errors
    /// The outer one before that answer, for the caller to send; the inner one is how the transfer ended.
    pub fn receive(
        &self,
        access: &Access,
        open: OpenReceive,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let id = hex(&open.transfer);
        let span =
            tracing::info_span!("receive", transfer = id, principal = %access.principal, to = %open.to);
        let _entered = span.enter();
        let side = |error: Error| error.at(access.site());
        let ended = self.try_receive(access, open, request, control).map_err(side)?.map_err(side);
        self.note_end(&ended);
        Ok(ended)
    }

    fn try_receive(
        &self,
        access: &Access,
        open: OpenReceive,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let place = access.open(&open.to, true)?;
        let account = place.account.clone();
        let base = place.run("open", |store, path| store.dir(path));
        let base = base.map_err(|error| error.under(&format!("/{}", open.to.storage)))?;
        let job = job_key(access, &open);
        let (watch, stop) = (Watch::default(), Stop::default());
        let entry = running(access, open.transfer, "receive", open.to.to_string(), open.class, &watch, &stop);
        let _listed = self.transfers.enter(job, entry)?;
        // First the streams: what the journal says counts to the memory of the session that has them.
        let waiting = self.issue_streams(access, open.max_streams, control)?;
        let memory = waiting.allowance(self.max_streams(access));
        let journal = self.open_journal(&account, &open, job, &*memory)?;
        let kept = journal.as_ref().is_some_and(|(_, kept)| !kept.is_empty());
        let offers = kept || open.options.existing != Existing::Replace || open.options.dry_run;
        tracing::info!(resuming = kept, "opening");
        offer_streams(&waiting, offers, request, control)?;
        let storage = open.to.storage;
        let max_deferred = access.snapshot.config.limits.max_entries as usize;
        let streams = match waiting.gather(&stop, control.sender().socket()) {
            Ok(streams) => streams,
            Err(error) => return Ok(Err(error)),
        };
        let job = ReceiveJob {
            base,
            job,
            options: open.options,
            journal,
            account,
            max_deferred,
            memory,
            side: access.site().into(),
            root: format!("/{storage}"),
        };
        Ok(receive(job, control, streams, &watch, &stop))
    }

    /// Opens the job's journal, which names `account`: who writes the files is who cleans up after them.
    fn open_journal(
        &self,
        account: &Account,
        open: &OpenReceive,
        job: u64,
        memory: Allow<'_>,
    ) -> Result<Option<(Journal, State)>, Error> {
        if open.options.dry_run {
            return Ok(None);
        }
        let header = Header {
            version: VERSION,
            job,
            boot: boot_id(),
            to: Some(open.to.clone()),
            local: Vec::new(),
            account: account.name.clone(),
        };
        let folder = self.home().journal_dir();
        check_unfinished(&folder, &header, MAX_UNFINISHED)?;
        Journal::open(&folder, &header, memory).map(Some)
    }

    /// Sends what the asker wants to receive; `request` and errors as in [`Site::receive`].
    pub fn send(
        &self,
        access: &Access,
        open: OpenSend,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let id = hex(&open.transfer);
        let span = tracing::info_span!("send", transfer = id, principal = %access.principal);
        let _entered = span.enter();
        let side = |error: Error| error.at(access.site());
        let ended = self.try_send(access, open, request, control).map_err(side)?.map_err(side);
        self.note_end(&ended);
        Ok(ended)
    }

    fn try_send(
        &self,
        access: &Access,
        open: OpenSend,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let (watch, stop) = (Watch::default(), Stop::default());
        let entry = running(access, open.transfer, "send", places(&open), open.class, &watch, &stop);
        let _listed = self.transfers.enter(self.transfers.fresh_key(), entry)?;
        let job = send_job(access, &open, open.offers)?;
        tracing::info!(from = places(&open), "opening");
        let waiting = self.issue_streams(access, open.max_streams, control)?;
        offer_streams(&waiting, open.offers, request, control)?;
        let streams = waiting.gather(&stop, control.sender().socket());
        Ok(streams.and_then(|streams| send(job, control, streams, &watch, &stop)))
    }

    /// Sends to another site, which granted it; the asker is told the progress through `watch`.
    pub fn push(
        &self,
        access: &Access,
        open: OpenSend,
        to: &SiteName,
        grant: Ticket,
        watch: &Watch,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let id = hex(&open.transfer);
        let span = tracing::info_span!("push", transfer = id, principal = %access.principal, %to);
        let _entered = span.enter();
        let result = self.try_push(access, &open, to, grant, watch, stop);
        let result = result.map_err(|error| match error.side.as_str() {
            "client" => Error { side: access.site().into(), ..error },
            _ => error.at(access.site()),
        });
        self.note_end(&result);
        result
    }

    fn try_push(
        &self,
        access: &Access,
        open: &OpenSend,
        to: &SiteName,
        grant: Ticket,
        watch: &Watch,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let mut entry = running(access, open.transfer, "send", places(open), open.class, watch, stop);
        entry.judge = {
            let (judge, to) = (entry.judge, to.clone());
            Arc::new(move |now| judge(now).and_then(|()| now.trust.endpoints(&to).map(drop)))
        };
        let _listed = self.transfers.enter(self.transfers.fresh_key(), entry)?;
        let snapshot = self.snapshot();
        let silence = snapshot.config.stall_timeout();
        let dialler = Dialler::new(&snapshot.credential, snapshot.trust.clone(), silence)?;
        let request = Some(Request::Redeem(grant));
        let dialled = self.dialled.take(&access.principal, open.max_streams);
        let mut session =
            dialler.connect_ahead(to, &Ahead { streams: dialled.count, sends: true, request })?;
        let opened = session.ask_open(Request::Redeem(grant))?;
        drop(dialled);
        let streams = dialler.join(&mut session, &opened)?;
        let job = send_job(access, open, opened.offers)?;
        send(job, &mut session.control, streams, watch, stop)
    }

    /// Lets another site send here on the asker's behalf, once and only what `open` says.
    pub fn grant(&self, access: &Access, open: OpenReceive, peer: SiteName) -> Result<Ticket, Error> {
        access.open(&open.to, true)?;
        tracing::info!(target: "audit", principal = %access.principal, %peer, to = %open.to, "granted");
        self.grants.give(access.clone(), open, peer)
    }

    /// Takes a grant that a host shows.
    pub fn redeem(&self, peer: &Proof, grant: &Ticket) -> Result<(Access, OpenReceive), Error> {
        match &peer.principal {
            // What the user may do is judged again: the map may have changed since the grant.
            Principal::Host(site) => {
                let (access, open) = self.grants.redeem(grant, site)?;
                let access = Access { via: Some(peer.clone()), ..self.authorise(&access.proof)? };
                access.judge_again(&access.snapshot)?;
                Ok((access, open))
            }
            user @ Principal::User { .. } => {
                Err(Error::new(Code::NotAllowed, "redeem", user, "only a PoP redeems grants"))
            }
        }
    }

    /// A ticket for data streams: as many as asked for, as the link needs and as are left.
    fn issue_streams(
        &self,
        access: &Access,
        wanted: u16,
        control: &ControlReceiver,
    ) -> Result<Waiting<'_>, Error> {
        let streams = self.stream_count(access, wanted, control.sender().socket());
        self.tickets.issue(&access.principal, streams, self.max_streams(access))
    }

    fn stream_count(&self, access: &Access, wanted: u16, control: &TcpStream) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let limit = u16::try_from(access.snapshot.config.limits.max_streams).unwrap_or(u16::MAX);
        let rtt = crate::net::socket::rtt(control);
        link::controller::initial_streams(rtt, cores).min(wanted.max(1)).min(limit)
    }

    /// How many data streams the PoP's memory allows in all.
    fn max_streams(&self, access: &Access) -> usize {
        let limit = access.snapshot.config.limits.max_memory_mib << 20;
        usize::try_from(limit / STREAM_BYTES).unwrap_or(usize::MAX)
    }

    fn note_end(&self, result: &Result<Summary, Error>) {
        let counters = &self.counters;
        match result {
            Ok(summary) => {
                Counters::add(&counters.transfers_done, 1);
                Counters::add(&counters.files_total, summary.files);
                Counters::add(&counters.bytes_total, summary.bytes_moved);
                let Summary { files, bytes, failed, .. } = summary;
                tracing::info!(files, bytes, failed, "finished");
            }
            Err(error) => {
                Counters::add(&counters.transfers_failed, 1);
                tracing::warn!(%error, "ended early");
            }
        }
    }
}

/// Answers `request` with the ticket.
fn offer_streams(
    waiting: &Waiting<'_>,
    offers: bool,
    request: u64,
    control: &ControlReceiver,
) -> Result<(), Error> {
    let opened = Opened { ticket: waiting.ticket, streams: waiting.streams, offers };
    control.sender().send(&Control::Reply { id: request, reply: Ok(Reply::Opened(opened)) })?;
    tracing::info!(streams = waiting.streams, offers, "opened");
    Ok(())
}

/// Key of a job at this site: another principal or place with the same client key is another job.
fn job_key(access: &Access, open: &OpenReceive) -> u64 {
    let text = format!("{}\0{}\0{:016x}", access.principal, open.to, open.job);
    u64::from_le_bytes(*blake3::hash(text.as_bytes()).as_bytes().first_chunk().expect("32 bytes"))
}

fn places(open: &OpenSend) -> String {
    let names: Vec<String> = open.sources.iter().take(3).map(|source| source.from.to_string()).collect();
    let more = if open.sources.len() > 3 { " ..." } else { "" };
    format!("{}{more}", names.join(" "))
}

fn send_job(access: &Access, open: &OpenSend, offers: bool) -> Result<SendJob, Error> {
    if open.sources.len() > MAX_SOURCES {
        let cause = format!("{} sources, at most {MAX_SOURCES} in one transfer", open.sources.len());
        return Err(Error::new(Code::TooManyEntries, "open", "sources", cause));
    }
    let mut account: Option<Account> = None;
    let mut roots: Vec<Root> = Vec::new();
    for source in &open.sources {
        let place = access.open(&source.from, false)?;
        // One account reads all: a storage's own account must not read what lies in another storage.
        if account.as_ref().is_some_and(|account| *account != place.account) {
            let cause = "its storage is read by another account than the source before; copy them separately";
            return Err(Error::new(Code::NotAllowed, "open", &source.from, cause));
        }
        account = Some(place.account.clone());
        roots.push(open_root(place, &source.from, source.to.clone())?);
    }
    let account = account.unwrap_or_else(|| access.account.clone());
    Ok(SendJob {
        roots,
        recursive: open.recursive,
        offers,
        digests: open.digests,
        dry_run: open.dry_run,
        limit: open.limit,
        class: open.class,
        account,
        side: access.site().into(),
    })
}

/// Opens the directory a source lies in; links on the way are followed as far as they stay in the storage.
fn open_root(place: super::access::Opened, from: &Place, to: RelPath) -> Result<Root, Error> {
    let below = match from.path.name() {
        Some(name) => RelPath::parse(name)?,
        None => RelPath::root(),
    };
    let open = |store: &dyn Store, path: &RelPath| -> Result<Arc<dyn Dir>, Error> {
        store.dir(&path.parent().unwrap_or_default())
    };
    let dir = place.run("open", open).map_err(|error| error.under(&format!("/{}", from.storage)))?;
    Ok(Root { dir, from: below, to, shown: format!("/{}", from.storage) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_dial_so_many_streams_ahead_and_no_more() {
        let dialled = Dialled::default();
        let [alice, bob, carol] =
            ["alice@kek", "bob@kek", "carol@kek"].map(|name| Principal::parse(name).unwrap());
        let of = |principal, wanted| dialled.take(principal, wanted);
        let mut own = vec![of(&alice, 64), of(&alice, 10), of(&alice, 64), of(&alice, 64)];
        assert_eq!(own.iter().map(|share| share.count).collect::<Vec<_>>(), [16, 10, 6, 0]);
        let others = [of(&bob, 64), of(&bob, 64)];
        assert_eq!((others[1].count, of(&carol, 64).count), (16, 0));
        own.remove(1);
        assert_eq!(of(&carol, 64).count, 10);
        drop((own, others));
        assert!(dialled.lock().is_empty());
    }
}
