//! Transfers a PoP takes part in: receiving from and sending to the peer of a session.
//!
//! [`push`] sends to another site, over connections of the [`connection_pool`]. [`tickets`] lets data streams join a
//! session, `active` lists running transfers and [`history`] ended ones; [`unfinished`] lists those that stopped, and
//! [`cleanup`] removes abandoned ones. The bytes are moved by `renkei_mover`.

pub(crate) mod active;
pub mod cleanup;
pub mod connection_pool;
pub mod history;
pub mod push;
pub mod tickets;
pub mod unfinished;

use super::access::Access;
use super::peer::Peer;
use super::snapshot::Snapshot;
use super::transfer::active::{Judged, Running, Transfers};
use super::transfer::history::Trace;
use super::transfer::tickets::Waiting;
use super::{Context, Counters, Site};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link;
use renkei_core::mover::journal::{Header, State, VERSION};
use renkei_core::path::{Place, RelPath, SiteName, first_names};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{
    Class, Control, Existing, Onto, OpenReceive, OpenSend, Opened, Progress, ReceiveOptions, Reply, Source,
    Summary, TransferStatus,
};
pub use renkei_mover::Stop;
use renkei_mover::hex;
use renkei_mover::journal::{Allow, Journal, boot_id, check_unfinished};
pub use renkei_mover::progress::{Note, Watch};
use renkei_mover::receive::{ReceiveJob, receive};
use renkei_mover::reuse::ReusableSession;
use renkei_mover::self_copy;
use renkei_mover::send::{SendJob, send};
use renkei_mover::walk::Root;
use renkei_net::control::ControlReceiver;
use renkei_net::identity::account::Account;
use renkei_net::socket::bears_loss;
use renkei_net::tls::TlsStream;
use renkei_store::{Dir, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum buffers of one data stream: at a receiver ciphertext in and out (0.6 MiB), the largest entry (2 MiB) and
/// a block (1 MiB); a sender has less.
pub(super) const STREAM_BYTES: u64 = 4 << 20;

/// Maximum journals of unfinished transfers of one principal; they are kept for a week.
const MAX_UNFINISHED: usize = 4096;

/// Maximum sources of one transfer; each holds a descriptor.
const MAX_SOURCES: usize = 1024;

/// The entry of the list of active transfers for a transfer that works in `storages` of this site.
pub(super) fn running(
    access: &Access,
    id: [u8; 16],
    direction: &str,
    (place, storages): (String, Vec<String>),
    class: Class,
    (watch, stop): (&Watch, &Stop),
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
    let (watch, judged, trace) = (watch.clone(), Judged::default(), Trace::begin(access.peer_site()));
    Running { status, watch, stop: stop.clone(), judge, judged, trace, storages }
}

impl Site {
    /// Receives from the peer; `request` is answered when the streams may connect.
    ///
    /// # Errors
    /// The outer error occurs before that answer, and the caller sends it; the inner one is how the transfer ended.
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
        note_end(&self.context, &self.transfers, &id, "receive", &ended);
        Ok(ended)
    }

    fn try_receive(
        &self,
        access: &Access,
        mut open: OpenReceive,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let (place, within) = access.open_base(&open)?;
        self.arrives_by_rules(access, &open.to, &open.rules)?;
        let account = place.account.clone();
        let removes = open.options.delete;
        let base = place.run("open", move |store, path| {
            let dir = store.dir(path)?;
            let onto = self_copy::tell(&*dir, removes);
            Ok((dir, onto))
        });
        let (base, onto) = base.map_err(|error| error.under(&format!("/{}", open.to.storage)))?;
        let job = job_key(access, &open);
        let (watch, stop) = (Watch::default(), Stop::default());
        let into = (open.to.to_string(), vec![open.to.storage.clone()]);
        let entry = running(access, open.transfer, "receive", into, open.class, (&watch, &stop));
        let listed = self.transfers.enter(job, entry)?;
        // From here on older runs of the job write no more.
        let (filling, receive_hooks) = access.fill_buffer(&open.to)?.unzip();
        if filling.as_ref().is_some_and(|filling| filling.is_begun) {
            // Room is reserved for one copy: complete files stay, files the source no longer has are deleted.
            open.options = ReceiveOptions { delete: true, ..ReceiveOptions::plain(Existing::SameStamp) };
        }
        // The streams come first: the memory of the journal's state is charged to the session that holds them.
        let parked = access.via.as_ref().and_then(|peer| peer.parked.clone());
        let left = parked.as_ref().and_then(|parked| parked.take());
        let (waiting, left) = self.issue_left(access, open.max_streams, left, control)?;
        let memory = waiting.allowance(self.max_streams(access));
        let journal = open_journal(&self.context, access, &account, &open, job, &*memory)?;
        let kept = journal.as_ref().is_some_and(|(_, kept)| !kept.is_empty());
        let offers = kept || open.options.existing != Existing::Replace || open.options.dry_run;
        tracing::info!(resuming = kept, "opening");
        offer_streams(&waiting, (offers, onto), left.is_some(), request, control)?;
        let storage = open.to.storage;
        let max_deferred = access.snapshot.config.limits.max_entries as usize;
        let gathered = left.map_or_else(|| waiting.gather(&stop, control.sender().socket()), Ok);
        let streams = match gathered {
            Ok(streams) => streams,
            Err(error) => return Ok(Err(error)),
        };
        let (count, keep) = (streams.len(), parked.as_ref().map(|_| Arc::<ReusableSession>::default()));
        let resumed = if kept { "resumed, " } else { "" };
        listed.tell(format!("{resumed}data streams open: {count}"), control.round_trip());
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
            keep: keep.clone(),
            within,
            receive_hooks,
            on_digest: None,
        };
        let ended = receive(job, control, streams, &watch, &stop);
        if let (Ok(_), Some(parked), Some(keep)) = (&ended, parked, keep) {
            self.parking.put(&parked, &keep, count, self.max_kept(access));
        }
        Ok(ended)
    }

    /// Sends to the peer; `request` and errors as in [`Site::receive`].
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
        note_end(&self.context, &self.transfers, &id, "send", &ended);
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
        let from = (places(&open), storages(&open));
        let entry = running(access, open.transfer, "send", from, open.class, (&watch, &stop));
        let listed = self.transfers.enter(self.transfers.fresh_key(), entry)?;
        let job = send_job(access, &open, open.offers)?;
        tracing::info!(from = places(&open), "opening");
        let wanted = self.stream_count(access, open.max_streams, None, control);
        let waiting = self.issue_streams(access, wanted)?;
        offer_streams(&waiting, (open.offers, None), false, request, control)?;
        let streams = waiting.gather(&stop, control.sender().socket());
        Ok(streams.and_then(|streams| {
            let round_trip = control.round_trip();
            listed.tell(format!("data streams open: {}", streams.len()), round_trip);
            send(job, control, streams, &watch, &stop)
        }))
    }

    /// Grants another site one push here on the requester's behalf, limited to `open`.
    pub fn grant(&self, access: &Access, open: OpenReceive, peer: SiteName) -> Result<Ticket, Error> {
        access.open_base(&open)?;
        let (principal, transfer) = (&access.principal, access.proof.transfer());
        tracing::info!(target: "audit", %principal, transfer, %peer, to = %open.to, "granted");
        self.grants.give(access.clone(), open, peer, self.relay.grant_mark().as_ref())
    }

    /// Redeems a grant that a host presents.
    pub fn redeem(&self, peer: &Peer, grant: &Ticket) -> Result<(Access, OpenReceive), Error> {
        match &peer.proof.principal {
            // The user is authorised again: the map may have changed since the grant.
            Principal::Host(site) | Principal::Agent { site, .. } => {
                let redeemed = self.grants.redeem(grant, site);
                let (access, open) = redeemed.map_err(|error| self.relay.of_agent(grant).unwrap_or(error))?;
                let access = Access { via: Some(peer.clone()), ..self.authorise(&access.proof)? };
                access.judge_again(&access.snapshot)?;
                Ok((access, open))
            }
            user @ Principal::User { .. } => {
                Err(Error::new(Code::NotAllowed, "redeem", user, "only a PoP or an agent redeems grants"))
            }
        }
    }

    /// A ticket, and the parked streams of the last transfer if their number fits.
    fn issue_left(
        &self,
        access: &Access,
        most: u16,
        left: Option<Vec<TlsStream>>,
        control: &ControlReceiver,
    ) -> Result<(Waiting<'_>, Option<Vec<TlsStream>>), Error> {
        let wanted = self.stream_count(access, most, left.as_deref(), control);
        let waiting = self.issue_streams(access, wanted)?;
        let left = left.filter(|left| left.len() == usize::from(waiting.streams));
        Counters::add(&self.context.counters.kept_total, u64::from(left.is_some()));
        Ok((waiting, left))
    }

    /// A ticket for data streams: at most `wanted`, as many as are free.
    pub(super) fn issue_streams(&self, access: &Access, wanted: u16) -> Result<Waiting<'_>, Error> {
        let free = self.max_streams(access).saturating_sub(self.tickets.used());
        self.parking.give_way(free.saturating_sub(usize::from(wanted)));
        self.tickets.issue(&access.principal, wanted, self.max_streams(access))
    }

    /// The number of data streams: that of the parked ones, else the initial number for the link, within the
    /// limits.
    pub(super) fn stream_count(
        &self,
        access: &Access,
        most: u16,
        left: Option<&[TlsStream]>,
        control: &ControlReceiver,
    ) -> u16 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let limit = u16::try_from(access.snapshot.config.limits.max_streams).unwrap_or(u16::MAX);
        let needed = link::controller::initial_streams(control.round_trip(), cores, bears_loss());
        let left = left.and_then(|left| u16::try_from(left.len()).ok());
        left.unwrap_or(needed).min(most.max(1)).min(limit)
    }

    /// The number of data streams that the PoP's memory limit allows.
    fn max_streams(&self, access: &Access) -> usize {
        let limit = access.snapshot.config.limits.max_memory_mib << 20;
        usize::try_from(limit / STREAM_BYTES).unwrap_or(usize::MAX)
    }

    /// Maximum parked streams, at this side and at the other.
    pub(super) fn max_kept(&self, access: &Access) -> usize {
        self.max_streams(access) / 2
    }
}

/// Answers `request` with the ticket.
pub(super) fn offer_streams(
    waiting: &Waiting<'_>,
    (offers, onto): (bool, Option<Onto>),
    kept: bool,
    request: u64,
    control: &ControlReceiver,
) -> Result<(), Error> {
    let opened = Opened { ticket: waiting.ticket, streams: waiting.streams, offers, kept, onto };
    control.sender().send(&Control::Reply { id: request, reply: Ok(Reply::Opened(opened)) })?;
    tracing::info!(streams = waiting.streams, offers, kept, "opened");
    Ok(())
}

/// Key of a job at this site: another principal or place with the same client key is another job.
fn job_key(access: &Access, open: &OpenReceive) -> u64 {
    let text = format!("{}\0{}\0{:016x}", access.principal, open.to, open.job);
    u64::from_le_bytes(*blake3::hash(text.as_bytes()).as_bytes().first_chunk().expect("32 bytes"))
}

/// The sources at this site, for display.
pub(super) fn places(open: &OpenSend) -> String {
    first_names(open.sources.iter().map(|source| source.from.to_string()))
}

/// The sources at a named site, for display.
pub(super) fn places_at(site: &SiteName, open: &OpenSend) -> String {
    first_names(open.sources.iter().map(|source| format!("{site}:{}", source.from)))
}

/// The storages of the sources.
pub(super) fn storages(open: &OpenSend) -> Vec<String> {
    let mut names: Vec<String> = open.sources.iter().map(|source| source.from.storage.clone()).collect();
    names.dedup();
    names
}

pub(super) fn send_job(access: &Access, open: &OpenSend, offers: bool) -> Result<SendJob, Error> {
    if open.sources.len() > MAX_SOURCES {
        let cause = format!("{} sources, at most {MAX_SOURCES} in one transfer", open.sources.len());
        return Err(Error::new(Code::TooManyEntries, "open", "sources", cause));
    }
    let mut account: Option<Account> = None;
    let mut roots: Vec<Root> = Vec::new();
    let mut found = HashMap::new();
    for source in &open.sources {
        let place = access.open(&source.from, false)?;
        // One account reads all sources: a storage's own account must not read another storage.
        if account.as_ref().is_some_and(|account| account.uid != place.account.uid) {
            let cause = "its storage is read by another account than the source before; copy them separately";
            return Err(Error::new(Code::NotAllowed, "open", &source.from, cause));
        }
        account = Some(place.account.clone());
        let root = match within(&found, source) {
            Some(root) => root,
            None => open_root(place, source)?,
        };
        if source.alone {
            found.insert(&source.from, (root.dir.clone(), root.from.clone()));
        }
        roots.push(root);
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
        on_error: open.on_error,
        onto: open.onto.clone(),
        filter: open.filter.clone(),
        account,
        side: access.site().into(),
        keep: None,
        compare: access.compare_buffered(open)?,
    })
}

/// The opened directory and path of each source that is a directory by itself.
type Directories<'s> = HashMap<&'s Place, (Arc<dyn Dir>, RelPath)>;

/// A source that lies in another source's directory. It is opened relative to that source's parent: if the
/// directory has been removed or replaced by a link by then, this source fails and not the whole transfer.
fn within(found: &Directories<'_>, source: &Source) -> Option<Root> {
    let Source { from, to, alone } = source;
    let parent = Place { storage: from.storage.clone(), path: from.path.parent()? };
    let (dir, above) = found.get(&parent)?;
    let below = above.child(from.path.name()?).ok()?;
    Some(Root {
        dir: dir.clone(),
        from: below,
        to: to.clone(),
        alone: *alone,
        shown: format!("/{}", from.storage),
    })
}

/// Opens the parent directory of a source; symbolic links on the way are followed within the storage.
fn open_root(place: super::access::Opened, source: &Source) -> Result<Root, Error> {
    let Source { from, to, alone } = source.clone();
    let below = match from.path.name() {
        Some(name) => RelPath::parse(name)?,
        None => RelPath::root(),
    };
    let open = |store: &dyn Store, path: &RelPath| -> Result<Arc<dyn Dir>, Error> {
        store.dir(&path.parent().unwrap_or_default())
    };
    let dir = place.run("open", open).map_err(|error| error.under(&format!("/{}", from.storage)))?;
    Ok(Root { dir, from: below, to, alone, shown: format!("/{}", from.storage) })
}

/// Opens the job's journal, which names `account`: the account that writes the files also cleans them up.
pub(super) fn open_journal(
    context: &Context,
    access: &Access,
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
    let folder = context.home().journal_dir();
    let owner = access.principal.to_string();
    check_unfinished(&folder, &header, &owner, MAX_UNFINISHED)?;
    let (mut journal, state) = Journal::open(&folder, &header, memory)?;
    journal.sign(&state, &owner)?;
    journal.name(&state, open.transfer)?;
    Ok(Some((journal, state)))
}

pub(super) fn note_end(
    context: &Context,
    transfers: &Transfers,
    id: &str,
    direction: &str,
    result: &Result<Summary, Error>,
) {
    transfers.ended(id, direction, result);
    let counters = &context.counters;
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
            tracing::warn!(%error, "failed");
        }
    }
}
