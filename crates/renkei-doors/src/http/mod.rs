//! The HTTP door: health, metrics, the console and files, over TLS on the one port.
//!
//! `metrics` prints the counters, `buffered_socket` is the connection, whose first bytes were read already,
//! `activity` tells an idle connection, `negotiation` has what a connection has begun to prove. The pages of the console are in `console`, files in `pages` and `webdav`; `s3` hands
//! requests of S3 to `renkei-s3`.

pub(crate) mod activity;
mod buffered_socket;
mod metrics;
pub(crate) mod negotiation;
#[cfg(feature = "s3")]
mod s3;

use crate::admission::Slot;
use crate::certificate;
use crate::console;
use crate::negotiate;
use crate::pages;
use crate::rooted;
use crate::tpc::delegation;
use crate::webdav::Client;
use activity::Activity;
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use buffered_socket::BufferedSocket;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use negotiation::Negotiation;
use renkei_net::identity::borrowed::PATH;
use renkei_site::Site;
use renkei_site::status::conditions::{Condition, Severity};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Bytes that a client of HTTP/2 may send ahead of what is written, of one upload and of all on its connection: 40 MB/s at a
/// round trip of 100 ms. They are in memory; those of HTTP/1.1 wait in the socket.
const WINDOW_BYTES: u32 = 4 << 20;

/// Timeout of the TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// A connection without progress for so long is closed.
const IDLE_WITHIN: Duration = Duration::from_secs(60);

/// Timeout of the graceful shutdown then.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Serves one connection; `received` are the bytes already read from it.
pub async fn serve(
    sock: TcpStream,
    received: Vec<u8>,
    config: Arc<ServerConfig>,
    peer: SocketAddr,
    site: Arc<Site>,
    slot: Slot,
) {
    let sock = BufferedSocket::new(received, sock);
    let shaken = tokio::time::timeout(HANDSHAKE_WITHIN, TlsAcceptor::from(config).accept(sock)).await;
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::info!(%peer, %error, "no TLS"),
        Err(_) => return tracing::info!(%peer, "dropped: TLS handshake not finished within 10 s"),
    };
    let chain = stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain.iter().cloned().map(CertificateDer::into_owned));
    let address = peer.ip().to_canonical();
    let client = Client {
        chain: chain.map(Iterator::collect),
        address,
        activity: Activity::new(slot),
        negotiation: Negotiation::default(),
    };
    let service = TowerToHyperService::new(router(site, client.clone()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http2 = builder.http2();
    http2.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let mut served = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => Ok(ended),
        () = idle(&client.activity) => {
            // Requests in flight are answered; the client reconnects.
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(LEAVE_WITHIN, served).await
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "HTTP connection ended"),
        Err(_) => tracing::debug!(%peer, "HTTP connection closed: no progress within 60 s"),
    }
}

/// Waits until the connection had no progress for [`IDLE_WITHIN`].
async fn idle(activity: &Activity) {
    loop {
        let before = activity.steps();
        tokio::time::sleep(IDLE_WITHIN).await;
        if activity.steps() == before && !activity.is_running() {
            return;
        }
    }
}

fn router(site: Arc<Site>, client: Client) -> Router {
    let router = Router::new().route("/healthz", get(health)).route("/metrics", get(metrics));
    let certificate = Router::new().route(PATH, post(certificate::give));
    let delegation = get(delegation::answer).post(delegation::answer);
    let certificate = certificate.route(delegation::PATH, delegation);
    let tickets = from_fn_with_state(site.clone(), negotiate::authenticate);
    let files = certificate.merge(pages::router()).layer(tickets).layer(Extension(client.clone()));
    let router = router.merge(console::router()).merge(files).with_state(site.clone());
    let router = rooted::first(router, client.clone());
    #[cfg(feature = "s3")]
    let router = s3::first(router, site, client.address, client.activity);
    router
}

/// 503 if a condition is critical, else 200; with the list of conditions. Needs no authentication, so no path, cause
/// or other site is disclosed.
async fn health(State(site): State<Arc<Site>>) -> impl IntoResponse {
    let conditions = site.monitor().conditions();
    let (status, state) = match conditions.iter().map(|one| one.severity).max() {
        Some(Severity::Critical) => (StatusCode::SERVICE_UNAVAILABLE, "degraded"),
        Some(Severity::Warning) => (StatusCode::OK, "warning"),
        Some(Severity::Info) | None => (StatusCode::OK, "ok"),
    };
    let problems: Vec<String> = conditions.iter().map(Condition::for_strangers).collect();
    let told: Vec<_> = conditions.iter().map(told).collect();
    let site = site.name();
    let health =
        serde_json::json!({ "status": state, "site": site, "problems": problems, "conditions": told });
    (status, Json(health))
}

fn told(condition: &Condition) -> serde_json::Value {
    let Condition { what, severity, code, since_unix, .. } = condition;
    serde_json::json!({ "what": what, "severity": severity, "code": code, "since_unix": since_unix })
}

async fn metrics(State(site): State<Arc<Site>>) -> impl IntoResponse {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics::render(&site) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, content_type)], text),
        Err(error) => {
            tracing::error!(%error, "cannot render the metrics");
            (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new())
        }
    }
}
