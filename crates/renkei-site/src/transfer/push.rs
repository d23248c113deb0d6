//! Pushes: transfers that a PoP sends to another site on a client's behalf.
//!
//! The other site must authorise the user. Either it gave the user a grant, which this site redeems; or the user is
//! one of this site's own, for whom this site, which vouches for the user anyway, makes the request itself. A
//! connection left by an earlier push is reused (see [`super::connection_pool`]).

use super::active::Listed;
use super::connection_pool::PooledSession;
use super::history::Trace;
use super::jobs::{note_end, places, running, send_job, storages};
use super::{Stop, Transfers, Watch};
use crate::access::Access;
use crate::evidence::Evidence;
use crate::peer::Peer;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::mover::layout::CopyLayout;
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::copy::{CopySender, OpenCopy};
use renkei_core::wire::data::Ticket;
use renkei_core::wire::message::{OpenSend, Opened, Request, Summary};
use renkei_core::wire::violation;
use renkei_core::wire::wire3::DestinationReport;
use renkei_mover::connect::dial::{DialHints, Dialler};
use renkei_mover::hex;
use renkei_mover::reuse::ReusableSession;
use renkei_mover::send::{SendJob, send};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Instant;

/// The permission to send to the other site.
pub enum PushPermit<'a> {
    /// The destination's grant to the user.
    Grant(Ticket),
    /// The user is one of this site.
    OwnUser {
        /// The copy; the targets of the sources are their names in a destination directory.
        copy: OpenCopy,
        /// Called with what becomes of the sources.
        on_layout: &'a (dyn Fn(CopyLayout) + Sync),
    },
}

/// Checks that a PoP may act for a user: it is of the user's site, which vouches for both.
fn may_speak_for(peer: &Principal, user: &Principal) -> Result<(), Error> {
    let cause = match peer {
        Principal::Host(site) if site == user.site() && user.user_name().is_some() => return Ok(()),
        Principal::Host(site) => format!("the PoP of {site} may act only for the users of {site}"),
        Principal::User { .. } | Principal::Agent { .. } => "only a PoP may act for others".into(),
    };
    Err(Error::new(Code::NotAllowed, "speak for", user, cause))
}

/// A push whose session is being opened.
struct Opening<'a> {
    request: Request,
    job: SendJob,
    permit: &'a PushPermit<'a>,
}

impl Opening<'_> {
    /// Makes the request in a session; the outer error is the session's, the inner one the other site's answer.
    fn ask(&mut self, kept: &mut PooledSession) -> Result<Result<Opened, Error>, Error> {
        let (permit, roots) = (self.permit, &mut self.job.roots);
        let names: Vec<RelPath> = roots.iter().map(|root| root.to.clone()).collect();
        kept.session.ask_to_open(self.request.clone(), &mut |destination| {
            let targets = permit.targets(destination, &names)?;
            if targets.len() != roots.len() {
                return Err(violation("push", "another number of names than of sources"));
            }
            roots.iter_mut().zip(targets).for_each(|(root, target)| root.to = target);
            Ok(())
        })
    }
}

impl PushPermit<'_> {
    /// The target names of the sources, whose names in a destination directory are `names`.
    fn targets(&self, destination: DestinationReport, names: &[RelPath]) -> Result<Vec<RelPath>, Error> {
        let PushPermit::OwnUser { copy, on_layout } = self else {
            return Err(violation("push", format_args!("{destination:?}")));
        };
        let layout = destination.layout(copy)?;
        on_layout(layout);
        layout.targets(names, copy.to.path.name())
    }

    /// The request to the other site, of a user with this certificate chain.
    fn request(&self, chain: impl FnOnce() -> Vec<Vec<u8>>) -> Request {
        match self {
            PushPermit::Grant(grant) => Request::Redeem(*grant),
            PushPermit::OwnUser { copy, .. } => {
                Request::OpenCopy { copy: copy.clone(), by: CopySender::PopFor(chain()) }
            }
        }
    }
}

impl Transfers {
    /// Pushes to another site; the progress goes to `watch`.
    pub fn push(
        &self,
        access: &Access,
        open: OpenSend,
        to: &SiteName,
        permit: PushPermit<'_>,
        watch: &Watch,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let id = hex(&open.transfer);
        let span = tracing::info_span!("push", transfer = id, principal = %access.principal, %to);
        let _entered = span.enter();
        let result = self.try_push(access, &open, to, permit, watch, stop);
        let result = result.map_err(|error| match error.side.as_str() {
            "client" => Error { side: access.site().into(), ..error },
            _ => error.at(access.site()),
        });
        note_end(&self.context, &self.active, &id, "send", &result);
        result
    }

    fn try_push(
        &self,
        access: &Access,
        open: &OpenSend,
        to: &SiteName,
        permit: PushPermit<'_>,
        watch: &Watch,
        stop: &Stop,
    ) -> Result<Summary, Error> {
        let from = (places(open), storages(open));
        let mut entry = running(access, open.transfer, "send", from, open.class, (watch, stop));
        entry.judge = {
            let (judge, to) = (entry.judge, to.clone());
            Arc::new(move |now| judge(now).and_then(|()| now.trust.endpoints(&to).map(drop)))
        };
        entry.trace = Trace::begin(Some(to.clone()));
        let listed = self.active.enter(self.active.fresh_key(), entry)?;
        let job = send_job(access, open, false)?;
        let opening = Opening { request: permit.request(|| access.chain()), job, permit: &permit };
        self.push_in_a_session(access, to, open.max_streams, opening, &listed, (watch, stop))
    }

    fn push_in_a_session(
        &self,
        access: &Access,
        to: &SiteName,
        max_streams: u16,
        mut opening: Opening<'_>,
        listed: &Listed<'_>,
        (watch, stop): (&Watch, &Stop),
    ) -> Result<Summary, Error> {
        let snapshot = self.context.snapshot();
        let dialler = self.relay.dialler(&snapshot)?;
        let found = self.ask_on_kept(to, &snapshot, &mut opening, access)?;
        let (mut kept, opened) = match found {
            Some(kept) => kept,
            None => self.ask_on_new(to, &snapshot, &dialler, &mut opening, max_streams, access)?,
        };
        let left = std::mem::take(&mut kept.streams);
        let streams = match opened.kept {
            true => left,
            false => dialler.join(&mut kept.session, &opened)?,
        };
        if streams.len() != usize::from(opened.streams.max(1)) {
            return Err(violation("opening", "it counts other data streams than were kept"));
        }
        let how = if opened.kept { "kept from the transfer before" } else { "open" };
        let round_trip = kept.session.control.round_trip();
        listed.tell(format!("data streams {how}: {}", streams.len()), round_trip);
        let (count, keep) = (streams.len(), Arc::new(ReusableSession::holding(kept.controller.take())));
        let job =
            SendJob { offers: opened.offers, onto: opened.onto, keep: Some(keep.clone()), ..opening.job };
        let reach = kept.session.reach.clone();
        let summary =
            send(job, &mut kept.session.control, streams, watch, stop).map_err(|error| reach.blame(error))?;
        let stays = kept.session.is_with_the_pop();
        if let Some(kept) = kept.after(&keep, count).filter(|_| stays) {
            self.kept_sessions.put(kept, self.max_kept(access));
        }
        Ok(summary)
    }

    /// Makes the request in a pooled session. A session that turns out to be lost, or no longer trusted, is no
    /// failure.
    fn ask_on_kept(
        &self,
        to: &SiteName,
        snapshot: &Snapshot,
        opening: &mut Opening<'_>,
        access: &Access,
    ) -> Result<Option<(PooledSession, Opened)>, Error> {
        let Some(mut kept) = self.kept_sessions.take(to, snapshot) else { return Ok(None) };
        match opening.ask(&mut kept) {
            Ok(Ok(opened)) => {
                kept.expect_answers(false);
                Ok(Some((kept, opened)))
            }
            Ok(Err(refused)) => {
                self.kept_sessions.put(kept, self.max_kept(access));
                Err(refused)
            }
            Err(error) => {
                tracing::info!(%error, "a kept connection is unusable, connecting again");
                Ok(None)
            }
        }
    }

    fn ask_on_new(
        &self,
        to: &SiteName,
        snapshot: &Snapshot,
        dialler: &Dialler,
        opening: &mut Opening<'_>,
        max_streams: u16,
        access: &Access,
    ) -> Result<(PooledSession, Opened), Error> {
        let dialled = self.dialled.take(&access.principal, max_streams);
        let request = Some(opening.request.clone());
        let session =
            dialler.connect_ahead(to, &DialHints { streams: dialled.count, sends: true, request })?;
        let now = Instant::now();
        let endpoints = snapshot.trust.endpoints(to)?.to_vec();
        let (streams, controller) = (Vec::new(), None);
        let mut kept = PooledSession { session, streams, controller, endpoints, since: now, rested: now };
        let opened = opening.ask(&mut kept)??;
        Ok((kept, opened))
    }

    /// Authorises a user for whom the PoP of the user's site makes a request, as if the user had connected.
    pub fn for_user(&self, peer: &Peer, chain: Vec<Vec<u8>>) -> Result<Access, Error> {
        let chain: Vec<_> = chain.into_iter().map(CertificateDer::from).collect();
        let user = self.context.authenticate(Evidence::Chain(chain.into()))?;
        may_speak_for(&peer.proof.principal, &user.principal)?;
        let access = Access { via: Some(peer.clone()), ..self.context.authorise(&user)? };
        let (principal, transfer) = (&user.principal, user.transfer());
        tracing::info!(target: "audit", %principal, transfer, via = %peer.proof.principal, "asked for");
        Ok(access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pop_speaks_for_its_own_users_only() {
        let [kek, titech, alice, bob] =
            ["kek", "titech", "alice@kek", "bob@titech"].map(|name| Principal::parse(name).unwrap());
        may_speak_for(&kek, &alice).unwrap();
        may_speak_for(&titech, &bob).unwrap();
        for (peer, user) in [(&kek, &bob), (&titech, &alice), (&alice, &alice), (&kek, &kek), (&kek, &titech)]
        {
            assert_eq!(may_speak_for(peer, user).unwrap_err().code, Code::NotAllowed, "{peer} for {user}");
        }
    }
}
