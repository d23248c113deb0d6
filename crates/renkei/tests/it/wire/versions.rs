//! Sites of neighbouring versions of the wire: a session has the newest common one, and without one both sides learn
//! which of them must be updated.

use crate::federation::{Federation, Site};
use crate::queue::buffer::give_buffer;
use crate::queue::{detach, ended, why};
use crate::wire::raw;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::copy::CopySender;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{Control, Reply, Request, Welcome};
use renkei_core::wire::{WireVersion, decode, encode};
use renkei_mover::connect::dial::DialHints;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::tls::server_config;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::tls::TlsStream;
use renkei_net::unix_ms;
use std::net::TcpListener;
use std::path::PathBuf;
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
fn a_pop_serves_two_versions_and_names_the_side_to_update() {
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

/// The card of a PoP that chooses `version`, skips optional frames, and refuses each request with its name.
fn pop_of(version: u16) -> SiteCard {
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
            while let Ok((kind, payload)) = raw::take(&mut stream) {
                if let (FrameKind::Control, Ok(Control::Request { id, request })) =
                    (kind, decode("request", &payload))
                {
                    let reply = Err(Error::new(Code::NotAllowed, "answer", "", format!("{request:?}")));
                    let _ = raw::put(&mut stream, FrameKind::Control, &encode(&Control::Reply { id, reply }));
                }
            }
        }
    });
    card
}

#[test]
fn a_client_accepts_the_chosen_version_or_names_the_side_to_update() {
    let dir = tempfile::tempdir().unwrap();
    let titech = Site::start(dir.path(), "titech");
    let connect = |version| {
        let card = pop_of(version);
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

#[test]
fn a_pop_of_wire_3_gets_requests_of_wire_3() {
    let dir = tempfile::tempdir().unwrap();
    let titech = Site::start(dir.path(), "titech");
    let asked = |version| {
        let card = pop_of(version);
        raw::trust_card(&titech, &card);
        let copy = raw::open_copy("/data/in");
        let request = Some(Request::OpenCopy { copy: copy.clone(), by: CopySender::Asker });
        let ahead = DialHints { request, ..DialHints::default() };
        let dialler = raw::dialler(&titech, &raw::user(&titech));
        let mut session = dialler.connect_ahead(&card.site, &ahead).unwrap();
        let refused = session.open_copy(&copy, |_| Ok(())).unwrap_err();
        titech.ok(&["trust", "remove", "other"]);
        refused.cause
    };
    let open = raw::open_copy("/data/in").open_found(None).unwrap();
    assert_eq!(asked(3), format!("{:?}", Request::OpenFound(open)));
}

/// The program of wire 3 to be tested with, a build of an earlier release.
fn program_of_wire_3() -> Option<PathBuf> {
    let named = std::env::var_os("RENKEI_WIRE3_BINARY");
    if named.is_none() {
        eprintln!("skipped: RENKEI_WIRE3_BINARY names no program of wire 3");
    }
    named.map(PathBuf::from)
}

/// Copies in all directions between an old and a new site, by the user of one.
fn copy_in_all_directions(by: &Site, other: &Site) {
    let mark = |what: &str| format!("{what}-by-{}", by.name);
    let scratch = by.dir().join("scratch");
    std::fs::create_dir_all(scratch.join("run/sub")).unwrap();
    std::fs::write(scratch.join("run/sub/f"), mark("f")).unwrap();
    std::fs::write(scratch.join("g"), mark("g")).unwrap();
    let [run, g] = ["run", "g"].map(|name| scratch.join(name).to_str().unwrap().to_owned());
    let at = |site: &Site, name: &str| std::fs::read_to_string(site.root().join(name)).unwrap();
    let new = mark("new");
    // Up: becomes a new name, goes into a directory, and into one that is made.
    by.ok(&["cp", "-r", &run, &other.place(&new)]);
    by.ok(&["cp", "-r", &run, &other.place(&new)]);
    by.ok(&["cp", &g, &other.place(&format!("{}/", mark("made")))]);
    by.ok(&["sync", &run, &other.place(&mark("synced"))]);
    for name in [format!("{new}/sub/f"), format!("{new}/run/sub/f"), format!("{}/sub/f", mark("synced"))] {
        assert_eq!(at(other, &name), mark("f"));
    }
    assert_eq!(at(other, &format!("{}/g", mark("made"))), mark("g"));
    // Down.
    let down = scratch.join("down");
    by.ok(&["cp", "-r", &other.place(&new), down.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(down.join("sub/f")).unwrap(), mark("f"));
    // Between: from the own site, to it, and within the other one.
    by.ok(&["cp", "-r", &other.place(&new), &by.place(&mark("back"))]);
    by.ok(&["cp", "-r", &by.place(&mark("back")), &other.place(&mark("pushed"))]);
    by.ok(&["cp", "-r", &other.place(&new), &other.place(&mark("twin"))]);
    assert_eq!(at(by, &format!("{}/sub/f", mark("back"))), mark("f"));
    assert_eq!(at(other, &format!("{}/sub/f", mark("pushed"))), mark("f"));
    assert_eq!(at(other, &format!("{}/sub/f", mark("twin"))), mark("f"));
    let itself = by.renkei(&["cp", "-r", &other.place(&new), &other.place(&format!("{new}/sub"))]);
    assert!(String::from_utf8_lossy(&itself.stderr).contains("RK-MOVE-13"), "{itself:?}");
    // Others.
    assert_eq!(by.ok(&["cat", &other.place(&format!("{new}/sub/f"))]), mark("f"));
    // Queued: to the other site, from it, within it, and from this machine; a new name, a directory, one that is made.
    let [queued, made] = [mark("queued"), format!("{}/", mark("made-later"))];
    for (from, to, name) in [
        (by.place(&mark("back")), other.place(&queued), format!("{queued}/sub/f")),
        (by.place(&mark("back")), other.place(&queued), format!("{queued}/back-by-{}/sub/f", by.name)),
        (other.place(&new), other.place(&made), format!("{made}{new}/sub/f")),
        (run, other.place(&made), format!("{made}run/sub/f")),
    ] {
        queue_and_wait(by, &["-r", &from, &to]);
        assert_eq!(at(other, &name), mark("f"));
    }
    queue_and_wait(by, &["-r", "--verify", "both", &other.place(&new), &by.place(&queued)]);
    assert_eq!(at(by, &format!("{queued}/sub/f")), mark("f"));
    let id = detach(by, &["-r", &by.place(&queued), &other.place(&format!("{new}/sub/f"))]);
    assert_ne!(ended(by, &id), 0, "{:#}", why(by, &id));
}

fn queue_and_wait(by: &Site, arguments: &[&str]) {
    let id = detach(by, arguments);
    assert_eq!(ended(by, &id), 0, "{:#}", why(by, &id));
}

#[test]
fn sites_of_wire_3_and_wire_4_copy_in_all_directions() {
    let Some(old) = program_of_wire_3() else { return };
    let mut federation = Federation::two();
    federation.kek.program = Some(old);
    let Federation { titech, kek, .. } = &mut federation;
    [&mut *titech, &mut *kek].into_iter().for_each(|site| give_buffer(site, "size_mib = 64"));
    copy_in_all_directions(titech, kek);
    copy_in_all_directions(kek, titech);
    assert!(!titech.logged().contains("violated"), "{}", titech.logged());
    assert!(!kek.logged().contains("violated"), "{}", kek.logged());
}

#[test]
fn transfers_that_a_program_of_wire_3_queued_go_on() {
    let Some(old) = program_of_wire_3() else { return };
    let mut federation = Federation::two();
    federation.titech.program = Some(old);
    federation.titech.restart();
    let Federation { titech, kek, .. } = &mut federation;
    std::fs::create_dir_all(titech.root().join("run/sub")).unwrap();
    std::fs::write(titech.root().join("run/sub/f"), "content").unwrap();
    kek.stop();
    let (id, tmp) = ("ab".repeat(16), kek.place("filtered/"));
    let named = ["--id", &id, "-r", &titech.place("run"), &kek.place("new")];
    detach(titech, &named);
    let filtered = detach(titech, &["-r", "--exclude", "f", &titech.place("run"), &tmp]);
    titech.program = None;
    titech.restart();
    assert_eq!(detach(titech, &named), id, "the same command is the same transfer");
    kek.restart();
    for queued in [&id, &filtered] {
        titech.ok(&["retry", queued]);
        assert_eq!(ended(titech, queued), 0, "{:#}", why(titech, queued));
    }
    assert_eq!(std::fs::read_to_string(kek.root().join("new/sub/f")).unwrap(), "content");
    assert!(kek.root().join("filtered/run/sub").exists() && !kek.root().join("filtered/run/sub/f").exists());
}
