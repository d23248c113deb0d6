//! Small exchanges with web servers, each one HTTP/1.1 request on a connection of its own: the delivery of a webhook, and
//! the documents of a token issuer.
//!
//! Redirects are not followed. `WITHIN` is the timeout of the whole exchange, however slowly a server answers.

use axum::body::Body;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use renkei_core::queue::webhook::Address;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout of an exchange.
const WITHIN: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Posts JSON; `tls` has the trusted roots for an `https` server.
///
/// # Errors
/// The reason of the failure, as text: also any status but 200 to 299.
pub fn post(address: &Address, body: &str, tls: &Arc<ClientConfig>) -> Result<(), String> {
    let request = Request::post(&address.path).header(HOST, address.authority());
    let request = request.header(CONTENT_TYPE, "application/json");
    exchange(address, request, Body::from(body.to_owned()), tls, 0).map(drop)
}

/// Gets a document of at most `limit` bytes; `tls` has the trusted roots for an `https` server.
///
/// # Errors
/// The reason of the failure, as text: also any status but 200 to 299.
pub fn get(address: &Address, tls: &Arc<ClientConfig>, limit: usize) -> Result<Vec<u8>, String> {
    let request = Request::get(&address.path).header(HOST, address.authority());
    exchange(address, request, Body::empty(), tls, limit)
}

/// The answer of a server, with any status.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Posts a body with headers, to a server that is asked for its certificate under `name`. The value of the header
/// Authorization is made after the server has proved to have that name. The answer has at most `limit`
/// bytes.
///
/// # Errors
/// The reason of the failure, as text.
pub fn post_for_answer(
    address: &Address,
    name: &ServerName<'static>,
    headers: &[(&str, &str)],
    authorization: &dyn Fn() -> Result<Option<String>, String>,
    body: String,
    tls: &Arc<ClientConfig>,
    limit: usize,
) -> Result<Answer, String> {
    let authorize = |mut request: Request<Body>| -> Result<Request<Body>, Failure> {
        if let Some(value) = authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value.try_into()?);
        }
        Ok(request)
    };
    let request =
        Request::post(&address.path).header(HOST, address.authority()).header(USER_AGENT, super::SOFTWARE);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(Body::from(body)).map_err(|error| error.to_string())?;
    within_time(async {
        let asked = ask_named(address, name.clone(), request, authorize, tls).await;
        let response = asked.map_err(|error| with_causes(&*error))?;
        let status = response.status().as_u16();
        Ok(Answer { status, body: collect(response.into_body(), limit).await? })
    })
}

/// Runs an exchange to its end, or its timeout.
fn within_time<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let asked = runtime.block_on(async { tokio::time::timeout(WITHIN, asked).await });
    // A pending name lookup is abandoned.
    runtime.shutdown_background();
    asked.unwrap_or_else(|_| Err("it took too long".into()))
}

/// One exchange; gives the body of the answer up to a limit, 0 for none of it.
fn exchange(
    address: &Address,
    request: hyper::http::request::Builder,
    body: Body,
    tls: &Arc<ClientConfig>,
    limit: usize,
) -> Result<Vec<u8>, String> {
    let request = request.header(USER_AGENT, super::SOFTWARE).body(body);
    let request = request.map_err(|error| error.to_string())?;
    within_time(async {
        let response = ask(address, request, tls).await.map_err(|error| with_causes(&*error))?;
        match response.status() {
            status if !status.is_success() => Err(format!("the server answered {}", status.as_u16())),
            _ if limit == 0 => Ok(Vec::new()),
            _ => collect(response.into_body(), limit).await,
        }
    })
}

async fn ask(
    address: &Address,
    request: Request<Body>,
    tls: &Arc<ClientConfig>,
) -> Result<Response<Incoming>, Failure> {
    ask_named(address, ServerName::try_from(address.host.clone())?, request, Ok, tls).await
}

async fn ask_named(
    address: &Address,
    name: ServerName<'static>,
    request: Request<Body>,
    complete: impl FnOnce(Request<Body>) -> Result<Request<Body>, Failure>,
    tls: &Arc<ClientConfig>,
) -> Result<Response<Incoming>, Failure> {
    let sock = TcpStream::connect((address.host.as_str(), address.port)).await?;
    if !address.https {
        return ask_on(sock, complete(request)?).await;
    }
    let stream = TlsConnector::from(tls.clone()).connect(name, sock).await?;
    ask_on(stream, complete(request)?).await
}

async fn ask_on(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Body>,
) -> Result<Response<Incoming>, Failure> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| with_causes(&error))?;
        all.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
        if all.len() > limit {
            return Err(format!("the answer is longer than {limit} bytes"));
        }
    }
    Ok(all)
}

/// The error with its causes: that of the library says little by itself.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::StreamOwned;
    use rustls::crypto::aws_lc_rs::default_provider;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A client that trusts only these roots.
    fn client(roots: RootCertStore) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(default_provider().into());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// Reads a whole request, answers it, and returns it.
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
    fn the_status_code_decides_about_success() {
        let tls = client(RootCertStore::empty());
        for (with, taken) in [
            ("HTTP/1.1 204 No Content\r\n\r\n", true),
            ("HTTP/1.0 200 OK\r\n\r\n", true),
            ("HTTP/1.1 302 DestinationKind\r\nLocation: http://127.0.0.1/\r\n\r\n", false),
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
            assert!(asked.starts_with("POST /hook?a=b HTTP/1.1\r\nhost: 127.0.0.1:"), "{asked}");
            assert!(
                asked.contains("content-length: 7\r\n") && asked.ends_with("\r\n\r\n{\"a\":1}"),
                "{asked}"
            );
        }
    }

    #[test]
    fn documents_are_read_up_to_a_limit() {
        for (limit, read) in
            [(5, Ok(b"hello".to_vec())), (4, Err("the answer is longer than 4 bytes".into()))]
        {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = Address::parse(&format!("http://{}/keys", listener.local_addr().unwrap())).unwrap();
            let served = std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let mut part = [0; 4096];
                let count = stream.read(&mut part).unwrap();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                String::from_utf8(part[..count].to_vec()).unwrap()
            });
            assert_eq!(get(&address, &client(RootCertStore::empty()), limit), read);
            assert!(served.join().unwrap().starts_with("GET /keys HTTP/1.1\r\n"));
        }
    }

    #[test]
    fn https_servers_need_a_trusted_certificate() {
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
