//! The TLS record layer of data streams: TLS 1.3 records (RFC 8446, sections 5.2 to 5.5), sealed and opened without a
//! copy.
//!
//! Handshake, keys and key schedule are rustls'; it exports the traffic keys when the handshake is done
//! (`rustls::kernel`, made for record layers in kernels) and derives new ones when a key has reached its limit. This
//! module only has the rest: a head, a sequence number, and one call of the AEAD per record, from the caller's buffer
//! into the send buffer, and from the receive buffer into the caller's. docs/design/0008 gives the reasons.
//!
//! Guarantees: a record that was changed, dropped, replayed or reordered ends the stream; no key seals more records
//! than its suite allows; tickets and key updates of the peer are served. An end without `close_notify` is for the
//! reader to detect: data streams end with a frame that says so.

use super::tls::{Outbox, tls_failed};
use aws_lc_rs::aead::{self, AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use renkei_core::error::Error;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::cipher::{AeadKey, Iv, Nonce, make_tls13_aad};
use rustls::kernel::KernelConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, ExtractedSecrets, HandshakeType,
    SupportedCipherSuite,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// A record's head: type, version, length.
pub(super) const HEAD_BYTES: usize = 5;
/// The AEAD's tag; the same in all suites.
const TAG_BYTES: usize = 16;
/// Most content of a record.
const CONTENT_BYTES: usize = 16 << 10;
/// Most bytes of a record beside its head: content, padding, type and tag.
const MAX_SEALED_BYTES: usize = (16 << 10) + 256;
/// Most records without content in a row: more is a denial of service.
const MAX_EMPTY_RECORDS: u8 = 32;
/// Most bytes of a handshake message that arrives in parts; a ticket holds the peer's certificates.
const MAX_HANDSHAKE_BYTES: usize = 128 << 10;
/// Last sequence number with any suite, far from the end of its 64 bits.
const LAST_SEQUENCE: u64 = 0xffff_ffff_ffff_0000;

/// One direction of a connection.
struct Direction {
    key: LessSafeKey,
    iv: Iv,
    /// Number of the next record under this key.
    sequence: u64,
}

/// Type and length of a decrypted record.
struct Opened {
    kind: ContentType,
    content_bytes: usize,
}

/// Meaning of a record for the reader of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// This many bytes of content, at the start of the buffer.
    Content(usize),
    /// Nothing; it was handled in the record layer.
    Nothing,
    /// The peer closed properly.
    Closed,
}

/// Both directions of a connection, or the receiving one once the other was taken.
pub(super) struct RecordLayer {
    sealing: Option<Sealing>,
    receiving: Direction,
    keys: Arc<Keys>,
    /// A handshake message that is not complete yet.
    handshake: Vec<u8>,
    empty_records: u8,
}

/// The sending direction.
pub(super) struct Sealing {
    sending: Direction,
    keys: Arc<Keys>,
    /// Most records that one key may seal.
    key_records: u64,
}

/// The key schedule in rustls, shared by both directions.
struct Keys {
    kernel: Mutex<Kernel>,
    chain: Vec<CertificateDer<'static>>,
    /// The peer requested a key update of this end.
    owes_update: AtomicBool,
}

enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Direction {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, rustls::Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(rustls::Error::General("a cipher suite this build does not know".into())),
        };
        Ok(Direction { key: aead_key(algorithm, &key)?, iv, sequence })
    }

    /// The nonce of the next record; never reused, for the sequence number only grows and ends with its key.
    fn nonce(&mut self) -> aead::Nonce {
        let nonce = Nonce::new(&self.iv, self.sequence);
        self.sequence += 1;
        aead::Nonce::assume_unique_for_key(nonce.0)
    }

    /// Writes a record with `content` to the beginning of `out` and returns its length.
    fn seal(&mut self, kind: ContentType, content: &[u8], out: &mut [u8]) -> Result<usize, rustls::Error> {
        let sealed_bytes = content.len() + 1 + TAG_BYTES;
        let head = make_tls13_aad(sealed_bytes);
        let (out_head, sealed) = out[..HEAD_BYTES + sealed_bytes].split_at_mut(HEAD_BYTES);
        out_head.copy_from_slice(&head);
        let (body, tail) = sealed.split_at_mut(content.len());
        let nonce = self.nonce();
        self.key
            .seal_out_of_place_scatter(nonce, Aad::from(head), content, body, &[kind.into()], tail)
            .map_err(|_| rustls::Error::EncryptError)?;
        Ok(HEAD_BYTES + sealed_bytes)
    }

    /// Decrypts a complete record in place; the content begins after its head.
    fn open(&mut self, record: &mut [u8]) -> Result<Opened, rustls::Error> {
        let (head, sealed) = record.split_at_mut(HEAD_BYTES);
        let nonce = self.nonce();
        let inner = self.key.open_in_place(nonce, Aad::from(&*head), sealed);
        Opened::parse(inner.map_err(|_| rustls::Error::DecryptError)?)
    }

    /// Decrypts a complete record into `target`, which has room for its [`inner_bytes`].
    fn open_into(&mut self, record: &[u8], target: &mut [u8]) -> Result<Opened, rustls::Error> {
        let (head, sealed) = record.split_at(HEAD_BYTES);
        let (body, tag) = sealed.split_at(sealed.len() - TAG_BYTES);
        let inner = &mut target[..body.len()];
        let nonce = self.nonce();
        let opened = self.key.open_separate_gather(nonce, Aad::from(head), body, tag, inner);
        opened.map_err(|_| rustls::Error::DecryptError)?;
        Opened::parse(inner)
    }
}

fn aead_key(algorithm: &'static aead::Algorithm, key: &AeadKey) -> Result<LessSafeKey, rustls::Error> {
    let key = UnboundKey::new(algorithm, key.as_ref());
    key.map(LessSafeKey::new).map_err(|_| rustls::Error::General("a key of a wrong length".into()))
}

impl Opened {
    /// Finds the type: the last byte that is not padding.
    fn parse(inner: &[u8]) -> Result<Self, rustls::Error> {
        let end = inner.iter().rposition(|byte| *byte != 0);
        let content_bytes = end.ok_or_else(|| unexpected("a record without a type"))?;
        if content_bytes > CONTENT_BYTES {
            return Err(rustls::Error::PeerSentOversizedRecord);
        }
        Ok(Opened { kind: ContentType::from(inner[content_bytes]), content_bytes })
    }
}

fn unexpected(what: &str) -> rustls::Error {
    rustls::Error::General(what.into())
}

/// The length of the record at the start of `received`, if it is complete.
///
/// # Errors
/// A head that no peer sends on an encrypted connection.
pub(super) fn record_bytes(received: &[u8]) -> Result<Option<usize>, rustls::Error> {
    let Some(head) = received.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let sealed_bytes = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if ContentType::from(head[0]) != ContentType::ApplicationData {
        return Err(unexpected("a record that is not encrypted"));
    }
    if sealed_bytes > MAX_SEALED_BYTES {
        return Err(rustls::Error::PeerSentOversizedRecord);
    }
    if sealed_bytes <= TAG_BYTES {
        return Err(rustls::Error::DecryptError);
    }
    let bytes = HEAD_BYTES + sealed_bytes;
    Ok((received.len() >= bytes).then_some(bytes))
}

/// Buffer size for decrypting a record of this length: its content, its type and its padding.
pub(super) fn inner_bytes(record_bytes: usize) -> usize {
    record_bytes - HEAD_BYTES - TAG_BYTES
}

/// The alert for an error in received data.
pub(super) fn alert_of(error: &rustls::Error) -> AlertDescription {
    match error {
        rustls::Error::DecryptError => AlertDescription::BadRecordMac,
        rustls::Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        _ => AlertDescription::UnexpectedMessage,
    }
}

impl RecordLayer {
    /// Takes over the connection of a client after its handshake.
    pub(super) fn of_client(conn: UnbufferedClientConnection) -> Result<Self, rustls::Error> {
        let chain = owned(conn.peer_certificates());
        let (secrets, kernel) = conn.dangerous_into_kernel_connection()?;
        RecordLayer::new(secrets, Kernel::Client(kernel), chain)
    }

    /// Takes over the connection of a server after its handshake.
    pub(super) fn of_server(conn: UnbufferedServerConnection) -> Result<Self, rustls::Error> {
        let chain = owned(conn.peer_certificates());
        let (secrets, kernel) = conn.dangerous_into_kernel_connection()?;
        RecordLayer::new(secrets, Kernel::Server(kernel), chain)
    }

    fn new(
        secrets: ExtractedSecrets,
        kernel: Kernel,
        chain: Vec<CertificateDer<'static>>,
    ) -> Result<Self, rustls::Error> {
        let key_records = kernel.key_records()?;
        let keys = Arc::new(Keys { kernel: Mutex::new(kernel), chain, owes_update: AtomicBool::new(false) });
        let sending = Direction::new(secrets.tx)?;
        Ok(RecordLayer {
            sealing: Some(Sealing { sending, keys: keys.clone(), key_records }),
            receiving: Direction::new(secrets.rx)?,
            keys,
            handshake: Vec::new(),
            empty_records: 0,
        })
    }

    /// The peer's certificate chain, leaf first.
    pub(super) fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        self.keys.chain.clone()
    }

    /// The sending direction, unless it was taken.
    pub(super) fn sealing(&mut self) -> Option<&mut Sealing> {
        self.sealing.as_mut()
    }

    /// Takes the sending direction, for another thread; works once.
    pub(super) fn take_sealing(&mut self) -> Option<Sealing> {
        self.sealing.take()
    }

    /// Decrypts a complete record in place; content begins after the head.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<Meaning, rustls::Error> {
        let opened = self.receiving.open(record)?;
        self.take(&opened, &record[HEAD_BYTES..])
    }

    /// Decrypts a complete record into `target`, which has room for its [`inner_bytes`].
    pub(super) fn open_into(&mut self, record: &[u8], target: &mut [u8]) -> Result<Meaning, rustls::Error> {
        let opened = self.receiving.open_into(record, target)?;
        self.take(&opened, target)
    }

    fn take(&mut self, opened: &Opened, inner: &[u8]) -> Result<Meaning, rustls::Error> {
        let content = &inner[..opened.content_bytes];
        match opened.kind {
            ContentType::ApplicationData if self.handshake.is_empty() => self.on_content(content),
            ContentType::Handshake => self.on_handshake(content).map(|()| Meaning::Nothing),
            ContentType::Alert if self.handshake.is_empty() => on_alert(content),
            _ => Err(unexpected("a record of a type that has no place here")),
        }
    }

    fn on_content(&mut self, content: &[u8]) -> Result<Meaning, rustls::Error> {
        self.empty_records = if content.is_empty() { self.empty_records + 1 } else { 0 };
        if self.empty_records > MAX_EMPTY_RECORDS {
            return Err(unexpected("too many records without content"));
        }
        Ok(Meaning::Content(content.len()))
    }

    /// Handles a record of handshake messages: several, or a part of one.
    fn on_handshake(&mut self, content: &[u8]) -> Result<(), rustls::Error> {
        if content.is_empty() || self.handshake.len() + content.len() > MAX_HANDSHAKE_BYTES {
            return Err(unexpected("a handshake message too short or too long"));
        }
        self.handshake.extend_from_slice(content);
        let messages = std::mem::take(&mut self.handshake);
        let mut rest = &messages[..];
        while let Some((kind, payload, after)) = split_message(rest) {
            self.on_message(kind, payload, after.is_empty())?;
            rest = after;
        }
        self.handshake.extend_from_slice(rest);
        Ok(())
    }

    fn on_message(
        &mut self,
        kind: HandshakeType,
        payload: &[u8],
        is_last: bool,
    ) -> Result<(), rustls::Error> {
        let mut kernel = self.keys.kernel();
        match (kind, payload, &mut *kernel) {
            (HandshakeType::NewSessionTicket, _, Kernel::Client(kernel)) => {
                kernel.handle_new_session_ticket(payload)
            }
            // Messages after it in the same record, under the old key, are refused.
            (HandshakeType::KeyUpdate, [requested @ (0 | 1)], kernel) if is_last => {
                self.receiving = Direction::new(kernel.update_rx()?)?;
                if *requested == 1 {
                    self.keys.owes_update.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
            _ => Err(unexpected("a handshake message that has no place here")),
        }
    }
}

impl Sealing {
    /// Lowers the number of records after which the key is renewed.
    pub(super) fn renew_key_after(&mut self, records: u64) {
        self.key_records = self.key_records.min(records);
    }

    /// Encrypts `plain` into `out`, which has room for it.
    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Outbox) -> Result<(), Error> {
        for content in plain.chunks(CONTENT_BYTES) {
            let owes_update = self.keys.owes_update.load(Ordering::Relaxed);
            if owes_update || self.sending.sequence >= self.key_records {
                self.renew_key(out).map_err(tls_failed)?;
            }
            self.put(ContentType::ApplicationData, content, out).map_err(tls_failed)?;
        }
        Ok(())
    }

    fn put(&mut self, kind: ContentType, content: &[u8], out: &mut Outbox) -> Result<(), rustls::Error> {
        let written = self.sending.seal(kind, content, out.room())?;
        out.advance(written);
        Ok(())
    }

    /// Sends a KeyUpdate as the last record under this key, and takes the next key.
    fn renew_key(&mut self, out: &mut Outbox) -> Result<(), rustls::Error> {
        const UPDATE_NOT_REQUESTED: u8 = 0;
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, UPDATE_NOT_REQUESTED];
        self.put(ContentType::Handshake, &message, out)?;
        self.keys.owes_update.store(false, Ordering::Relaxed);
        self.sending = Direction::new(self.keys.kernel().update_tx()?)?;
        Ok(())
    }

    /// Encrypts the alert with which this end closes the connection.
    pub(super) fn seal_alert(
        &mut self,
        why: AlertDescription,
        out: &mut Outbox,
    ) -> Result<(), rustls::Error> {
        const FATAL: u8 = 2;
        self.put(ContentType::Alert, &[FATAL, why.into()], out)
    }
}

impl Keys {
    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }
}

/// The first complete handshake message of `bytes`, and the rest.
fn split_message(bytes: &[u8]) -> Option<(HandshakeType, &[u8], &[u8])> {
    let (&[kind, high, middle, low], rest) = bytes.split_first_chunk::<4>()?;
    let (payload, after) = rest.split_at_checked(u32::from_be_bytes([0, high, middle, low]) as usize)?;
    Some((HandshakeType::from(kind), payload, after))
}

fn on_alert(content: &[u8]) -> Result<Meaning, rustls::Error> {
    let &[_, why] = content else { return Err(unexpected("an alert of a wrong length")) };
    match AlertDescription::from(why) {
        AlertDescription::CloseNotify => Ok(Meaning::Closed),
        AlertDescription::UserCanceled => Ok(Meaning::Nothing),
        why => Err(rustls::Error::AlertReceived(why)),
    }
}

/// An owned copy of a certificate chain.
pub(super) fn owned(chain: Option<&[CertificateDer<'_>]>) -> Vec<CertificateDer<'static>> {
    chain.unwrap_or_default().iter().map(|cert| cert.clone().into_owned()).collect()
}

impl Kernel {
    fn update_tx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Client(kernel) => kernel.update_tx_secret(),
            Kernel::Server(kernel) => kernel.update_tx_secret(),
        }
    }

    fn update_rx(&mut self) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match self {
            Kernel::Client(kernel) => kernel.update_rx_secret(),
            Kernel::Server(kernel) => kernel.update_rx_secret(),
        }
    }

    /// Most records that a key of the negotiated suite may seal.
    fn key_records(&self) -> Result<u64, rustls::Error> {
        let suite = match self {
            Kernel::Client(kernel) => kernel.negotiated_cipher_suite(),
            Kernel::Server(kernel) => kernel.negotiated_cipher_suite(),
        };
        match suite {
            SupportedCipherSuite::Tls13(suite) => Ok(suite.common.confidentiality_limit.min(LAST_SEQUENCE)),
            #[allow(unreachable_patterns, reason = "rustls may be built with TLS 1.2 for another crate")]
            _ => Err(rustls::Error::General("TLS 1.3 only".into())),
        }
    }
}
