//! The record layer of data streams against rustls' own, and against forbidden records.

use crate::tree::noise;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::{Credential, generate_key};
use renkei_net::identity::tls::{client_config, provider, server_config, server_name};
use renkei_net::tls::TlsStream;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ConfigSide, ConnectionTrafficSecrets,
    DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme, StreamOwned,
    SupportedCipherSuite, WantsVerifier,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const PATIENCE: Duration = Duration::from_secs(20);
/// Sealed with few records under one key, so that keys change often.
const RECORDS_PER_KEY: u64 = 7;

struct Site {
    name: SiteName,
    host: Credential,
}

impl Site {
    fn new() -> Self {
        let name = SiteName::parse("kek").unwrap();
        let authority = Authority::create(&name, SystemTime::now()).unwrap();
        let key = generate_key().unwrap();
        let issued = authority.issue_host(&key, &[], SystemTime::now()).unwrap();
        let host = Credential::parse(&issued.pem, &key.serialize_pem(), Path::new("test")).unwrap();
        Site { name, host }
    }

    fn accept(&self, sock: TcpStream) -> TlsStream {
        TlsStream::accept(sock, server_config(&self.host).unwrap(), &[], PATIENCE).unwrap()
    }

    fn connect(&self, sock: TcpStream) -> TlsStream {
        let config = client_config(&self.host).unwrap();
        TlsStream::connect(sock, config, server_name(&self.name), PATIENCE).unwrap()
    }

    /// Both ends with the record layer of data streams.
    fn connection(&self) -> (TlsStream, TlsStream) {
        let (near, far) = sockets();
        std::thread::scope(|scope| {
            let far = scope.spawn(|| self.accept(far).with_own_records().unwrap());
            (self.connect(near).with_own_records().unwrap(), far.join().unwrap())
        })
    }

    /// rustls as it comes, as the dialling side.
    fn plain_client(&self, suite: Option<SupportedCipherSuite>, fragment: Option<usize>) -> ClientConnection {
        let builder = with_suite(ClientConfig::builder_with_provider, suite).dangerous();
        let builder = builder.with_custom_certificate_verifier(Arc::new(TrustsAll));
        let (chain, key) = (self.host.chain.clone(), self.host.key.clone_key());
        let mut config = builder.with_client_auth_cert(chain, key).unwrap();
        config.alpn_protocols = vec![renkei_core::wire::ALPN.to_vec()];
        config.max_fragment_size = fragment;
        config.enable_secret_extraction = true;
        ClientConnection::new(Arc::new(config), server_name(&self.name)).unwrap()
    }

    /// rustls as it comes, as the dialled side.
    fn plain_server(&self, suite: SupportedCipherSuite, fragment: Option<usize>) -> ServerConnection {
        let builder = with_suite(ServerConfig::builder_with_provider, Some(suite)).with_no_client_auth();
        let (chain, key) = (self.host.chain.clone(), self.host.key.clone_key());
        let mut config = builder.with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![renkei_core::wire::ALPN.to_vec()];
        config.max_fragment_size = fragment;
        ServerConnection::new(Arc::new(config)).unwrap()
    }
}

fn with_suite<S: ConfigSide>(
    start: fn(Arc<rustls::crypto::CryptoProvider>) -> ConfigBuilder<S, rustls::WantsVersions>,
    suite: Option<SupportedCipherSuite>,
) -> ConfigBuilder<S, WantsVerifier> {
    let mut provider = (*provider()).clone();
    if let Some(suite) = suite {
        provider.cipher_suites = vec![suite];
    }
    start(Arc::new(provider)).with_protocol_versions(&[&TLS13]).unwrap()
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    for sock in [&near, &far] {
        sock.set_read_timeout(Some(PATIENCE)).unwrap();
        sock.set_nodelay(true).unwrap();
    }
    (near, far)
}

/// Accepts every certificate, as a user who dismisses a browser's warning.
#[derive(Debug)]
pub struct TrustsAll;

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        unreachable!("TLS 1.3 only")
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Parts of many sizes: nothing, a byte, around a record's end, and more than one write.
fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut rest = bytes;
    let sizes = [1, 5, 13, 16383, 16384, 16385, 0, 40_000, 300_000, 777, 2].into_iter().cycle();
    let mut parts = Vec::new();
    for size in sizes {
        let (part, after) = rest.split_at(size.min(rest.len()));
        parts.push(part);
        rest = after;
        if rest.is_empty() {
            return parts;
        }
    }
    parts
}

/// Reads `length` bytes in parts of many sizes, by both ways of reading.
fn read_back(stream: &mut TlsStream, length: usize) -> Vec<u8> {
    let mut all = vec![0; length + 1];
    let mut at = 0;
    for (index, part) in parts(&vec![0; length]).into_iter().map(<[u8]>::len).enumerate() {
        match index % 3 {
            0 => stream.read_exact(&mut all[at..at + part]).unwrap(),
            _ => stream.read_exact_before_last(&mut all[at..=at + part]).unwrap(),
        }
        at += part;
    }
    all.truncate(length);
    all
}

fn write_parts(stream: &mut TlsStream, bytes: &[u8]) {
    for (index, part) in parts(bytes).into_iter().enumerate() {
        if index % 2 == 0 { stream.queue(part).unwrap() } else { stream.write_all(part).unwrap() }
    }
    stream.flush().unwrap();
}

#[test]
fn both_own_ends_interoperate_with_and_without_key_updates() {
    let site = Site::new();
    for renewed in [false, true] {
        let (mut near, mut far) = site.connection();
        if renewed {
            near.renew_key_after(RECORDS_PER_KEY);
            far.renew_key_after(1);
        }
        let (there, back) = (noise(1, 3_000_000), noise(2, 1_000_000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                write_parts(&mut near, &there);
                assert!(read_back(&mut near, back.len()) == back);
            });
            assert!(read_back(&mut far, there.len()) == there);
            write_parts(&mut far, &back);
        });
    }
}

#[test]
fn each_own_end_interoperates_with_rustls() {
    let site = Site::new();
    let suites = &provider().cipher_suites;
    assert_eq!(suites.len(), 3);
    for suite in suites {
        for fragment in [None, Some(1000)] {
            let (near, far) = sockets();
            std::thread::scope(|scope| {
                let ours = scope.spawn(|| converse(site.accept(far)));
                answer(StreamOwned::new(site.plain_client(Some(*suite), fragment), near));
                ours.join().unwrap();
            });
            let (near, far) = sockets();
            std::thread::scope(|scope| {
                let ours = scope.spawn(|| converse(site.connect(far)));
                answer(StreamOwned::new(site.plain_server(*suite, fragment), near));
                ours.join().unwrap();
            });
        }
    }
}

/// Our end: sends, with new keys often, and receives until the other closes.
fn converse(stream: TlsStream) {
    let mut stream = stream.with_own_records().unwrap();
    stream.renew_key_after(RECORDS_PER_KEY);
    let sent = noise(3, 700_000);
    write_parts(&mut stream, &sent);
    // Twice: before and after the other end changed its key and asked for ours.
    for _ in 0..2 {
        assert!(read_back(&mut stream, sent.len()) == sent);
        write_parts(&mut stream, &sent);
    }
    let ended = stream.read_exact(&mut [0]).unwrap_err();
    assert_eq!((ended.code, ended.cause.as_str()), (Code::ConnectionLost, "closed by the peer"));
}

/// The end with rustls' records: returns the received bytes.
fn answer<C, S>(mut stream: StreamOwned<C, TcpStream>)
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<S>>,
    S: rustls::SideData,
{
    let mut bytes = vec![0; 700_000];
    for round in 0..3 {
        stream.read_exact(&mut bytes).unwrap();
        if round < 2 {
            stream.write_all(&bytes).unwrap();
            stream.conn.refresh_traffic_keys().unwrap();
        }
    }
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let _ = stream.sock.shutdown(std::net::Shutdown::Write);
    // Until the other end has seen it.
    let _ = stream.read(&mut bytes);
}

/// Runs a handshake by hand up to the message that ends it, which is not sent yet.
fn last_flight(client: &mut ClientConnection, sock: &mut TcpStream) -> Vec<u8> {
    client.write_tls(sock).unwrap();
    while client.is_handshaking() {
        client.read_tls(sock).unwrap();
        client.process_new_packets().unwrap();
    }
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight).unwrap();
    }
    flight
}

#[test]
fn data_after_the_handshake_in_one_read_is_not_lost() {
    let site = Site::new();
    let (mut near, far) = sockets();
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| site.accept(far).with_own_records().unwrap());
        let mut client = site.plain_client(None, None);
        let mut bytes = last_flight(&mut client, &mut near);
        let content = noise(4, 50_000);
        client.writer().write_all(&content).unwrap();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        // All but the end of the last record in one piece.
        let (first, last) = bytes.split_at(bytes.len() - 100);
        near.write_all(first).unwrap();
        let mut ours = ours.join().unwrap();
        let mut start = vec![0; 20_000];
        ours.read_exact(&mut start).unwrap();
        near.write_all(last).unwrap();
        let mut rest = vec![0; content.len() - start.len()];
        ours.read_exact(&mut rest).unwrap();
        assert!([start, rest].concat() == content);
    });
}

/// A peer that has the keys and seals arbitrary records.
struct Forger {
    sock: TcpStream,
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Forger {
    /// It and one of our ends, which serves it.
    fn beside(site: &Site) -> (Forger, TlsStream) {
        let (mut sock, far) = sockets();
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| site.accept(far).with_own_records().unwrap());
            let suite = provider().cipher_suites[0];
            let mut client = site.plain_client(Some(suite), None);
            let flight = last_flight(&mut client, &mut sock);
            sock.write_all(&flight).unwrap();
            let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
            let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another suite") };
            let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
            let iv = iv.as_ref().try_into().unwrap();
            (Forger { sock, key, iv, sequence }, ours.join().unwrap())
        })
    }

    /// A record with this inner plaintext: content, type, padding.
    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.sequence += 1;
        let length = ((inner.len() + 16) as u16).to_be_bytes();
        let head = [23, 3, 3, length[0], length[1]];
        let mut sealed = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(head), &mut sealed).unwrap();
        [&head[..], &sealed].concat()
    }

    fn send(&mut self, inner: &[u8]) {
        let record = self.seal(inner);
        self.sock.write_all(&record).unwrap();
    }

    fn send_content(&mut self, content: &[u8], padding: usize) {
        self.send(&[content, &[23], &vec![0; padding]].concat());
    }
}

/// The error of our end when it reads on; it never returns content.
fn refusal(mut ours: TlsStream) -> Error {
    let error = ours.read_exact(&mut [0]).unwrap_err();
    assert_eq!(error.code, Code::TlsFailed, "{error}");
    error
}

#[test]
fn padding_and_empty_records_are_skipped() {
    let (mut forger, mut ours) = Forger::beside(&Site::new());
    for _ in 0..3 {
        (0..32).for_each(|padding| forger.send_content(b"", padding));
        forger.send_content(b"abc", 255);
        forger.send_content(&noise(5, 16_384), 0);
        // `user_canceled` says nothing.
        forger.send(&[1, 90, 21]);
        let mut bytes = vec![0; 3 + 16_384 + 1];
        ours.read_exact_before_last(&mut bytes).unwrap();
        assert!(bytes[..3] == *b"abc" && bytes[3..3 + 16_384] == noise(5, 16_384));
    }
}

#[test]
fn content_inside_a_handshake_message_ends_the_stream() {
    let (mut forger, ours) = Forger::beside(&Site::new());
    forger.send(&[24, 0, 22]);
    forger.send_content(b"x", 0);
    refusal(ours);
}

#[test]
fn malformed_records_end_the_stream() {
    let site = Site::new();
    let bad_inner: [(&str, Vec<u8>); 7] = [
        ("no type", vec![0; 20]),
        ("an unknown type", b"abc\x63".to_vec()),
        ("a change of cipher", vec![1, 20]),
        ("a ticket of a client", vec![4, 0, 0, 1, 9, 22]),
        ("a key update with something after it", vec![24, 0, 0, 1, 0, 24, 22]),
        ("a key update that says neither yes nor no", vec![24, 0, 0, 1, 2, 22]),
        ("too much content", [vec![7; 16_385], vec![23]].concat()),
    ];
    for (what, inner) in bad_inner {
        let (mut forger, ours) = Forger::beside(&site);
        forger.send(&inner);
        println!("{what}: {}", refusal(ours));
    }
    let (mut forger, ours) = Forger::beside(&site);
    (0..33).for_each(|_| forger.send_content(b"", 0));
    assert!(refusal(ours).cause.contains("without content"));
    let heads = [[23, 3, 3, 0x41, 0x01], [21, 3, 3, 0, 2], [20, 3, 3, 0, 1], [23, 3, 3, 0, 16]];
    for head in heads {
        let (mut forger, ours) = Forger::beside(&site);
        forger.sock.write_all(&head).unwrap();
        refusal(ours);
    }
}

#[test]
fn changed_repeated_or_missing_records_end_the_stream() {
    let site = Site::new();
    for position in [0, 4, 5, 50, 104] {
        let (mut forger, ours) = Forger::beside(&site);
        let mut record = forger.seal(&[&[7; 84][..], &[23]].concat());
        // A changed length makes an end wait; the following bytes are enough for any.
        record[position] ^= 1;
        record.resize(20_000, 0);
        forger.sock.write_all(&record).unwrap();
        refusal(ours);
    }
    let (mut forger, mut ours) = Forger::beside(&site);
    let record = forger.seal(b"a\x17");
    forger.sock.write_all(&record).unwrap();
    ours.read_exact(&mut [0]).unwrap();
    forger.sock.write_all(&record).unwrap();
    refusal(ours);
    let (mut forger, ours) = Forger::beside(&site);
    forger.seal(b"a\x17");
    forger.send_content(b"b", 0);
    refusal(ours);
}

#[test]
fn the_peer_gets_an_alert_when_a_stream_ends() {
    let (mut near, far) = Site::new().connection();
    (&*near.socket())
        .write_all(&[23, 3, 3, 0, 17, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17])
        .unwrap();
    refusal(far);
    let told = near.read_exact(&mut [0]).unwrap_err();
    assert!(told.code == Code::TlsFailed && told.cause.contains("BadRecordMac"), "{told}");
}
