//! Transfers with the peer of a session: it receives, sends, or has another site push here.

use super::jobs::{note_end, open_journal, places, running, send_job, storages};
use super::tickets::{STREAM_BYTES, Waiting, offer_streams};
use super::{Stop, Transfers, Watch};
use crate::Counters;
use crate::access::Access;
use crate::peer::Peer;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::link;
use renkei_core::path::SiteName;
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{Existing, OpenReceive, OpenSend, ReceiveOptions, Summary};
use renkei_mover::hex;
use renkei_mover::receive::{ReceiveJob, receive};
use renkei_mover::reuse::ReusableSession;
use renkei_mover::self_copy;
use renkei_mover::send::send;
use renkei_net::control::ControlReceiver;
use renkei_net::socket::bears_loss;
use renkei_net::tls::TlsStream;
use std::sync::Arc;
use tracing::Span;

impl Transfers {
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
        self.noted(access, &id, "receive", &span, || self.try_receive(access, open, request, control))
    }

    /// Runs a transfer in its span and notes how it ended; its errors name this site.
    fn noted(
        &self,
        access: &Access,
        id: &str,
        op: &'static str,
        span: &Span,
        run: impl FnOnce() -> Result<Result<Summary, Error>, Error>,
    ) -> Result<Result<Summary, Error>, Error> {
        let _entered = span.enter();
        let side = |error: Error| error.at(access.site());
        let ended = run().map_err(side)?.map_err(side);
        note_end(&self.context, &self.active, id, op, &ended);
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
        self.arrivals.admit(access, &open.to, &open.rules)?;
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
        let listed = self.active.enter(job, entry)?;
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

    /// Sends to the peer; `request` and errors as in [`Transfers::receive`].
    pub fn send(
        &self,
        access: &Access,
        open: OpenSend,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<Summary, Error>, Error> {
        let id = hex(&open.transfer);
        let span = tracing::info_span!("send", transfer = id, principal = %access.principal);
        self.noted(access, &id, "send", &span, || self.try_send(access, open, request, control))
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
        let listed = self.active.enter(self.active.fresh_key(), entry)?;
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
                let access = Access { via: Some(peer.clone()), ..self.context.authorise(&access.proof)? };
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
    pub(crate) fn issue_streams(&self, access: &Access, wanted: u16) -> Result<Waiting<'_>, Error> {
        let free = self.max_streams(access).saturating_sub(self.tickets.used());
        self.parking.give_way(free.saturating_sub(usize::from(wanted)));
        self.tickets.issue(&access.principal, wanted, self.max_streams(access))
    }

    /// The number of data streams: that of the parked ones, else the initial number for the link, within the
    /// limits.
    pub(crate) fn stream_count(
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
    pub(crate) fn max_kept(&self, access: &Access) -> usize {
        self.max_streams(access) / 2
    }
}

/// Key of a job at this site: another principal or place with the same client key is another job.
fn job_key(access: &Access, open: &OpenReceive) -> u64 {
    let text = format!("{}\0{}\0{:016x}", access.principal, open.to, open.job);
    u64::from_le_bytes(*blake3::hash(text.as_bytes()).as_bytes().first_chunk().expect("32 bytes"))
}
