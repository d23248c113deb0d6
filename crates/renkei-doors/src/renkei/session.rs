//! One control session: greeting, then requests one after another.

use super::{refuse, request};
use crate::admission::Slot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::mover::filter::Filter;
use renkei_core::wire::WireVersion;
use renkei_core::wire::message::{Control, Hello, Request, Welcome};
use renkei_net::control::{ControlReceiver, split};
use renkei_net::tls::TlsStream;
use renkei_net::{SOFTWARE, unix_ms};
use renkei_site::access::Proof;
use renkei_site::access::{one_share, site_share};
use renkei_site::evidence::Evidence;
use renkei_site::partners::probes::MAX_SKEW;
use renkei_site::peer::Peer;
use renkei_site::{Counters, Site};
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

/// How long a verified certificate is trusted within a session before it is verified again.
const JUDGE_EVERY: Duration = Duration::from_secs(1);

/// Counts a session while it lives.
struct Counted<'a>(&'a Site, Principal);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.context().counters.sessions.fetch_sub(1, Ordering::Relaxed);
        let mut sessions = self.0.sessions.lock().expect("no thread panics while it holds the lock");
        if let Some(open) = sessions.get_mut(&self.1) {
            *open -= 1;
        }
        sessions.retain(|_, open| *open > 0);
    }
}

/// Greets and serves until the peer disconnects.
pub(super) fn run(
    mut stream: TlsStream,
    hello: Hello,
    peer: SocketAddr,
    site: &Arc<Site>,
    slot: Slot,
) -> Result<(), Error> {
    let side = site.name();
    let admitted = admit(&stream, &hello, site);
    let (proof, version, _counted) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => return Err(refuse(&mut stream, error.at(side.as_str()))),
    };
    slot.prove();
    let principal = &proof.principal;
    let snapshot = site.snapshot();
    let chain = stream.peer_chain();
    let (link, mut control) = split(stream, snapshot.config.stall_timeout())?;
    let crl = snapshot.trust.revocation_list(&snapshot.site).map(|(_, der)| der.to_vec()).unwrap_or_default();
    link.agree(version);
    link.send(&Control::Welcome(Welcome {
        version: version.number(),
        software: SOFTWARE.into(),
        site: side.clone(),
        principal: principal.to_string(),
        now_unix_ms: unix_ms(SystemTime::now()),
        crl,
    }))?;
    tracing::info!(%peer, %principal, software = hello.software, wire = %version, "session opened");
    let ended = serve(&site.transfers().peer(proof.clone(), &link), &chain, &mut control, site);
    if let Err(error) = &ended
        && error.code != Code::ConnectionLost
    {
        link.refuse(&error.clone().at(side.as_str()));
    }
    link.shutdown();
    tracing::info!(%peer, %principal, "session closed");
    ended.or_else(|error| if error.code == Code::ConnectionLost { Ok(()) } else { Err(error) })
}

fn admit<'s>(
    stream: &TlsStream,
    hello: &Hello,
    site: &'s Site,
) -> Result<(Proof, WireVersion, Counted<'s>), Error> {
    let proof = site.authenticate(Evidence::of_chain(stream.peer_chain().into()))?;
    let principal = &proof.principal;
    let version = WireVersion::agree(site.name().as_str(), &principal.to_string(), hello.versions)?;
    if let Principal::Host(partner) = principal {
        site.relay().memory.note_clock(partner, hello.now_unix_ms);
    }
    check_clock(hello)?;
    let limit = site.snapshot().config.limits.max_sessions;
    let open = site.context().counters.sessions.fetch_add(1, Ordering::Relaxed) + 1;
    let (own, of_site) = {
        let mut sessions = site.sessions.lock().expect("no thread panics while it holds the lock");
        let own = sessions.entry(principal.clone()).or_default();
        *own += 1;
        let own = *own;
        let fellows = sessions.iter().filter(|(other, _)| other.site() == principal.site());
        (own, fellows.map(|(_, open)| open).sum::<usize>())
    };
    let counted = Counted(site, principal.clone());
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let (share, all_of_site) = (one_share(most), site_share(most));
    let is_own = *principal.site() == site.name();
    if open > limit || own > share || (!is_own && of_site > all_of_site) {
        // A client that retries soon gets the places of idle sessions.
        site.transfers().close_waiting();
        let cause = format!(
            "at most {limit} sessions at a time, {all_of_site} of one other site and {share} of one principal"
        );
        return Err(Error::new(Code::TooManySessions, "greet", principal, cause));
    }
    Counters::add(&site.context().counters.sessions_total, 1);
    Ok((proof, version, counted))
}

fn check_clock(hello: &Hello) -> Result<(), Error> {
    let here = unix_ms(SystemTime::now());
    let skew = Duration::from_millis(here.abs_diff(hello.now_unix_ms));
    if skew <= MAX_SKEW {
        return Ok(());
    }
    let ahead = if hello.now_unix_ms > here { "ahead of" } else { "behind" };
    let cause = format!("the client's clock is {} s {ahead} this site's", skew.as_secs());
    Err(Error::new(Code::ClockSkew, "greet", "client", cause))
}

/// Answers requests until the peer disconnects, or its certificate expired or was revoked meanwhile.
fn serve(
    asker: &Peer,
    chain: &[CertificateDer<'static>],
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<(), Error> {
    let mut judged = Instant::now();
    let (mut filter, mut tell_names) = (Filter::default(), false);
    loop {
        match control.recv()? {
            Control::Filter(next) => {
                next.check()?;
                filter = next;
            }
            Control::TellNames => tell_names = true,
            Control::Request { id, request } => {
                let request = whole(request, &std::mem::take(&mut filter), std::mem::take(&mut tell_names));
                if judged.elapsed() >= JUDGE_EVERY {
                    judge_again(asker, chain, site)?;
                    judged = Instant::now();
                }
                match request {
                    Ok(request) => request::handle(id, request, asker, control, site)?,
                    Err(error) => {
                        let reply = Err(error.at(site.name().as_str()));
                        control.sender().send(&Control::Reply { id, reply })?;
                    }
                }
            }
            // Late messages of a transfer that ended at both ends.
            Control::Progress(_) | Control::Removed(_) => {}
            other => return Err(renkei_core::wire::violation("session", format_args!("{other:?}"))),
        }
    }
}

/// Judges the certificate of a session again, which must prove the same principal.
fn judge_again(asker: &Peer, chain: &[CertificateDer<'static>], site: &Site) -> Result<(), Error> {
    let again = site.authenticate(Evidence::of_chain(chain.into()))?.principal;
    let was = asker.proof.principal.current();
    if again.current() == was {
        return Ok(());
    }
    let cause = format!("the certificate is for {again} by now");
    Err(Error::new(Code::NotMapped, "authenticate", was, cause))
}

/// A request in its newest form, with what travelled before it.
fn whole(request: Request, filter: &Filter, tell_names: bool) -> Result<Request, Error> {
    let mut request = request.lifted()?;
    request.set_filter(filter);
    request.set_tell_names(tell_names);
    Ok(request)
}
