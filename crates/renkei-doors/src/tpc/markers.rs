//! The body of the answer to COPY: markers of the progress, and the result as the last line.

use crate::http::activity::Activity;
use axum::body::Bytes;
use hyper::body::{Body, Frame};
use renkei_core::error::{Code, Error};
use renkei_site::files::body::Progress;
use renkei_site::tpc::{Copy, Ends, Seen, Stage};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Interval of the markers; clients wait at least for 30 s.
const EVERY: Duration = Duration::from_secs(3);

/// The body; dropping it stops the copy.
pub(super) struct Markers {
    copy: Copy,
    began: SystemTime,
    ticks: Interval,
    is_over: bool,
    activity: Activity,
}

impl Markers {
    pub(super) fn new(copy: Copy, activity: Activity) -> Self {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Markers { copy, began: SystemTime::now(), ticks, is_over: false, activity }
    }

    fn now(&self, status: Option<&'static str>) -> String {
        marker(&self.copy.progress.look(), self.began, SystemTime::now(), status)
    }
}

impl Body for Markers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let text = match Pin::new(&mut self.copy.ended).poll(context) {
            Poll::Ready(ended) => {
                self.is_over = true;
                let lost = || Error::new(Code::Internal, "copy", "", "its thread ended");
                let result = ended.unwrap_or_else(|_| Err(lost()));
                let status = if result.is_ok() { "DONE" } else { "CANCELED" };
                self.now(Some(status)) + &last_line(&result)
            }
            Poll::Pending => match self.ticks.poll_tick(context) {
                Poll::Ready(_) => self.now(None),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.activity.step();
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn addresses(connections: &[Ends], end: impl Fn(&Ends) -> std::net::SocketAddr) -> String {
    let canonical = |address: std::net::SocketAddr| {
        std::net::SocketAddr::new(address.ip().to_canonical(), address.port())
    };
    let all = connections.iter().map(|ends| format!("tcp:{}", canonical(end(ends))));
    all.collect::<Vec<_>>().join(",")
}

/// One marker. Clients read the number of bytes at a fixed place: one space follows each colon.
fn marker(seen: &Seen, began: SystemTime, now: SystemTime, status: Option<&'static str>) -> String {
    let (number, state, stripe) = match seen.stage {
        Stage::Queued => (1, "waiting for other copies", "QUEUED"),
        Stage::Running => (10, "transfer has started", "RUNNING"),
        Stage::Verifying => (11, "comparing checksums", "RUNNING"),
    };
    let (stripe, start) = (status.unwrap_or(stripe), seen.started.unwrap_or(began));
    let (start, now) = (seconds(start), seconds(now));
    let last = seen.last.map_or(start, seconds);
    let mut text = format!(
        "Perf Marker\n    Timestamp: {now}\n    State: {number}\n    State description: {state}\n    \
         Stripe Index: 0\n    Stripe Start Time: {start}\n    Stripe Last Transferred: {last}\n    \
         Stripe Transfer Time: {}\n    Stripe Bytes Transferred: {}\n    Stripe Status: {stripe}\n    \
         Total Stripe Count: 1\n",
        now.saturating_sub(start),
        seen.bytes
    );
    if !seen.connections.is_empty() {
        let remote = addresses(&seen.connections, |ends| ends.remote);
        let _ = writeln!(text, "    RemoteConnections: {remote}");
    }
    text + "End\n"
}

/// The result: the client shows the text to its user.
fn last_line(result: &Result<(), Error>) -> String {
    let one_line = |error: &Error| error.to_string().replace(|c: char| c.is_control(), " ");
    match result {
        Ok(()) => "success: Created\n".into(),
        Err(error) if error.code == Code::Cancelled => format!("aborted: {}\n", one_line(error)),
        Err(error) => format!("failure: {}\n", one_line(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_have_the_form_that_clients_read() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let connections = vec![
            Ends { local: "192.0.2.1:5".parse().unwrap(), remote: "147.231.25.166:21234".parse().unwrap() },
            Ends { local: "[::1]:5".parse().unwrap(), remote: "[2001:db8::28]:24081".parse().unwrap() },
        ];
        let seen = Seen {
            stage: Stage::Running,
            started: Some(at(1_537_788_005)),
            last: Some(at(1_537_788_009)),
            bytes: 238_745,
            connections,
        };
        let text = marker(&seen, at(0), at(1_537_788_010), None);
        assert!(
            text.starts_with("Perf Marker\n    Timestamp: 1537788010\n") && text.ends_with("\nEnd\n"),
            "{text}"
        );
        for line in [
            "    Stripe Index: 0",
            "    Stripe Start Time: 1537788005",
            "    Stripe Last Transferred: 1537788009",
            "    Stripe Transfer Time: 5",
            "    Stripe Bytes Transferred: 238745",
            "    Stripe Status: RUNNING",
            "    Total Stripe Count: 1",
            "    RemoteConnections: tcp:147.231.25.166:21234,tcp:[2001:db8::28]:24081",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn the_last_line_is_one_line() {
        let error = Error::new(Code::ServerRefused, "GET", "https://a/x", "HTTP 403\r\nsuccess: Created");
        let text = last_line(&Err(error));
        assert!(text.starts_with("failure: RK-TPC-2: ") && text.matches('\n').count() == 1, "{text}");
        let cancelled = Error::new(Code::Cancelled, "copy", "", "");
        assert!(last_line(&Err(cancelled)).starts_with("aborted: RK-MOVE-5"));
        assert_eq!(last_line(&Ok(())), "success: Created\n");
    }
}
