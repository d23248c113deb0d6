//! Tells a web server something: one HTTP/1.1 POST on a connection of its own.
//!
//! What the server answers but its status is not looked at, and it is not followed anywhere. Everything together takes
//! `WITHIN` at most, however slowly a server talks.

use renkei_core::queue::notice::Address;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it may take.
const WITHIN: Duration = Duration::from_secs(10);
/// A status line is no longer.
const MAX_STATUS_BYTES: usize = 1024;

/// Posts JSON; `tls` says whom an `https` server must be vouched for by.
///
/// # Errors
/// Why it was not taken, in words: also any status but 200 to 299.
pub fn post(address: &Address, body: &str, tls: &Arc<ClientConfig>) -> Result<(), String> {
    let until = Instant::now() + WITHIN;
    let sock = connect(address, until).map_err(|error| format!("connect: {error}"))?;
    let timed = Timed { sock, until };
    let asked = match address.https {
        false => ask(timed, address, body),
        true => secure(timed, address, tls).and_then(|stream| ask(stream, address, body)),
    };
    let status = asked.map_err(|error| error.to_string())?;
    match parse_status(&status) {
        Some(200..=299) => Ok(()),
        Some(number) => Err(format!("the server answered {number}")),
        None => Err("the server does not speak HTTP".into()),
    }
}

fn connect(address: &Address, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for at in (address.host.as_str(), address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&at, left(until)?) {
            Ok(sock) => return Ok(sock),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn secure(
    sock: Timed,
    address: &Address,
    tls: &Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, Timed>> {
    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(tls.clone(), name).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, sock))
}

/// Asks, and reads the answer's first line.
fn ask(mut stream: impl Read + Write, address: &Address, body: &str) -> io::Result<Vec<u8>> {
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        address.path,
        address.authority(),
        super::SOFTWARE,
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes())?;
    stream.flush()?;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < MAX_STATUS_BYTES && stream.read(&mut byte)? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok(line)
}

fn parse_status(line: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 "))?;
    rest.get(..3)?.parse().ok()
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")) } else { Ok(left) }
}

/// A connection on which each call ends by a moment.
struct Timed {
    sock: TcpStream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.sock.set_read_timeout(Some(left(self.until)?))?;
        self.sock.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sock.set_write_timeout(Some(left(self.until)?))?;
        self.sock.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sock.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::crypto::aws_lc_rs::default_provider;
    use std::net::TcpListener;

    /// A client that believes certificates of these alone.
    fn client(roots: RootCertStore) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// Reads a whole request, answers it, and gives it back.
    fn answer(mut stream: impl Read + Write, with: &str) -> String {
        let (mut text, mut part) = (String::new(), [0; 4096]);
        while !text.ends_with('}') {
            match stream.read(&mut part) {
                Ok(count @ 1..) => text.push_str(std::str::from_utf8(&part[..count]).unwrap()),
                _ => break,
            }
        }
        let _ = stream.write_all(with.as_bytes());
        text
    }

    #[test]
    fn the_status_says_whether_it_was_taken() {
        let tls = client(RootCertStore::empty());
        for (with, taken) in [
            ("HTTP/1.1 204 No Content\r\n\r\n", true),
            ("HTTP/1.0 200 OK\r\n\r\n", true),
            ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", false),
            ("HTTP/1.1 500 Oh\r\n\r\n", false),
            ("SSH-2.0-x\r\n", false),
            ("", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address =
                Address::parse(&format!("http://{}/hook?a=b", listener.local_addr().unwrap())).unwrap();
            let served = std::thread::spawn(move || answer(listener.accept().unwrap().0, with));
            assert_eq!(post(&address, "{\"a\":1}", &tls).is_ok(), taken, "{with}");
            let asked = served.join().unwrap();
            assert!(asked.starts_with("POST /hook?a=b HTTP/1.1\r\nHost: 127.0.0.1:"), "{asked}");
            assert!(
                asked.contains("Content-Length: 7\r\n") && asked.ends_with("\r\n\r\n{\"a\":1}"),
                "{asked}"
            );
        }
    }

    #[test]
    fn a_server_of_https_must_be_vouched_for() {
        let key = rcgen::KeyPair::generate().unwrap();
        let made =
            rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        let secret = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let server = rustls::ServerConfig::builder_with_provider(default_provider().into());
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let server = Arc::new(server.with_single_cert(vec![made.der().clone()], secret).unwrap());
        let mut roots = RootCertStore::empty();
        roots.add(made.der().clone()).unwrap();
        for (tls, taken) in [(client(roots), true), (client(RootCertStore::empty()), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let address = Address::parse(&format!("https://localhost:{port}/")).unwrap();
            let server = server.clone();
            let served = std::thread::spawn(move || {
                let sock = listener.accept().unwrap().0;
                let connection = rustls::ServerConnection::new(server).unwrap();
                answer(StreamOwned::new(connection, sock), "HTTP/1.1 200 OK\r\n\r\n")
            });
            let posted = post(&address, "{}", &tls);
            assert_eq!(posted.is_ok(), taken, "{posted:?}");
            assert_eq!(served.join().unwrap().ends_with("{}"), taken);
        }
    }
}
