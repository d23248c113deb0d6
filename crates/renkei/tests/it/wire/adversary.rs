//! Trusted sites that became hostile, speaking the wire by hand: a home with an impossible log, a follower with a write
//! grant, certificates with too many names.
//!
//! After each the PoP that was attacked is the same process, lean, answers at once, and has nothing outside its volumes.

use crate::federation::{Federation, Site, account};
use crate::identity::safety::foreign_name;
use crate::wire::hostile::{fetch, memory};
use crate::wire::raw;
use renkei_core::entry::FileTime;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::page::{Extent, Page, Reached};
use renkei_core::namespace::{
    Attributes, Change, Content, Delta, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT, Record,
    SequencedChange,
};
use renkei_core::path::SiteName;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{Control, Reply, Request, Welcome};
use renkei_core::wire::volume::{AboutVolume, Duties, VolumeReply};
use renkei_core::wire::{VERSIONS, decode, encode};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::tls::server_config;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::tls::TlsStream;
use renkei_net::unix_ms;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

const WITHIN: Duration = Duration::from_secs(30);
/// Time for a PoP to process a hostile log.
const EXPOSED: Duration = Duration::from_secs(3);
/// Additional memory of a PoP after all this, in MiB.
const MAX_GAIN_MIB: u64 = 400;

// ---- a home ----------------------------------------------------------------------------------------------------------

/// The replies of a hostile home about its volumes, by their names.
const LIES: [&str; 9] = ["climbing", "circle", "merged", "twins", "top", "endless", "gaps", "huge", "pages"];

fn attributes(mode: u32) -> Attributes {
    Attributes { mode, owner: "root".into(), group: "root".into(), mtime: FileTime { secs: 1, nanos: 0 } }
}

fn node(kind: Kind) -> Option<Node> {
    Some(Node { kind, attributes: attributes(0o6755), links: 2, changed: 1 })
}

fn dir(parent: u64) -> Option<Node> {
    node(Kind::Dir { names: 2, parent: NodeId(parent) })
}

fn file(size: u64) -> Option<Node> {
    node(Kind::File(Content { version: 1, by: (Origin(0), 1), size, digest: Some([7; 32]) }))
}

fn named(dir: u64, name: &str, id: u64) -> (Dentry, Option<NodeId>) {
    (Dentry { dir: NodeId(dir), name: name.into() }, Some(NodeId(id)))
}

fn record(seq: u64, nodes: Vec<(u64, Option<Node>)>, names: Vec<(Dentry, Option<NodeId>)>) -> Record {
    let nodes = nodes.into_iter().map(|(id, node)| (NodeId(id), node)).collect();
    Record { seq, origin: Origin(0), number: seq, outcome: Ok(Delta { nodes, names }) }
}

/// The log of a volume, and the number that its end is said to have.
fn log(volume: &str) -> (Vec<Record>, u64) {
    let top = ROOT.0;
    let records = match volume {
        "climbing" => ["../../../escaped", "..", "/escaped", "a/../../escaped"]
            .iter()
            .zip(1..)
            .map(|(name, seq)| record(seq, vec![(seq + 5, file(5))], vec![named(top, name, seq + 5)]))
            .collect(),
        // Each in the other, and seen from the top.
        "circle" => vec![
            record(1, vec![(5, dir(6)), (6, dir(5)), (7, file(5))], Vec::new()),
            record(
                2,
                Vec::new(),
                vec![named(top, "a", 5), named(5, "b", 6), named(6, "a", 5), named(6, "f", 7)],
            ),
            record(3, vec![(5, dir(6))], vec![named(5, "c", 7)]),
        ],
        "merged" => {
            let merged = |into| node(Kind::Merged { into: NodeId(into) });
            vec![
                record(1, vec![(5, dir(top)), (8, file(1))], vec![named(top, "a", 5), named(5, "f", 8)]),
                record(2, vec![(5, merged(6)), (6, merged(5))], vec![named(top, "b", 6), named(6, "f", 8)]),
            ]
        }
        "twins" => vec![
            record(1, vec![(5, dir(5)), (7, file(5))], Vec::new()),
            record(
                2,
                Vec::new(),
                vec![named(top, "s", 5), named(5, "x", 5), named(5, "y", 5), named(5, "f", 7)],
            ),
        ],
        "top" => vec![
            record(1, vec![(top, file(5))], vec![named(top, "top", top)]),
            record(2, vec![(top, None)], Vec::new()),
        ],
        "gaps" => vec![record(u64::MAX - 1, vec![(5, file(u64::MAX))], vec![named(top, "f", 5)])],
        "huge" => (1..=4)
            .map(|seq| {
                let mut large = file(u64::MAX).unwrap();
                large.attributes.owner = "x".repeat(300 << 10);
                record(seq, vec![(seq + 5, Some(large))], vec![named(top, &format!("f{seq}"), seq + 5)])
            })
            .collect(),
        _ => Vec::new(),
    };
    let last = if volume == "endless" { u64::MAX } else { records.len() as u64 };
    (records, last)
}

fn volume_id(name: &str) -> [u8; 16] {
    *blake3::hash(name.as_bytes()).as_bytes().first_chunk().unwrap()
}

fn page(volume: &str, after: Option<Reached>) -> Page {
    let top = Node { links: 2, ..dir(ROOT.0).unwrap() };
    // An end that never comes, or the whole of an empty tree.
    let next = (volume == "pages").then_some(Reached::Nodes);
    Page { after, extent: Extent::default(), until: 0, nodes: vec![(ROOT, top)], names: Vec::new(), next }
}

fn lie(about: AboutVolume) -> Result<VolumeReply, Error> {
    let name_of = |id| LIES.into_iter().find(|name| volume_id(name) == id).unwrap_or_default();
    Ok(match about {
        AboutVolume::Follow(name) => {
            VolumeReply::Followed { volume: volume_id(&name), origin: Origin(1), writes: true }
        }
        AboutVolume::Page { volume, after } => VolumeReply::Page(Box::new(page(name_of(volume), after))),
        AboutVolume::Log { volume, after, .. } => {
            let (records, last) = log(name_of(volume));
            let records: Vec<Record> = records.into_iter().filter(|record| record.seq > after).collect();
            if records.is_empty() {
                std::thread::sleep(Duration::from_millis(20));
            }
            VolumeReply::Records { records, last }
        }
        AboutVolume::Duties { .. } => VolumeReply::Duties(Duties::default()),
        _ => return Err(Error::new(Code::NotAllowed, "answer", "evil", "no")),
    })
}

/// Speaks as a PoP to one that came, until it goes.
fn answer_one(sock: TcpStream, credential: &Credential) -> Result<(), Error> {
    let mut stream = TlsStream::accept(sock, server_config(credential)?, &[], WITHIN)?;
    loop {
        let (FrameKind::Control, payload) = raw::take(&mut stream)? else { continue };
        let said = match decode("control", &payload)? {
            Control::Hello(_) => Control::Welcome(Welcome {
                version: *VERSIONS.end(),
                software: "evil".into(),
                site: SiteName::parse("evil")?,
                principal: "titech".into(),
                now_unix_ms: unix_ms(SystemTime::now()),
                crl: Vec::new(),
            }),
            Control::Request { id, request: Request::Volume(about) } => {
                Control::Reply { id, reply: lie(about).map(Reply::Volume) }
            }
            Control::Request { id, .. } => {
                Control::Reply { id, reply: Err(Error::new(Code::NotAllowed, "answer", "evil", "no")) }
            }
            _ => continue,
        };
        raw::put(&mut stream, FrameKind::Control, &encode(&said))?;
    }
}

/// A site with a hostile PoP, and its address.
fn evil() -> (SiteCard, Authority, SocketAddr) {
    let site = SiteName::parse("evil").unwrap();
    let authority = Authority::create(&site, SystemTime::now()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, credential) = (listener.local_addr().unwrap(), raw::issue_host(&authority));
    std::thread::spawn(move || {
        for sock in listener.incoming().map_while(Result::ok) {
            let credential = credential.clone();
            std::thread::spawn(move || answer_one(sock, &credential));
        }
    });
    let card = SiteCard {
        site,
        endpoints: vec![address.to_string()],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    (card, authority, address)
}

/// A process that is ended when it is no longer needed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command of the site's user that may take for ever.
fn start(site: &Site, arguments: &[&str]) -> Running {
    Running(site.command().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// The PoP is the same process, with little memory, and serves at once.
fn assert_unharmed(site: &Site, (pid, before): (u32, u64), after: &str) {
    let begun = Instant::now();
    let file = site.root().join("good");
    fs::write(&file, "good").unwrap();
    assert_eq!(site.ok(&["cat", &site.place("good")]), "good", "after {after}");
    assert!(begun.elapsed() < WITHIN, "after {after} it takes {:?}", begun.elapsed());
    assert_eq!(site.pid(), pid);
    let gain = memory(site).saturating_sub(before);
    assert!(gain < MAX_GAIN_MIB, "after {after} it has {gain} MiB more");
    assert!(!site.logged().contains("panicked"), "after {after}:\n{}", site.logged());
}

#[test]
fn a_lying_home_harms_only_its_own_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let titech = Site::start(dir.path(), "titech");
    let (card, ..) = evil();
    raw::trust_card(&titech, &card);
    let before = (titech.pid(), memory(&titech));
    for volume in LIES {
        let with = ["--from", "evil", "--storage", "data", "--account", &account(), "--hold", "--no-wait"];
        titech.ok(&[&["volume", "subscribe", volume], &with[..]].concat());
        titech.ok(&["volume", "grant", volume, "*@titech", "write"]);
        let place = format!("/{volume}");
        let (a, sub) = (format!("{place}/a"), format!("{place}/s/x/y"));
        let file = titech.root().join("good");
        fs::write(&file, "good").unwrap();
        let into = format!("{place}/a/new");
        let busy = [
            start(&titech, &["ls", "-l", &place]),
            start(&titech, &["ls", &a]),
            start(&titech, &["ls", &sub]),
            start(&titech, &["find", &place]),
            start(&titech, &["cp", file.to_str().unwrap(), &into]),
            start(&titech, &["mv", &a, &format!("{place}/a/b/c")]),
            start(&titech, &["where", &place]),
        ];
        std::thread::sleep(EXPOSED);
        drop(busy);
        assert_unharmed(&titech, before, volume);
    }
    let around: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(around.iter().all(|name| !name.to_string_lossy().contains("escaped")), "{around:?}");
    assert!(!titech.root().join("escaped").exists());
    for volume in LIES {
        // Changes may wait that such a home never takes.
        if !titech.renkei(&["volume", "unsubscribe", volume]).status.success() {
            titech.ok(&["volume", "unsubscribe", "--abandon", volume]);
        }
    }
    assert_unharmed(&titech, before, "all of them");
}

// ---- a follower ------------------------------------------------------------------------------------------------------

fn make(id: NodeId, dir: NodeId, name: &str, kind: NewKind, mode: u32) -> Change {
    let at = Dentry { dir, name: Name(name.as_bytes().to_vec()) };
    Change::Make { id, at, kind, attributes: attributes(mode), keep_both: false }
}

#[test]
fn a_follower_with_a_write_grant_changes_only_the_volume() {
    let federation = Federation::two();
    let kek = &federation.kek;
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    let (card, authority, _) = evil();
    raw::trust_card(kek, &card);
    kek.ok(&["volume", "grant", "genome", "evil", "write"]);
    let before = (kek.pid(), memory(kek));
    let host = raw::issue_host(&authority);
    let ask = |about: AboutVolume| -> Result<VolumeReply, Error> {
        match raw::connect(kek, &host, kek)?.ask(Request::Volume(about))? {
            Reply::Volume(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    };
    let VolumeReply::Followed { volume, origin, writes } = ask(AboutVolume::Follow("genome".into())).unwrap()
    else {
        panic!("it may follow")
    };
    assert!(writes);
    let submit = |number: u64, origin: Origin, change: Change| {
        ask(AboutVolume::Submit { volume, changes: vec![SequencedChange { origin, number, change }] })
    };
    let mut number = 0;
    let mut next = || {
        number += 1;
        (number, origin.id(number))
    };
    // Names that lead elsewhere are not even read.
    for name in ["../escaped", "..", "/escaped", "a/b", ""] {
        let refused = submit(1, origin, make(origin.id(1), ROOT, name, NewKind::File, 0o644));
        assert!(refused.is_err(), "{name}: {refused:?}");
    }
    // Nor may it speak for another one.
    let refused = submit(1, Origin(origin.0 + 1), make(origin.id(1), ROOT, "other", NewKind::File, 0o644));
    assert!(refused.is_err(), "{refused:?}");
    // A program with set-id bits, and a link out of the volume with something to be made behind it.
    let (first, tool) = next();
    submit(first, origin, make(tool, ROOT, "tool", NewKind::File, 0o6755)).unwrap();
    let (second, link) = next();
    submit(second, origin, make(link, ROOT, "out", NewKind::Symlink(b"..".to_vec()), 0o777)).unwrap();
    let (third, behind) = next();
    submit(third, origin, make(behind, link, "escaped", NewKind::File, 0o644)).unwrap();
    // The root itself, and a number of the home's, another site's or no site's range: the last one of a range would make the
    // owning site restart with the first.
    let others = [Origin(0).id((1 << 47) - 1), Origin(origin.0 + 1).id(1), Origin::HOME.id(1)];
    for id in [ROOT, NodeId(0), NodeId(u64::MAX)].into_iter().chain(others) {
        let refused = submit(third + 1, origin, make(id, ROOT, "other", NewKind::Dir, 0o755));
        assert!(refused.is_err(), "{id:?}: {refused:?}");
    }
    // Directories one in the other.
    let ((a, first_dir), (b, second_dir)) = (next(), next());
    submit(a, origin, make(first_dir, ROOT, "d1", NewKind::Dir, 0o755)).unwrap();
    submit(b, origin, make(second_dir, first_dir, "d2", NewKind::Dir, 0o755)).unwrap();
    let (number, _) = next();
    let spot = |dir, name: &str| Dentry { dir, name: name.into() };
    let (from, to) = (spot(ROOT, "d1"), spot(second_dir, "d1"));
    let rename = Change::Rename { from, to, replace: true, seen: None, time: FileTime::default() };
    submit(number, origin, rename).unwrap();
    let placed = kek.root().join("genome/tool");
    let begun = Instant::now();
    while !placed.exists() {
        assert!(begun.elapsed() < WITHIN, "{}", kek.logged());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(placed.metadata().unwrap().permissions().mode() & 0o6000, 0, "set-id bits of a stranger");
    assert!(kek.root().join("genome/d1/d2").is_dir(), "no circle");
    assert!(!kek.root().join("escaped").exists() && !kek.root().parent().unwrap().join("escaped").exists());
    kek.ok(&["volume", "check", "genome"]);
    assert_unharmed(kek, before, "a hostile follower");
}

// ---- certificates and heads ------------------------------------------------------------------------------------------

#[test]
fn a_certificate_with_two_names_is_refused() {
    let federation = Federation::two();
    let Federation { kek, .. } = &federation;
    let own = format!("renkei://titech/user/{}", account());
    for names in [
        &["renkei://cern/user/alice", "renkei://cern/user/bob"][..],
        &["renkei://cern/user/alice", &own],
        &[&own, "renkei://cern/user/alice"],
        &["renkei://cern/user/alice", "renkei://cern/pop"],
        &[],
    ] {
        let (card, credential) = foreign_name(names);
        let _ = kek.renkei(&["trust", "remove", "cern"]);
        raw::trust_card(kek, &card);
        kek.ok(&["map", "add", "--yes", "*@cern", &account()]);
        let code = raw::refusal_of(&credential, kek).code;
        assert!(
            matches!(code, Code::BadCertificate | Code::ForeignName | Code::UnknownAuthority),
            "{names:?}: {code}"
        );
        kek.ok(&["map", "remove", "*@cern"]);
    }
}

#[test]
fn long_request_heads_are_refused() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let before = (kek.pid(), memory(kek));
    for _ in 0..20 {
        let (_, said) = fetch(kek, b"http/1.1", &format!("/{}", "a".repeat(2 << 20)));
        let status = said.lines().next().unwrap_or_default();
        assert!(said.is_empty() || status.contains(" 4"), "{status}");
        let lines: String = (0..2000).map(|number| format!("X-{number}: {}\r\n", "b".repeat(500))).collect();
        let (_, said) = fetch(kek, b"http/1.1", &format!("/ HTTP/1.1\r\n{lines}X: "));
        let status = said.lines().next().unwrap_or_default();
        assert!(said.is_empty() || status.contains(" 4"), "{status}");
    }
    assert_unharmed(kek, before, "long heads");
}
