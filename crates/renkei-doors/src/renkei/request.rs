//! Dispatches requests to calls of the site, and their outcomes to replies.

use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::Place;
use renkei_core::wire::copy::{CopySender, OpenCopy};
use renkei_core::wire::links::AboutLink;
use renkei_core::wire::message::{BATCH_ENTRIES, Control, Reply, Request, Summary};
use renkei_core::wire::on_behalf::{FilesRequest, OnBehalf};
use renkei_core::wire::{parts, violation};
use renkei_net::control::{ControlReceiver, ControlSender};
use renkei_net::reverse_registry::LINE_SILENCE;
use renkei_net::socket;
use renkei_site::Site;
use renkei_site::access::{Access, Caller};
use renkei_site::peer::Peer;
use renkei_site::relay::circuits::CircuitRequest;
use renkei_site::transfer::push::PushPermit;
use renkei_site::transfer::{Note, Stop, Watch};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Interval of the keep-alives to a client that waits for an answer.
const SHOW_LIFE_EVERY: Duration = Duration::from_secs(2);
/// Interval of checking whether a waiting client is still connected.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval of progress reports of a push.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Answers one request.
///
/// # Errors
/// Only errors that end the session: the connection is lost, or a transfer ended early and the stream is out of step.
pub(super) fn handle(
    id: u64,
    request: Request,
    peer: &Peer,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<(), Error> {
    let proof = &peer.proof;
    if let Err(refused) = site.context().admit(proof, &request) {
        return control.sender().send(&Control::Reply { id, reply: Err(refused) });
    }
    let outcome = match request {
        Request::Redeem(grant) => site.transfers().redeem(peer, &grant).and_then(|(access, open)| {
            site.transfers().receive(&access, open, id, control).map(Outcome::Transferred)
        }),
        Request::OpenCopy { copy, by: CopySender::PopFor(chain) } => {
            let by = CopySender::PopFor(Vec::new());
            let asked = Request::OpenCopy { copy: copy.clone(), by: by.clone() };
            let access = access_for(peer, chain, &asked, site);
            access.and_then(|access| open_copy(id, &copy, by, &access, control, site))
        }
        Request::FilesFor { user, request } => files_for(id, user, request, peer, control, site),
        // These need no account here.
        Request::Line => return keep_line(id, peer, control, site),
        Request::Through { site: to, seed, count, further } => {
            let to = Principal::Host(to);
            return pass_circuits(peer, None, CircuitRequest { to, seed, count, further, id }, control, site);
        }
        Request::ToAgent { storage, seed, count } => {
            let to = Principal::Agent { site: site.name(), storage: storage.clone() };
            let asked = CircuitRequest { to, seed, count, further: 0, id };
            return pass_circuits(peer, Some(&storage), asked, control, site);
        }
        Request::Enlist { storage, request } => {
            site.relay().enlist(proof, &storage, &request).map(Reply::Enlisted).map(Outcome::Reply)
        }
        Request::RenewMount(request) => {
            site.context().renew_mount(proof, &request).map(Reply::Enlisted).map(Outcome::Reply)
        }
        Request::Terms(storage) => site.relay().terms(proof, &storage).map(Reply::Terms).map(Outcome::Reply),
        Request::Term { storage, name, offset } => site
            .relay()
            .term(proof, &storage, &name, offset)
            .map(|(bytes, more)| Outcome::Reply(Reply::Term { bytes, more })),
        Request::Revocations(list) => site.take_revocations(proof, &list).map(done).map(Outcome::Reply),
        Request::TakeCard(card) => site.partners().take_card(proof, &card).map(done).map(Outcome::Reply),
        Request::Volume(about) if proof.principal.user_name().is_none() => {
            let link = control.sender();
            alive(&link, |stop| site.volumes().about_volume(proof, about, stop))
                .map(|reply| Reply::Volume(reply.for_version(link.version())))
                .map(Outcome::Reply)
        }
        Request::Unfinished(about) if proof.principal.user_name().is_none() => {
            site.transfers().give_up_for(proof, &about).map(Reply::Unfinished).map(Outcome::Reply)
        }
        Request::IssueToken { caveats, seconds } => site
            .context()
            .issue_token(proof, &caveats, Duration::from_secs(seconds.into()))
            .map(Reply::Token)
            .map(Outcome::Reply),
        Request::S3Keys(about) => {
            site.context().about_s3_keys(proof, about).map(Reply::S3Keys).map(Outcome::Reply)
        }
        Request::Card(of) => site.card(proof, &of).map(Reply::Card).map(Outcome::Reply),
        request => site.authorise(proof).and_then(|access| {
            site.relay().expect_here(&access, &request)?;
            dispatch(id, request, &access, control, site)
        }),
    };
    let reply = match outcome {
        Ok(Outcome::Transferred(ended)) => return ended.map(drop),
        Ok(Outcome::Attended(ended)) => return ended,
        Ok(Outcome::Reply(reply)) => Ok(reply),
        Err(error) => Err(error.at(site.name().as_str())),
    };
    control.sender().send(&Control::Reply { id, reply })
}

/// The access of a user of the peer's site, for whom that site's PoP asks.
fn access_for(
    peer: &Peer,
    chain: Vec<Vec<u8>>,
    request: &Request,
    site: &Arc<Site>,
) -> Result<Access, Error> {
    let access = site.transfers().for_user(peer, chain)?;
    site.relay().expect_here(&access, request).map(|()| access)
}

/// Serves files to a user on whose behalf the peer asks.
fn files_for(
    id: u64,
    user: OnBehalf,
    request: FilesRequest,
    peer: &Peer,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<Outcome, Error> {
    let access = site.file_service().on_behalf(peer, user)?;
    let asked = match request {
        FilesRequest::Open(open) => Request::OpenFiles(open),
        FilesRequest::Remove { place, recursive } => Request::Remove { place, recursive },
    };
    site.relay().expect_here(&access, &asked)?;
    dispatch(id, asked, &access, control, site)
}

/// Turns the session into a line: it ends with the line.
fn keep_line(id: u64, peer: &Peer, control: &mut ControlReceiver, site: &Arc<Site>) -> Result<(), Error> {
    let link = control.sender();
    let listed = match site.relay().take_line(&peer.proof, &link) {
        Ok(listed) => listed,
        Err(error) => {
            return link.send(&Control::Reply { id, reply: Err(error.at(site.name().as_str())) });
        }
    };
    site.relay().hold(&peer.proof, &link);
    control.bear_silence(LINE_SILENCE)?;
    link.send(&Control::Reply { id, reply: Ok(Reply::Done) })?;
    let lost = nothing_more(control);
    drop(listed);
    tracing::info!(target: "audit", site = %peer.proof.principal, error = %lost, "line lost");
    Err(lost)
}

/// Turns the session into the control of circuits, to a site or to the agent of a storage; it ends with them.
fn pass_circuits(
    peer: &Peer,
    storage: Option<&str>,
    asked: CircuitRequest,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<(), Error> {
    let (id, link) = (asked.id, control.sender());
    let passing = match storage {
        None => site.relay().pass_circuits(&peer.proof, asked, link.clone()),
        Some(storage) => site.relay().pass_to_agent(&peer.proof, storage, asked, link.clone()),
    };
    match passing {
        Ok(_passing) => {
            site.relay().hold(&peer.proof, &link);
            link.send(&Control::Reply { id, reply: Ok(Reply::Done) })?;
            Err(nothing_more(control))
        }
        Err(error) => link.send(&Control::Reply { id, reply: Err(error.at(site.name().as_str())) }),
    }
}

/// Waits until the peer disconnects; any further message is a violation.
fn nothing_more(control: &mut ControlReceiver) -> Error {
    match control.recv() {
        Ok(other) => violation("line", format_args!("{other:?}")),
        Err(error) => error,
    }
}

enum Outcome {
    /// A reply to be sent.
    Reply(Reply),
    /// A transfer was opened and has ended.
    Transferred(Result<Summary, Error>),
    /// A file session was opened and has ended.
    Attended(Result<(), Error>),
}

fn dispatch(
    id: u64,
    request: Request,
    access: &Access,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<Outcome, Error> {
    match request {
        Request::OpenReceive(open) => {
            site.transfers().receive(access, open, id, control).map(Outcome::Transferred)
        }
        Request::OpenSend(open) => site.transfers().send(access, open, id, control).map(Outcome::Transferred),
        Request::OpenCopy { copy, by } => open_copy(id, &copy, by, access, control, site),
        Request::OpenFiles(open) => {
            site.file_service().attend(access, &open, id, control).map(Outcome::Attended)
        }
        Request::Push { send, to, grant } => {
            let watch = Watch::with_failures().with_names(send.tell_names);
            let permit = PushPermit::Grant(grant);
            push(id, control, watch, |watch, stop| {
                site.transfers().push(access, send, &to, permit, watch, stop)
            })
        }
        Request::PushCopy { send, to, copy } => {
            let link = control.sender();
            let on_layout = |layout| drop(link.send(&Control::layout(layout, link.version())));
            let permit = PushPermit::OwnUser { copy, on_layout: &on_layout };
            let watch = Watch::with_failures().with_names(send.tell_names);
            push(id, control, watch, |watch, stop| {
                site.transfers().push(access, send, &to, permit, watch, stop)
            })
        }
        request => {
            let link = control.sender();
            alive(&link, |stop| operate(id, request, access, &link, site, stop)).map(Outcome::Reply)
        }
    }
}

/// The operations with one request and one reply.
fn operate(
    id: u64,
    request: Request,
    access: &Access,
    link: &Arc<ControlSender>,
    site: &Arc<Site>,
    stop: &Stop,
) -> Result<Reply, Error> {
    Ok(match request {
        Request::Whoami => Reply::Identity(access.identity()),
        Request::Status => Reply::Status(site.monitor().status(Caller::User(access))),
        Request::Stat(place) => Reply::Entry(site.file_service().stat(access, place)?),
        Request::StatDir(place) => Reply::Entry(site.file_service().stat_dir(access, place)?),
        Request::List(place) => return list(id, place, access, link, site),
        Request::Mkdir { place, parents } => done(site.file_service().mkdir(access, &place, parents)?),
        Request::Remove { place, recursive } => {
            done(site.file_service().remove(access, &place, recursive, stop)?)
        }
        Request::Rename { from, to } => done(site.file_service().rename(access, &from, &to)?),
        Request::Usage(place) => Reply::Usage(site.file_service().usage(access, &place, stop)?),
        Request::Space(place) => Reply::Space(site.file_service().space(access, &place)?),
        Request::Checksum { place, algorithm } => {
            Reply::Checksum(site.file_service().checksum(access, &place, algorithm, stop)?)
        }
        Request::KnownChecksum { place, algorithm } => {
            Reply::Checksum(site.volumes().known_checksum(access, &place, algorithm)?)
        }
        Request::Grant { open, peer } => Reply::Granted(site.transfers().grant(access, open, peer)?),
        Request::SubmitCopies(all) => Reply::Submitted(site.queue().submit(access, all)?),
        Request::Ways(to) => Reply::Ways(site.partners().try_ways(&to)?),
        Request::Transfers(listed) => Reply::Transfers(site.queue().list(Caller::User(access), &listed)?),
        Request::Transfer(id) => Reply::Transfer(Box::new(site.queue().transfer(Caller::User(access), &id)?)),
        Request::Renew(id) => done(site.queue().renew_transfer(access, &id)?),
        Request::Change { id, change } => {
            done(site.queue().change_transfer(Caller::User(access), &id, change)?)
        }
        Request::Failures { id, after } => {
            Reply::Failures(site.queue().failures(Caller::User(access), &id, after)?)
        }
        Request::Reserve { transfer, bytes, waits } => {
            Reply::Room(site.buffer().reserve(access, transfer, bytes, waits)?)
        }
        Request::Buffer => Reply::Buffer(site.buffer().buffer_status(Caller::User(access))?),
        Request::Volume(about) => Reply::Volume(site.volumes().about_volume_for(access, about, stop)?),
        Request::Unfinished(about) => Reply::Unfinished(site.transfers().unfinished(access, &about)?),
        Request::Link(about) => {
            if let AboutLink::Create { place, .. } = &about {
                site.file_service().stat(access, Some(place.clone()))?;
            }
            Reply::Link(site.links().about(access, about)?)
        }
        Request::Console => Reply::Console(site.console().issue_link(Caller::User(access))?),
        other => return Err(violation("request", format_args!("{other:?}"))),
    })
}

fn done((): ()) -> Reply {
    Reply::Done
}

/// Does the work of one reply. The peer's pings wait meanwhile, so it is sent keep-alives; when it has disconnected,
/// the work is stopped.
fn alive<T: Send>(
    link: &ControlSender,
    work: impl FnOnce(&Stop) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let (stop, (finish, finished)) = (Stop::default(), mpsc::channel());
    std::thread::scope(|scope| {
        scope.spawn(|| finish.send(work(&stop)));
        let mut told = Instant::now();
        loop {
            if let Ok(result) = finished.recv_timeout(LOOK_EVERY) {
                return result;
            }
            let here = show_life(link, &mut told);
            here.inspect_err(|error| stop.stop(error.clone()))?;
        }
    })
}

fn show_life(link: &ControlSender, told: &mut Instant) -> Result<(), Error> {
    if socket::is_left(link.socket()) {
        return Err(Error::new(Code::ConnectionLost, "reply", "peer", "it left before the answer"));
    }
    if told.elapsed() < SHOW_LIFE_EVERY {
        return Ok(());
    }
    *told = Instant::now();
    link.send(&Control::Pong(0))
}

fn list(
    id: u64,
    place: Option<Place>,
    access: &Access,
    link: &Arc<ControlSender>,
    site: &Site,
) -> Result<Reply, Error> {
    let link = link.clone();
    let on_part = move |entries| {
        let send =
            |entries| link.send(&Control::Reply { id, reply: Ok(Reply::Listing { entries, more: true }) });
        parts(entries, BATCH_ENTRIES).into_iter().try_for_each(send)
    };
    site.file_service().list(access, place, on_part)?;
    Ok(Reply::Listing { entries: Vec::new(), more: false })
}

/// Resolves the layout of a copy at its destination, answers what becomes of the sources, and opens the copy for its sender.
fn open_copy(
    id: u64,
    copy: &OpenCopy,
    by: CopySender,
    access: &Access,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<Outcome, Error> {
    let link = control.sender();
    let (layout, open) = alive(&link, |_| site.file_service().resolve_copy(access, copy))?;
    link.send(&Control::Reply { id, reply: Ok(Reply::layout(layout, link.version())) })?;
    match by {
        CopySender::Asker | CopySender::PopFor(_) => {
            site.transfers().receive(access, open, id, control).map(Outcome::Transferred)
        }
        CopySender::Site(peer) => {
            Ok(Outcome::Reply(Reply::Granted(site.transfers().grant(access, open, peer)?)))
        }
    }
}

/// Sends to another site while the client receives the progress and may stop it. The session ends with it.
fn push(
    id: u64,
    control: &mut ControlReceiver,
    watch: Watch,
    work: impl FnOnce(&Watch, &Stop) -> Result<Summary, Error> + Send,
) -> Result<Outcome, Error> {
    let link = control.sender();
    let stop = Stop::default();
    link.send(&Control::Reply { id, reply: Ok(Reply::Pushing) })?;
    let (finish, finished) = mpsc::channel();
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| stop_when_told(control, &stop));
        scope.spawn(|| finish.send(work(&watch, &stop)));
        let ended = loop {
            match finished.recv_timeout(TELL_EVERY) {
                Ok(ended) => break ended,
                Err(_) => tell(&link, &watch),
            }
        };
        tell(&link, &watch);
        let _ = link.send(&Control::Finished(ended.clone()));
        link.shutdown();
        ended
    });
    Ok(Outcome::Transferred(ended))
}

fn stop_when_told(control: &mut ControlReceiver, stop: &Stop) {
    loop {
        match control.recv() {
            Ok(Control::Abort(error)) | Err(error) => return stop.stop(error),
            Ok(_) => {}
        }
    }
}

fn tell(link: &ControlSender, watch: &Watch) {
    let _ = link.send(&Control::Progress(watch.look()));
    let (mut removed, mut would_send, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let mut arrived = Vec::new();
    for note in watch.take_notes() {
        match note {
            Note::Removed(path) => removed.push(path),
            Note::WouldSend(path) => would_send.push(path),
            Note::Arrived(path) => arrived.push(path),
            Note::Failed(failure) => failed.push(failure),
        }
    }
    for paths in parts(removed, BATCH_ENTRIES) {
        let _ = link.send(&Control::Removed(paths));
    }
    for paths in parts(would_send, BATCH_ENTRIES) {
        let _ = link.send(&Control::WouldSend(paths));
    }
    for paths in parts(arrived, BATCH_ENTRIES) {
        let _ = link.send(&Control::Arrived(paths));
    }
    for failures in parts(failed, BATCH_ENTRIES) {
        let _ = link.send(&Control::Failures(failures));
    }
}
