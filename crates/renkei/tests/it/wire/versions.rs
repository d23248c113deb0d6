//! Sites of neighbouring versions of the wire: a session has the newest common one, and without one both sides are told
//! which of them must be updated.

use crate::federation::{Federation, Site};
use crate::wire::raw;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{Control, Reply, Request, Welcome};
use renkei_core::wire::{WireVersion, decode, encode};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::tls::server_config;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::tls::TlsStream;
use renkei_net::unix_ms;
use std::net::{SocketAddr, TcpListener};
use std::time::SystemTime;

/// Greets as a client that speaks `versions`; returns the version of the session.
fn greet(site: &Site, to: &Site, versions: (u16, u16)) -> Result<u16, Error> {
    let mut stream = raw::secure(site, to);
    raw::put(&mut stream, FrameKind::Control, &raw::hello(versions, SystemTime::now()))?;
    match raw::take(&mut stream)? {
        (FrameKind::Control, payload) => match decode("welcome", &payload)? {
            Control::Welcome(welcome) => {
                answers(&mut stream);
                Ok(welcome.version)
            }
            other => panic!("{other:?}"),
        },
        (FrameKind::Refusal, payload) => Err(decode("refusal", &payload)?),
        other => panic!("{other:?}"),
    }
}

fn answers(stream: &mut TlsStream) {
    let ask = Control::Request { id: 5, request: Request::Whoami };
    raw::put(stream, FrameKind::Control, &encode(&ask)).unwrap();
    let (_, payload) = raw::take(stream).unwrap();
    let reply = decode("reply", &payload).unwrap();
    assert!(matches!(reply, Control::Reply { id: 5, reply: Ok(Reply::Identity(_)) }), "{reply:?}");
}

#[test]
fn a_pop_serves_two_versions_and_says_who_must_be_updated() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    for (versions, agreed) in [((3, 3), 3), ((2, 3), 3), ((3, 4), 4), ((4, 4), 4), ((4, 9), 4)] {
        assert_eq!(greet(titech, kek, versions).unwrap(), agreed, "{versions:?}");
    }
    let user = raw::connect(titech, &raw::user(titech), kek).unwrap().welcome.principal;
    for (versions, cause) in [
        ((2, 2), format!("kek speaks wire 3 to 4, {user} wire 2: update renkei at {user}")),
        ((9, 9), format!("kek speaks wire 3 to 4, {user} wire 9: update renkei at kek")),
        ((4, 3), format!("kek speaks wire 3 to 4, {user} wire 4 to 3: {user} named no range")),
    ] {
        let error = greet(titech, kek, versions).unwrap_err();
        assert_eq!((error.code, error.side.as_str()), (Code::VersionMismatch, "kek"), "{error}");
        assert_eq!(error.cause, cause);
    }
}

/// A PoP that chooses `version`, and its card.
fn pop_of(version: u16) -> (SiteCard, SocketAddr) {
    let site = SiteName::parse("other").unwrap();
    let authority = Authority::create(&site, SystemTime::now()).unwrap();
    let (listener, host) = (TcpListener::bind("127.0.0.1:0").unwrap(), raw::issue_host(&authority));
    let address = listener.local_addr().unwrap();
    let card = SiteCard {
        site: site.clone(),
        endpoints: vec![address.to_string()],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    std::thread::spawn(move || {
        for sock in listener.incoming().map_while(Result::ok) {
            let config = server_config(&host).unwrap();
            let Ok(mut stream) = TlsStream::accept(sock, config, &[], raw::PATIENCE) else { continue };
            let welcome = Control::Welcome(Welcome {
                version,
                software: "test".into(),
                site: site.clone(),
                principal: "titech".into(),
                now_unix_ms: unix_ms(SystemTime::now()),
                crl: Vec::new(),
            });
            let _ = raw::take(&mut stream);
            let _ = raw::put(&mut stream, FrameKind::Control, &encode(&welcome));
            let _ = raw::take(&mut stream);
        }
    });
    (card, address)
}

#[test]
fn a_client_takes_what_the_pop_chose_or_says_who_must_be_updated() {
    let dir = tempfile::tempdir().unwrap();
    let titech = Site::start(dir.path(), "titech");
    let connect = |version| {
        let (card, _) = pop_of(version);
        raw::trust_card(&titech, &card);
        raw::dialler(&titech, &raw::user(&titech)).connect(&card.site)
    };
    assert_eq!(connect(3).unwrap().version(), WireVersion::V3);
    titech.ok(&["trust", "remove", "other"]);
    for (version, advice) in [(2, "update renkei at other"), (9, "update renkei at this side")] {
        let error = connect(version).map(|session| session.version()).unwrap_err();
        assert_eq!((error.code, error.side.as_str()), (Code::VersionMismatch, "client"), "{error}");
        assert!(error.cause.ends_with(advice), "{error}");
        titech.ok(&["trust", "remove", "other"]);
    }
}
