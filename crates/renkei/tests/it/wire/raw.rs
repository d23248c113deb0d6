//! Speaks to a PoP by hand: credentials of any kind, frames of any content.

#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::federation::Site;
use renkei_config::home::Home;
use renkei_core::error::Error;
use renkei_core::mover::layout::CopyForm;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::data::{Join, Ticket};
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::{
    Class, Control, Existing, Hello, OpenReceive, OpenSend, Opened, ReceiveOptions, Reply, Request, Source,
};
use renkei_core::wire::{VERSIONS, decode, encode};
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::{Credential, KeyRequest, generate_key};
use renkei_net::identity::tls::{client_config, server_config, server_name};
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::tls::TlsStream;
use renkei_net::unix_ms;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a peer may be silent.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A site's name.
pub fn name(site: &Site) -> SiteName {
    SiteName::parse(&site.name).unwrap()
}

/// A site's directories.
pub fn home(site: &Site) -> Home {
    Home::at(site.dir())
}

/// The credential of a logged-in user of a site.
pub fn user(site: &Site) -> Credential {
    Credential::user(&home(site), SystemTime::now()).unwrap()
}

/// A credential for a user that `authority` names, valid for some hours from `now` on.
pub fn issue_user(authority: &Authority, user: &str, hours: u32, now: SystemTime) -> Credential {
    let request = KeyRequest::generate().unwrap();
    let issued = authority.issue_user(user, &request.request, hours, now).unwrap();
    Credential::parse(&issued.pem, &request.key, Path::new("test")).unwrap()
}

/// A credential for a PoP that `authority` names.
pub fn issue_host(authority: &Authority) -> Credential {
    let key = generate_key().unwrap();
    let issued = authority.issue_host(&key, &["127.0.0.1".into()], SystemTime::now()).unwrap();
    Credential::parse(&issued.pem, &key.serialize_pem(), Path::new("test")).unwrap()
}

/// Lets `site` trust a site that has no PoP.
pub fn trust_card(site: &Site, card: &SiteCard) {
    let file = site.dir().join("handmade.card");
    std::fs::write(&file, card.to_text()).unwrap();
    site.ok(&["trust", "add", "--yes", file.to_str().unwrap()]);
}

/// A dialler that shows `credential` and trusts whom `site` trusts.
pub fn dialler(site: &Site, credential: &Credential) -> Dialler {
    Dialler::new(credential, Arc::new(Trust::load(&home(site)).unwrap()), PATIENCE).unwrap()
}

/// Opens a session from `site` to `to` with a credential, good or bad.
pub fn connect(site: &Site, credential: &Credential, to: &Site) -> Result<Session, Error> {
    dialler(site, credential).connect(&name(to))
}

/// Opens a session with the agent of a storage of `site`, past the PoP.
pub fn connect_to_agent(site: &Site, credential: &Credential, storage: &str) -> Result<Session, Error> {
    let dialler = dialler(site, credential);
    let pop = dialler.connect(&name(site))?;
    dialler.connect_to_agent(&name(site), storage, &pop.reach, &DialHints::default())
}

/// Shows `credential` to the first client, as a PoP shows its own.
pub fn serve_as(credential: &Credential) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, config) = (listener.local_addr().unwrap(), server_config(credential).unwrap());
    std::thread::spawn(move || {
        let sock = listener.accept().unwrap().0;
        drop(TlsStream::accept(sock, config, &[], PATIENCE));
    });
    address
}

/// A TLS connection, nothing said on it yet.
pub fn secure(site: &Site, to: &Site) -> TlsStream {
    let stream = dialler(site, &user(site)).secure(&name(to), to.address).unwrap();
    stream.bear_silence(PATIENCE).unwrap();
    stream
}

/// The refusal of a site for a credential that our own side would not even show.
pub fn refusal_of(credential: &Credential, to: &Site) -> Error {
    let sock = TcpStream::connect(to.address).unwrap();
    let config = client_config(credential).unwrap();
    match TlsStream::connect(sock, config, server_name(&name(to)), PATIENCE) {
        Ok(mut stream) => {
            let _ = put(&mut stream, FrameKind::Control, &hello(SPOKEN, SystemTime::now()));
            take_refusal(&mut stream)
        }
        Err(error) => error,
    }
}

/// Sends one frame.
pub fn put(stream: &mut TlsStream, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, kind, payload);
    stream.write_all(&bytes)
}

/// Receives one frame of a kind that is known; others are passed over, as everybody does.
pub fn take(stream: &mut TlsStream) -> Result<(FrameKind, Vec<u8>), Error> {
    loop {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head)?;
        let head = frame::parse_head(head)?;
        let mut payload = vec![0; head.payload_bytes];
        stream.read_exact(&mut payload)?;
        if let Some(kind) = head.kind {
            return Ok((kind, payload));
        }
    }
}

/// Receives frames until the peer refuses or ends the conversation, and says how.
pub fn take_refusal(stream: &mut TlsStream) -> Error {
    loop {
        match take(stream) {
            Ok((FrameKind::Refusal, payload)) => return decode("refusal", &payload).unwrap(),
            Ok((FrameKind::Control, payload)) => {
                if let Ok(Control::Reply { reply: Err(error), .. } | Control::Abort(error)) =
                    decode("control", &payload)
                {
                    return error;
                }
            }
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// The protocol versions of this build.
pub const SPOKEN: (u16, u16) = (*VERSIONS.start(), *VERSIONS.end());

/// A greeting.
pub fn hello(versions: (u16, u16), now: SystemTime) -> Vec<u8> {
    encode(&Control::Hello(Hello { versions, software: "test".into(), now_unix_ms: unix_ms(now) }))
}

/// A connection on which both sides have greeted.
pub fn greeted(site: &Site, to: &Site) -> TlsStream {
    let mut stream = secure(site, to);
    put(&mut stream, FrameKind::Control, &hello(SPOKEN, SystemTime::now())).unwrap();
    let (kind, payload) = take(&mut stream).unwrap();
    assert_eq!(kind, FrameKind::Control);
    assert!(matches!(decode("welcome", &payload), Ok(Control::Welcome(_))));
    stream
}

/// A request to receive below `path` of the storage `data`.
pub fn open_receive(path: &str, job: u64) -> OpenReceive {
    OpenReceive {
        transfer: [7; 16],
        job,
        to: Place { storage: "data".into(), path: RelPath::parse(path.as_bytes()).unwrap() },
        options: ReceiveOptions::plain(Existing::Replace),
        class: Class::Normal,
        max_streams: 2,
        rules: Vec::new(),
    }
}

/// A request to send one file.
pub fn open_send(path: &str) -> OpenSend {
    let source = Source { from: place(path), to: RelPath::root(), alone: false };
    OpenSend::plain([7; 16], vec![source])
}

/// A copy into a directory.
pub fn open_copy(path: &str) -> OpenCopy {
    OpenCopy {
        transfer: [7; 16],
        job: 7,
        to: place(path),
        form: CopyForm { directory: true, contents: false, resumed: false },
        beside: Vec::new(),
        options: ReceiveOptions::plain(Existing::Replace),
        class: Class::Normal,
        max_streams: 1,
        rules: Vec::new(),
    }
}

/// A place at a site, `/STORAGE/PATH`.
pub fn place(text: &str) -> Place {
    Place::parse(text.as_bytes()).unwrap().unwrap()
}

/// An upload to `to` that was opened, and its data streams, which have joined.
pub fn open_upload(site: &Site, to: &Site, job: u64) -> (Session, Opened, Vec<TlsStream>) {
    let dialler = dialler(site, &user(site));
    let mut session = dialler.connect(&name(to)).unwrap();
    let opened = session.ask_open(Request::OpenReceive(open_receive("", job))).unwrap();
    let streams = dialler.join(&mut session, &opened).unwrap();
    (session, opened, streams)
}

/// Joins with a ticket.
pub fn join(stream: &mut TlsStream, ticket: Ticket) {
    put(stream, FrameKind::Join, &encode(&Join { ticket, index: 0 })).unwrap();
}

/// The principal of a session, according to the PoP.
pub fn whoami(session: &mut Session) -> Result<String, Error> {
    match session.ask(Request::Whoami)? {
        Reply::Identity(identity) => Ok(identity.account),
        other => panic!("{other:?}"),
    }
}
