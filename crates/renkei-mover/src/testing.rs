//! Connections for tests of the two ends of a session, here and in crates above.
#![allow(clippy::unwrap_used)] // a fixture that cannot be made fails the test

use renkei_core::path::SiteName;
#[cfg(test)]
use renkei_net::identity::account::Account;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::{Credential, generate_key};
use renkei_net::identity::tls::{client_config, server_config, server_name};
use renkei_net::tls::TlsStream;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Silence timeout of a peer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Both ends of `count` connections on the loopback interface.
pub fn connections(count: usize) -> Vec<(TlsStream, TlsStream)> {
    let site = SiteName::parse("kek").unwrap();
    let authority = Authority::create(&site, SystemTime::now()).unwrap();
    let key = generate_key().unwrap();
    let issued = authority.issue_host(&key, &["127.0.0.1".into()], SystemTime::now()).unwrap();
    let host = Credential::parse(&issued.pem, &key.serialize_pem(), Path::new("test")).unwrap();
    let (client, server) = (client_config(&host).unwrap(), server_config(&host).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |_| {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let server = server.clone();
        let far = std::thread::spawn(move || TlsStream::accept(far, server, &[], PATIENCE).unwrap());
        let near = TlsStream::connect(near, client.clone(), server_name(&site), PATIENCE).unwrap();
        (near, far.join().unwrap())
    };
    (0..count).map(connect).collect()
}

/// An account that no thread can assume: it has more groups than the kernel allows, and a uid other than the
/// process's.
#[cfg(test)]
pub(crate) fn unusable_account() -> Account {
    let own = Account::own().unwrap();
    Account { uid: own.uid + 1, groups: vec![1; 70_000], ..own }
}
