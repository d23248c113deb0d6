//! `/metrics`: the counters of the PoP, in OpenMetrics text. Names and meanings are listed in docs/operations.md.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use renkei_site::Site;
use renkei_site::access::Caller;
use renkei_site::status::conditions::{Condition, Severity};
use renkei_site::workers::Worker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// A gauge with labels.
type Labelled = Family<Vec<(&'static str, String)>, Gauge>;

/// Renders the current counters.
pub(super) fn render(site: &Site) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("renkei");
    let counters = &site.context().counters;
    let mut count = |name: &str, help: &str, counter: &AtomicU64| {
        registry.register(name, help, ConstCounter::new(counter.load(Ordering::Relaxed)));
    };
    count("sessions_opened", "Control sessions opened", &counters.sessions_total);
    count("connections_refused", "Connections that did not become a session", &counters.refused_total);
    count(
        "connections_over_share",
        "Connections that did not say who they are and were ended so that others have room",
        &counters.over_share_total,
    );
    count(
        "transfers_finished",
        "Transfers that are done, some with files that failed",
        &counters.transfers_done,
    );
    count("transfers_ended_early", "Transfers that failed", &counters.transfers_failed);
    count(
        "transfers_on_kept_streams",
        "Transfers received on data streams that were kept from the one before",
        &counters.kept_total,
    );
    count("files", "Files acknowledged as durable, received or sent", &counters.files_total);
    count("content_bytes", "Bytes of file content moved", &counters.bytes_total);
    count("circuits_passed", "Connections passed on between other sites", &counters.circuits_total);
    count("relayed_bytes", "Bytes passed on between other sites", &counters.relayed_bytes_total);
    count(
        "circuit_tickets_refused",
        "Connections with a ticket that was unknown, used up or expired",
        &counters.tickets_refused_total,
    );
    count("file_sessions_opened", "File sessions opened", &counters.file_sessions_total);
    count("file_operations", "Operations of file sessions that ended", &counters.file_operations_total);
    count("file_bytes", "Bytes read and written by file sessions that ended", &counters.file_bytes_total);
    let status = site.monitor().status(Caller::Administrator);
    let mut gauge =
        |name: &str, help: &str, value: i64| registry.register(name, help, ConstGauge::new(value));
    gauge("sessions", "Control sessions open now", i64::from(status.sessions));
    gauge("transfers", "Transfers running now", status.transfers.len() as i64);
    let files = i64::try_from(counters.file_sessions.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
    gauge("file_sessions", "File sessions open now", files);
    gauge("lines", "Lines between this PoP and others that are up", status.lines.len() as i64);
    let circuits = status.relayed.iter().map(|relayed| i64::from(relayed.circuits)).sum();
    gauge("circuits", "Connections passed on now", circuits);
    if let Ok(buffer) = site.buffer().buffer_status(Caller::Administrator) {
        gauge("buffer_size_bytes", "Bytes that the buffer may hold", number(buffer.size));
        gauge("buffer_charged_bytes", "Bytes of the buffer that are reserved", number(buffer.charged));
        gauge("buffer_written_bytes", "Bytes in the buffer", number(buffer.written));
        gauge("buffer_waiting", "Transfers that wait for room in the buffer", buffer.waiting.len() as i64);
    }
    gauge("uptime_seconds", "Seconds since the start", status.uptime_s as i64);
    conditions(&mut registry, &site.monitor().conditions());
    workers(&mut registry, &site.monitor().workers());
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The number of conditions of each severity, and the time since when each holds.
fn conditions(registry: &mut Registry, all: &[Condition]) {
    let (counts, since) = (Labelled::default(), Labelled::default());
    for severity in Severity::ALL {
        let count = all.iter().filter(|one| one.severity == severity).count();
        counts.get_or_create(&vec![("severity", severity.name().into())]).set(count as i64);
    }
    for Condition { what, name, severity, code, since_unix, .. } in all {
        let labels = vec![
            ("what", what.clone()),
            ("name", name.clone()),
            ("severity", severity.name().into()),
            ("code", code.to_string()),
        ];
        since.get_or_create(&labels).set(number(*since_unix));
    }
    registry.register("conditions", "What is not as it should be, by severity", counts);
    let help = "Start of a condition, in seconds since 1970; removed when it is cleared";
    registry.register("condition_since_seconds", help, since);
}

/// The background threads: turns, the end of the last one, whether it failed, and the work that is due.
fn workers(registry: &mut Registry, all: &[Worker]) {
    let [turns, ended, failed, backlog] = [(); 4].map(|()| Labelled::default());
    for worker in all {
        let labels = vec![("worker", worker.name.clone())];
        turns.get_or_create(&labels).set(number(worker.turns));
        failed.get_or_create(&labels).set(i64::from(worker.trouble.is_some()));
        if let Some(at) = worker.ended {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            ended.get_or_create(&labels).set(number(since.as_secs()));
        }
        if let Some(due) = worker.backlog {
            backlog.get_or_create(&labels).set(number(due));
        }
    }
    registry.register("worker_turns", "Completed turns of a background thread", turns);
    registry.register("worker_last_turn_seconds", "End of the last turn, in seconds since 1970", ended);
    registry.register("worker_failed", "Whether the last turn of a background thread failed", failed);
    registry.register("worker_backlog", "Work of a background thread that is due", backlog);
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
