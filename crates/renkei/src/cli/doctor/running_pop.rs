//! `renkei doctor`: what a running PoP reports about itself.

use super::check::Checks;
use crate::cli::quantity::{counted, span};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::Error;
use renkei_core::wire::message::{AgentStatus, LineStatus};
use renkei_mover::connect::transport::unreachable;
use renkei_net::identity::certificate::{Facts, utc};
use renkei_net::identity::socket;
use renkei_net::identity::trust::Trust;
use renkei_site::status::conditions::Condition;
use renkei_site::status::health_checks::certificate_ends;
use renkei_volume::volume_config;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};

/// Timeout for the own port to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The reply of a running PoP, or the error why there is none.
pub(crate) struct Running {
    status: Result<Value, Error>,
    conditions: Vec<Condition>,
}

impl Running {
    /// Asks the PoP of a directory.
    pub(crate) fn ask(home: &Home) -> Self {
        let status = socket::request(&home.socket(), &json!({"op": "status"}));
        let told = status.as_ref().map(|status| status["conditions"].clone()).unwrap_or_default();
        Running { status, conditions: serde_json::from_value(told).unwrap_or_default() }
    }

    /// Whether the PoP itself reports a condition of this kind, so that no further check is needed.
    pub(crate) fn tells_of(&self, what: &str, name: &str) -> bool {
        self.conditions.iter().any(|one| one.what == what && one.name == name)
    }

    /// Checks that it runs, its conditions, and its ports.
    pub(crate) fn check(&self, home: &Home, config: &Config, checks: &mut Checks) {
        match &self.status {
            Ok(status) => {
                checks.ok("PoP", format!("answers at {}", home.socket().display()));
                self.check_told(checks);
                self.check_lines(status, config, checks);
                self.check_agents(status, checks);
            }
            Err(error) => checks.error("PoP", error),
        }
        for address in &config.listen {
            let what = format!("port {address}");
            match TcpStream::connect_timeout(&reachable(*address), ANSWER_WITHIN) {
                Ok(_) => checks.ok(&what, "open"),
                Err(error) => {
                    let error = Error { subject: address.to_string(), ..unreachable(&error) };
                    checks.error(&what, &error.at("client"));
                }
            }
        }
    }

    /// Reports the conditions of the PoP.
    pub(crate) fn check_told(&self, checks: &mut Checks) {
        self.conditions.iter().for_each(|condition| checks.condition(condition));
    }

    /// Checks the lines of this PoP, other than those in its conditions.
    fn check_lines(&self, status: &Value, config: &Config, checks: &mut Checks) {
        let lines: Vec<LineStatus> = serde_json::from_value(status["lines"].clone()).unwrap_or_default();
        for hub in config.reverse.iter().filter(|hub| !self.tells_of("line", hub.as_str())) {
            let what = format!("line to {hub}");
            match lines.iter().find(|line| line.kept_here && line.site == *hub) {
                Some(line) => checks.ok(&what, format!("up {}", span(Duration::from_secs(line.up_s)))),
                None => checks.ok(&what, "is being opened"),
            }
        }
    }

    /// Checks the agents of storages, other than those in its conditions.
    fn check_agents(&self, status: &Value, checks: &mut Checks) {
        let agents: Vec<AgentStatus> = serde_json::from_value(status["agents"].clone()).unwrap_or_default();
        for AgentStatus { storage, account, up_s } in agents {
            let what = format!("agent of {storage}");
            match up_s {
                Some(up_s) => checks.ok(&what, format!("up {}", span(Duration::from_secs(up_s)))),
                None if self.tells_of("agent", &storage) => {}
                None => checks.ok(&what, format!("has just ended; {account} runs it")),
            }
        }
    }
}

impl Running {
    /// Checks the authority certificates of this site and of its partners, other than those in its conditions.
    pub(crate) fn check_authorities(&self, home: &Home, now: SystemTime, checks: &mut Checks) {
        let trust = match Trust::load(home) {
            Ok(trust) => trust,
            Err(error) => return checks.error("trust", &error),
        };
        for card in trust.list() {
            let name = format!("authority of {}", card.site);
            let Ok(facts) = Facts::read(&card.authority) else { continue };
            let remedy = match trust.own_site() == Some(&card.site) {
                true => "`renkei site rotate-authority`".to_owned(),
                false => format!("ask {} for its new card", card.site),
            };
            let found = format!("valid until {}", utc(facts.not_after));
            match certificate_ends(&name, facts.not_after, now, &remedy) {
                _ if self.tells_of("certificate", &name) => {}
                Some(finding) => checks.ends(&name, found, finding),
                None => checks.ok(&name, found),
            }
        }
    }

    /// Checks the volumes, other than those in its conditions.
    pub(crate) fn check_volumes(&self, home: &Home, checks: &mut Checks) {
        let volumes = match volume_config::load(home) {
            Ok(volumes) => volumes,
            Err(error) => return checks.error("volumes", &error),
        };
        for (name, facts) in volumes.iter().filter(|(name, _)| !self.tells_of("volume", name)) {
            let what = format!("volume {name}");
            let asked = || socket::request(&home.socket(), &json!({"op": "volume", "name": name}));
            let standing = match self.status.is_ok() {
                true => asked()
                    .map(|standing| format!(", {}", counted(&standing["records"], "record", "records"))),
                false => Ok(String::new()),
            };
            match standing {
                Ok(standing) => checks.ok(&what, format!("its home is {}{standing}", facts.home)),
                Err(error) => checks.error(&what, &error),
            }
        }
    }

    /// Checks the rules of drop folders, other than those in its conditions.
    pub(crate) fn check_rules(&self, config: &Config, checks: &mut Checks) {
        for (name, rule) in config.rule.iter().filter(|(name, _)| !self.tells_of("rule", name)) {
            let what = format!("rule {name}");
            match config.check_rule(name, rule) {
                Ok(()) => checks.ok(&what, format!("{} to {}", rule.from, rule.to)),
                Err(error) => checks.error(&what, &error),
            }
        }
    }
}

/// A connectable address of a listener on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        let reached = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:7512"), "127.0.0.1:7512");
        assert_eq!(reached("[::]:7512"), "[::1]:7512");
        assert_eq!(reached("192.0.2.1:7512"), "192.0.2.1:7512");
    }
}
