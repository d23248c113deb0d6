//! `/srr.json`: the space of storages and volumes as the WLCG storage resource reporting has it (SRR, version 4).
//!
//! For users, as their accounts see it; for everybody, as the PoP sees it, where `web.public_space_report` is set. Shares are
//! storages and volumes; a volume has a total size where it has a quota.

use crate::webdav::Client;
use crate::webdav::authentication::{evidence, unauthenticated};
use crate::webdav::error::problem;
use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::Method;
use axum::http::header::{ALLOW, HOST};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use renkei_core::error::Error;
use renkei_net::identity::certificate::unix_seconds;
use renkei_site::Site;
use renkei_site::access::Caller;
use renkei_site::evidence::Evidence;
use renkei_site::status::free_space::StorageSpace;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How long the report waits for file systems that it has not asked yet.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Answers a request for the report.
pub(super) async fn answer(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (head, _) = request.into_parts();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return (StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, "GET, HEAD")]).into_response();
    }
    let shown = evidence(&client, &head);
    if shown.is_none() && !site.last_snapshot().config.web.public_space_report {
        return unauthenticated(&site);
    }
    let name = site.name();
    let host = host(&head.headers, &head.uri.authority().map(ToString::to_string).unwrap_or_default());
    let report = client.activity.run(move || report(&site, shown, &host)).await;
    report.map_or_else(|error| problem(&error.at(name.as_str())), |report| Json(report).into_response())
}

fn host(headers: &HeaderMap, authority: &str) -> String {
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    named.unwrap_or(authority).to_owned()
}

fn report(site: &Arc<Site>, shown: Option<Evidence>, host: &str) -> Result<Value, Error> {
    let access = shown.map(|shown| site.authorise(&site.authenticate(shown)?)).transpose()?;
    let caller = access.as_ref().map_or(Caller::Administrator, Caller::User);
    let now = unix_seconds(SystemTime::now());
    let rooms = rooms(site, caller);
    let shares: Vec<Value> = rooms
        .iter()
        .map(|room| share(&room.name, of_room(room), room.read_only, now))
        .chain(volumes(site, caller, now))
        .collect();
    let all: Vec<(u64, u64)> = rooms.iter().filter_map(of_room).collect();
    let sum = |part: fn(&(u64, u64)) -> u64| all.iter().map(part).fold(0, u64::saturating_add);
    Ok(json!({ "storageservice": {
        "name": site.name(),
        "id": host,
        "servicetype": "org.renkei",
        "implementation": "renkei",
        "implementationversion": env!("CARGO_PKG_VERSION"),
        "qualitylevel": "production",
        "capabilities": ["data.access.flat", "data.management.storage", "data.management.transfer"],
        "latestupdate": now,
        "storagecapacity": { "online": { "totalsize": sum(|one| one.0), "usedsize": sum(|one| one.1) } },
        "storageendpoints": [{
            "name": "https",
            "endpointurl": format!("https://{host}/"),
            "interfacetype": "https",
            "interfaceversion": "1.1",
            "capabilities": ["data.access.flat", "data.management.transfer"],
            "qualitylevel": "production",
            "assignedshares": ["all"],
        }],
        "storageshares": shares,
    }}))
}

/// The storages with their space, once each file system answered, or for some seconds not.
fn rooms(site: &Arc<Site>, caller: Caller<'_>) -> Vec<StorageSpace> {
    let begun = Instant::now();
    loop {
        let rooms = site.monitor().rooms(caller);
        let is_known = |room: &StorageSpace| room.space.is_some() || room.agent.is_some();
        if rooms.iter().all(is_known) || begun.elapsed() > PATIENCE {
            return rooms;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The total and the used bytes of a storage, if they are known.
fn of_room(room: &StorageSpace) -> Option<(u64, u64)> {
    let space = room.space.as_ref()?.as_ref().ok()?;
    Some((space.total_bytes, space.total_bytes.saturating_sub(space.available_bytes)))
}

fn share(name: &str, space: Option<(u64, u64)>, is_read_only: bool, now: i64) -> Value {
    let mode = if is_read_only { "readonly" } else { "readwrite" };
    let status = if space.is_some() { "open" } else { "closed" };
    let mut share = json!({
        "name": name,
        "timestamp": now,
        "path": [format!("/{name}")],
        "assignedendpoints": ["all"],
        "servingstate": status,
        "accessmode": mode,
        "vos": [],
    });
    if let Some((total, used)) = space {
        share["totalsize"] = total.into();
        share["usedsize"] = used.into();
    }
    share
}

fn volumes(site: &Arc<Site>, caller: Caller<'_>, now: i64) -> Vec<Value> {
    let monitor = site.monitor();
    let one = |name: String| {
        let space = monitor.volume_of(caller, &name).ok().and_then(|shown| {
            let standing = shown.standing?;
            let row = standing.used.into_iter().find(|row| row.owner.is_none())?;
            Some((row.limit_bytes, row.bytes))
        });
        let mut share = share(&name, space.and_then(|(limit, used)| Some((limit?, used))), false, now);
        if let Some((_, used)) = space {
            share["usedsize"] = used.into();
            share["servingstate"] = "open".into();
        }
        share
    };
    monitor.volumes_of(caller).into_iter().map(one).collect()
}
