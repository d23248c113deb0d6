//! Where circuits of others may lead: a listener that is no PoP of the site hears nothing, and none inside is dialled.

use crate::federation::Site;
use crate::wire::raw;
use renkei_core::path::SiteName;
use renkei_core::wire::circuit::{preface, ticket};
use renkei_core::wire::message::{Reply, Request};
use renkei_mover::connect::dial::Session;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::trust::card::SiteCard;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

const WITHIN: Duration = Duration::from_secs(30);
const SECRET: &[u8] = b"POST /shutdown HTTP/1.0\r\n\r\n";

/// A service of the internal network that greets like SSH, and the bytes it received on each connection.
struct Inside {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Inside {
    fn start() -> Inside {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all: Arc<Mutex<Vec<Vec<u8>>>> = heard.clone();
        std::thread::spawn(move || {
            for sock in listener.incoming().map_while(Result::ok) {
                let number = {
                    let mut all = all.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                let all = all.clone();
                std::thread::spawn(move || listen(sock, &|bytes| all.lock().unwrap()[number].extend(bytes)));
            }
        });
        Inside { address, heard }
    }

    fn has_heard_the_secret(&self) -> bool {
        self.heard.lock().unwrap().iter().any(|heard| heard.windows(SECRET.len()).any(|part| part == SECRET))
    }
}

fn listen(mut sock: TcpStream, on_bytes: &dyn Fn(&[u8])) {
    sock.set_read_timeout(Some(WITHIN)).unwrap();
    let _ = sock.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
    let mut room = [0; 4096];
    while let Ok(count @ 1..) = sock.read(&mut room) {
        on_bytes(&room[..count]);
    }
}

/// A hub that relays circuits as a PoP in the field does, without permission for internal addresses.
fn hub(dir: &std::path::Path) -> Site {
    let mut hub = Site::start(dir, "hub");
    hub.environment = vec![("RENKEI_RELAY_PRIVATE", "")];
    hub.restart();
    hub
}

/// A site without a PoP that says to be at this address, and the authority for its names.
fn pretender(hub: &Site, address: SocketAddr) -> Authority {
    let site = SiteName::parse("evil").unwrap();
    let authority = Authority::create(&site, SystemTime::now()).unwrap();
    let card = SiteCard {
        site,
        endpoints: vec![address.to_string()],
        via: Vec::new(),
        authority: authority.certificate().clone(),
        handover: None,
        earlier: Vec::new(),
        revocation_list: None,
    };
    raw::trust_card(hub, &card);
    authority
}

/// Asks the hub for circuits to a site, and gives the first of them.
fn circuit(session: &mut Session, hub: &Site, to: &str, seed: u8) -> TcpStream {
    let site = SiteName::parse(to).unwrap();
    let seed = [seed; 32];
    assert_eq!(session.ask(Request::Through { site, seed, count: 2, further: 0 }), Ok(Reply::Done));
    let mut sock = TcpStream::connect(hub.address).unwrap();
    sock.set_read_timeout(Some(WITHIN)).unwrap();
    sock.write_all(&preface(&ticket(&seed, 0))).unwrap();
    sock
}

/// The bytes received on a circuit after sending these.
fn say(mut circuit: TcpStream, bytes: &[u8]) -> String {
    let mut answer = Vec::new();
    // Both ends may have gone.
    let _ = circuit.write_all(bytes).and_then(|()| circuit.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

fn await_logged(site: &Site, what: &str) {
    let begun = Instant::now();
    while !site.logged().contains(what) {
        assert!(begun.elapsed() < WITHIN, "{what} is not logged:\n{}", site.logged());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_card_cannot_point_a_relay_at_its_internal_network() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, inside) = (hub(dir.path()), Inside::start());
    let authority = pretender(&hub, inside.address);
    let user = raw::issue_user(&authority, "mallory", 1, SystemTime::now());
    let session = || raw::connect(&hub, &user, &hub).unwrap();

    let mut first = session();
    let answer = say(circuit(&mut first, &hub, "evil", 1), SECRET);
    assert_eq!(answer, "", "the service inside answered");
    await_logged(&hub, "RK-ROUTE-11");
    assert_eq!(inside.heard.lock().unwrap().len(), 0, "the service inside was dialled");

    // Even with the administrator's permission: the target is no PoP of that site.
    hub.ok(&["trust", "allow-private", "evil"]);
    let mut hub = hub;
    hub.restart();
    let mut second = raw::connect(&hub, &user, &hub).unwrap();
    let answer = say(circuit(&mut second, &hub, "evil", 2), SECRET);
    assert_eq!(answer, "", "the service inside answered");
    await_logged(&hub, "RK-ROUTE-10");
    assert!(!inside.has_heard_the_secret(), "the internal service received bytes through the relay");
}

#[test]
fn a_relay_dials_only_the_pop_of_the_named_site() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, right) = (Site::start(dir.path(), "hub"), Site::start(dir.path(), "right"));
    // The reply of a PoP to garbage, once a circuit leads to it.
    let (nonsense, refused) = (&b"RENKEI-CIRCUS/1\n"[..], "RK-WIRE-5");
    let authority = pretender(&hub, right.address);
    let user = raw::issue_user(&authority, "mallory", 1, SystemTime::now());
    let mut session = raw::connect(&hub, &user, &hub).unwrap();
    assert_eq!(say(circuit(&mut session, &hub, "evil", 1), nonsense), "", "it is not evil's");
    await_logged(&hub, "RK-ROUTE-10");
    hub.take_card(&right);
    let mut session = raw::connect(&hub, &user, &hub).unwrap();
    let answer = say(circuit(&mut session, &hub, "right", 2), nonsense);
    assert!(answer.contains(refused), "{answer}\n{}", hub.logged());
}

#[test]
fn changes_in_a_card_need_confirmation() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, right) = (Site::start(dir.path(), "hub"), Site::start(dir.path(), "right"));
    hub.take_card(&right);
    let card = right.ok(&["trust", "export"]);
    let moved = dir.path().join("moved.card");
    std::fs::write(&moved, card.replace(&right.address.to_string(), "pop.example.org:7512")).unwrap();
    let said = hub.renkei(&["trust", "add", moved.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && text.contains("pop.example.org:7512"), "{text}");
    assert!(text.contains(&format!("{} till now", right.address)) && text.contains("--yes"), "{text}");
    assert!(hub.ok(&["trust", "list"]).contains(&right.address.to_string()), "nothing was changed");
    hub.ok(&["trust", "add", "--yes", moved.to_str().unwrap()]);
    assert!(hub.ok(&["trust", "list"]).contains("pop.example.org:7512"));
    assert_eq!(hub.renkei(&["trust", "allow-private", "nowhere"]).status.code(), Some(3));
}
