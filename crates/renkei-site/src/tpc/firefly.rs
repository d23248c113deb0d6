//! Fireflies: a UDP packet at the start and one at the end of each connection of a copy that has a SciTag, for the
//! operators of networks.
//!
//! Source: the firefly of version 1 of scitags.org, in a line of syslog (RFC 5424). A packet that is lost is not missed.

use super::other_server::Ends;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::net::{ToSocketAddrs, UdpSocket};

/// Which way the bytes of a flow go, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They are received.
    In,
    /// They are sent.
    Out,
}

/// The flows of a copy that are told about.
#[derive(Clone, Debug)]
pub(super) struct Firefly {
    /// `HOST:PORT` of the collector.
    pub(super) collector: String,
    /// `experiment << 6 | activity`.
    pub(super) tag: u16,
    pub(super) way: Way,
}

/// A flow that began.
pub(super) struct Flow {
    firefly: Firefly,
    ends: Ends,
    began: Timestamp,
}

impl Firefly {
    /// Tells that a flow began; its end is told when the value is dropped.
    pub(super) fn begin(&self, ends: Ends) -> Flow {
        let flow = Flow { firefly: self.clone(), ends, began: Timestamp::now() };
        flow.send(flow.began, None);
        flow
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let now = Timestamp::now();
        self.send(now, Some(now));
    }
}

impl Flow {
    fn send(&self, now: Timestamp, ended: Option<Timestamp>) {
        let line = format!("<134>1 {now} - renkei - firefly-json - {}", self.text(now, ended));
        let collector = self.firefly.collector.to_socket_addrs().ok().and_then(|mut all| all.next());
        let Some(collector) = collector else { return };
        let own = if collector.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sent = UdpSocket::bind(own).and_then(|sock| sock.send_to(line.as_bytes(), collector));
        if let Err(error) = sent {
            tracing::debug!(%error, "a firefly was not sent");
        }
    }

    fn text(&self, now: Timestamp, ended: Option<Timestamp>) -> Value {
        let (source, destination) = match self.firefly.way {
            Way::In => (self.ends.remote, self.ends.local),
            Way::Out => (self.ends.local, self.ends.remote),
        };
        let mut life = json!({
            "state": if ended.is_some() { "end" } else { "start" },
            "current-time": now.to_string(),
            "start-time": self.began.to_string(),
        });
        if let Some(ended) = ended {
            life["end-time"] = ended.to_string().into();
        }
        json!({
            "version": 1,
            "flow-lifecycle": life,
            "context": {
                "experiment-id": self.firefly.tag >> 6,
                "activity-id": self.firefly.tag & 63,
                "application": "renkei",
            },
            "flow-id": {
                "afi": if source.ip().to_canonical().is_ipv4() { "ipv4" } else { "ipv6" },
                "src-ip": source.ip().to_canonical().to_string(),
                "dst-ip": destination.ip().to_canonical().to_string(),
                "protocol": "tcp",
                "src-port": source.port(),
                "dst-port": destination.port(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_told_at_its_start_and_end() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        collector.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
        let address = collector.local_addr().unwrap().to_string();
        let firefly = Firefly { collector: address, tag: 206, way: Way::In };
        let ends =
            Ends { local: "192.0.2.1:1000".parse().unwrap(), remote: "192.0.2.2:443".parse().unwrap() };
        drop(firefly.begin(ends));
        for state in ["start", "end"] {
            let mut packet = [0; 2048];
            let count = collector.recv(&mut packet).unwrap();
            let line = std::str::from_utf8(&packet[..count]).unwrap();
            let told: Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
            assert_eq!(told["flow-lifecycle"]["state"], state);
            assert_eq!(
                (&told["context"]["experiment-id"], &told["context"]["activity-id"]),
                (&json!(3), &json!(14))
            );
            assert_eq!(
                (&told["flow-id"]["src-port"], &told["flow-id"]["dst-ip"]),
                (&json!(443), &json!("192.0.2.1"))
            );
        }
    }
}
