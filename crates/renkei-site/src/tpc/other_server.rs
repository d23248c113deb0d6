//! The other server of a copy: requests to it with redirects, and errors that say which server answered what.
//!
//! The headers that the user gave for it go to the server that the user named. A redirect to another host takes them along
//! only where the administrator allows it (`tpc.token_hosts`); servers that redirect put a credential into the new URL.

use super::firefly::{Firefly, Flow};
use super::reach;
use super::remote_url::RemoteUrl;
use crate::Context;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use renkei_core::error::{Code, Error};
use renkei_net::SOFTWARE;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::tls::presenting;
use renkei_net::web_connection::{Cancel, WebConnection};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Most redirects of one request.
const MAX_REDIRECTS: usize = 6;
/// Most of the body of a refusal that is shown.
const MAX_REASON_BYTES: usize = 300;
/// How long its pieces may come.
const REASON_WITHIN: Duration = Duration::from_secs(10);

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The end here.
    pub local: SocketAddr,
    /// The other server's.
    pub remote: SocketAddr,
}

/// The other server of one copy.
#[derive(Clone)]
pub(super) struct OtherServer {
    pub(super) context: Arc<Context>,
    pub(super) runtime: Handle,
    pub(super) cancel: Cancel,
    pub(super) url: RemoteUrl,
    /// The user's headers for it.
    pub(super) headers: HeaderMap,
    /// The chain that is presented to it.
    pub(super) credential: Option<Arc<Credential>>,
    /// Tells networks of connections that move content.
    pub(super) firefly: Option<Firefly>,
    /// The open connections.
    pub(super) connections: Arc<Mutex<Vec<Ends>>>,
}

/// A connection that is listed while it is open.
pub(super) struct ListedConnection {
    pub(super) inner: WebConnection,
    list: Arc<Mutex<Vec<Ends>>>,
    ends: Ends,
    flow: Option<Flow>,
}

impl Drop for ListedConnection {
    fn drop(&mut self) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = list.iter().position(|ends| *ends == self.ends) {
            list.swap_remove(at);
        }
    }
}

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) connection: ListedConnection,
    pub(super) head: Response<()>,
    /// Where it was given.
    pub(super) url: RemoteUrl,
    method: Method,
}

/// Gives the pieces of a body from its start.
pub(super) type Pieces<'p> = &'p mut dyn FnMut() -> Result<Option<Bytes>, Error>;

/// Makes the pieces of a body; each redirect begins again.
pub(super) struct Upload<'u> {
    pub(super) bytes: u64,
    pub(super) restart: &'u mut dyn FnMut(),
    pub(super) next: Pieces<'u>,
}

impl OtherServer {
    /// Makes a request, with redirects; `kept` is a connection of a request before.
    ///
    /// # Errors
    /// Those of the connection, of the judgement of servers, and of redirects. A status is no error here.
    pub(super) fn ask(
        &self,
        method: &Method,
        extra: &HeaderMap,
        mut kept: Option<ListedConnection>,
        mut upload: Option<Upload<'_>>,
    ) -> Result<Answer, Error> {
        let mut url = self.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let (mut connection, is_trusted) = self.connect(method, &url, kept.take())?;
            let request = self.request(method, &url, extra, is_trusted)?;
            let head = match &mut upload {
                None => connection.inner.ask(request),
                Some(upload) => {
                    (upload.restart)();
                    connection.inner.send(request, upload.bytes, upload.next)
                }
            };
            let head = head.map_err(|error| self.blame(error, &url))?;
            let answer = Answer { connection, head, url, method: method.clone() };
            match answer.location()? {
                None => return Ok(answer),
                Some(next) => {
                    tracing::debug!(from = %answer.url, to = %next, "redirected");
                    url = next;
                }
            }
        }
        let cause = format!("more than {MAX_REDIRECTS} redirects");
        Err(Error::new(Code::ServerAnswerWrong, "follow", &self.url, cause).at(&self.url.host))
    }

    /// A connection to the server of a URL, and whether it may have the user's headers.
    fn connect(
        &self,
        method: &Method,
        url: &RemoteUrl,
        kept: Option<ListedConnection>,
    ) -> Result<(ListedConnection, bool), Error> {
        let snapshot = self.context.last_snapshot();
        let is_here = |kept: &ListedConnection| {
            let server = kept.inner.server();
            // The flow of content is told from the connection's start on.
            let is_told = self.firefly.is_none() || kept.flow.is_some();
            server.host == url.host && server.port == url.port && kept.inner.is_reusable() && is_told
        };
        if let Some(kept) = kept.filter(is_here) {
            let is_trusted = reach::takes_token(&snapshot, &self.url, kept.inner.server());
            return Ok((kept, is_trusted));
        }
        let own = |error: Error| error.at(self.context.name().as_str());
        let mut server = reach::server(&snapshot, url).map_err(own)?;
        let is_trusted = reach::takes_token(&snapshot, &self.url, &server);
        if let Some(credential) = self.credential.as_ref().filter(|_| is_trusted) {
            server.tls = presenting(&server.tls, credential).map_err(own)?;
        }
        let remote = server.address;
        let inner = WebConnection::open(server, self.runtime.clone(), self.cancel.clone()).map_err(own)?;
        let ends = Ends { local: inner.local(), remote };
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).push(ends);
        let moves = matches!(*method, Method::GET | Method::PUT);
        let flow = self.firefly.as_ref().filter(|_| moves).map(|firefly| firefly.begin(ends));
        Ok((ListedConnection { inner, list: self.connections.clone(), ends, flow }, is_trusted))
    }

    fn request(
        &self,
        method: &Method,
        url: &RemoteUrl,
        extra: &HeaderMap,
        is_trusted: bool,
    ) -> Result<Request<()>, Error> {
        let request = Request::builder().method(method).uri(&url.target);
        let mut request = request.header(HOST, url.authority()).header(USER_AGENT, SOFTWARE);
        for (name, value) in self.headers.iter().filter(|_| is_trusted).chain(extra) {
            request = request.header(name, value);
        }
        let bad = |error| Error::new(Code::UsageInvalid, "make request", url, error);
        request.body(()).map_err(bad)
    }

    /// Names the server in an error of a connection.
    pub(super) fn blame(&self, error: Error, url: &RemoteUrl) -> Error {
        match error.code {
            Code::ConnectionLost | Code::Stalled => error.at(&url.host),
            _ => error.at(self.context.name().as_str()),
        }
    }
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The announced length of the body.
    pub(super) fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str())?.parse().ok()
    }

    fn location(&self) -> Result<Option<RemoteUrl>, Error> {
        if !matches!(self.head.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let none = || self.wrong("it redirects without a Location");
        let location = self.header(LOCATION.as_str()).ok_or_else(none)?;
        self.url.follow(location).map(Some)
    }

    /// The error of an answer against the protocol.
    pub(super) fn wrong(&self, cause: &str) -> Error {
        let op = self.method.as_str();
        Error::new(Code::ServerAnswerWrong, op, &self.url, cause).at(&self.url.host)
    }

    /// The error of a status that is no success: with the beginning of the body.
    pub(super) fn refused(mut self) -> Error {
        let reason = self.reason();
        let (status, op) = (self.head.status(), self.method.as_str());
        let colon = if reason.is_empty() { "" } else { ": " };
        let cause = format!("HTTP {status}{colon}{reason}");
        let code = match status {
            StatusCode::PRECONDITION_FAILED if self.method == Method::GET => Code::SourceChanged,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
                Code::ServerFailed
            }
            status if status.is_client_error() => Code::ServerRefused,
            _ => Code::ServerFailed,
        };
        Error::new(code, op, &self.url, cause).at(&self.url.host)
    }

    fn reason(&mut self) -> String {
        let (mut body, began) = (Vec::new(), Instant::now());
        while body.len() < MAX_REASON_BYTES && began.elapsed() < REASON_WITHIN {
            match self.connection.inner.next_piece() {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                _ => break,
            }
        }
        body.truncate(MAX_REASON_BYTES);
        // One line of plain text, whatever the server sent.
        let text = String::from_utf8_lossy(&body).replace(|c: char| c.is_control(), " ");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
