//! The output of `renkei doctor`: one line for each check, and the first failure's exit status.

use crate::cli::output::Report;
use crate::cli::quantity::span;
use crate::cli::remedy::{here, remedy};
use renkei_core::error::Error;
use renkei_site::status::conditions::{Condition, Finding, Severity};
use serde::Serialize;
use std::io::{self, Write};
use std::time::SystemTime;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Correct.
    Ok,
    /// Works, and nothing needs to be done soon. In JSON it is a warning: programs know three levels.
    #[serde(rename = "warn")]
    Info,
    /// Works, but something should be done.
    Warn,
    /// Does not work.
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    level: Level,
    what: String,
    found: String,
    remedy: Option<String>,
    code: Option<String>,
    #[serde(skip)]
    status: u8,
}

/// All checks so far.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Checks {
    checks: Vec<Check>,
    ok: usize,
    warn: usize,
    fail: usize,
}

impl Checks {
    /// Records a success.
    pub(crate) fn ok(&mut self, what: &str, found: impl Into<String>) {
        self.ok += 1;
        self.push(Level::Ok, what, found.into(), None);
    }

    /// Records a success, and a possible improvement.
    pub(crate) fn advise(&mut self, what: &str, found: impl Into<String>, advice: impl Into<String>) {
        self.ok += 1;
        self.push(Level::Ok, what, found.into(), Some(advice.into()));
    }

    /// Records a warning.
    pub(crate) fn warn(&mut self, what: &str, found: impl Into<String>, remedy: impl Into<String>) {
        self.warn += 1;
        self.push(Level::Warn, what, found.into(), Some(remedy.into()));
    }

    /// Records information about something that will need action.
    pub(crate) fn info(&mut self, what: &str, found: impl Into<String>, remedy: impl Into<String>) {
        self.warn += 1;
        self.push(Level::Info, what, found.into(), Some(remedy.into()));
    }

    /// Records an expiry, at the level of its urgency.
    pub(crate) fn ends(&mut self, what: &str, found: impl Into<String>, finding: Finding) {
        match finding.severity {
            Severity::Info => self.info(what, found, finding.remedy),
            Severity::Warning | Severity::Critical => self.warn(what, found, finding.remedy),
        }
    }

    /// Records a failure.
    pub(crate) fn fail(&mut self, what: &str, found: impl Into<String>, remedy: impl Into<String>) {
        self.fail += 1;
        self.push(Level::Fail, what, found.into(), Some(remedy.into()));
    }

    /// Records a failure by its error.
    pub(crate) fn error(&mut self, what: &str, error: &Error) {
        self.fail(what, error.to_string(), remedy(error));
        if let Some(check) = self.checks.last_mut() {
            check.code = Some(error.code.to_string());
            check.status = error.kind().exit_status();
        }
    }

    /// Records a condition that the PoP itself reports.
    pub(crate) fn condition(&mut self, condition: &Condition) {
        let lasts = span(condition.lasts(SystemTime::now()));
        let (what, found) = (condition.subject(), format!("{}; for {lasts}", condition.found));
        match condition.severity {
            Severity::Critical => self.fail(&what, found, here(&condition.remedy)),
            Severity::Warning => self.warn(&what, found, here(&condition.remedy)),
            Severity::Info => self.info(&what, found, here(&condition.remedy)),
        }
        if let Some(check) = self.checks.last_mut() {
            check.code = Some(condition.code.to_string());
            check.status = condition.code.row().kind.exit_status();
        }
    }

    /// The exit status: that of the first failure.
    pub(crate) fn status(&self) -> u8 {
        self.checks.iter().find(|check| check.level == Level::Fail).map_or(0, |check| check.status)
    }

    fn push(&mut self, level: Level, what: &str, found: String, remedy: Option<String>) {
        self.checks.push(Check { level, what: what.into(), found, remedy, code: None, status: 1 });
    }
}

impl Report for Checks {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.checks.iter().map(|check| check.what.chars().count()).max().unwrap_or(0);
        for Check { level, what, found, remedy, .. } in &self.checks {
            let level = match level {
                Level::Ok => "ok  ",
                Level::Info => "info",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            let remedy = remedy.as_ref().map(|remedy| format!(" - {remedy}")).unwrap_or_default();
            writeln!(out, "{level}  {what:<width$} - {found}{remedy}")?;
        }
        let infos = self.checks.iter().filter(|check| check.level == Level::Info).count();
        let told = if infos == 0 { String::new() } else { format!("{infos} for information, ") };
        writeln!(out, "{} ok, {told}{} warnings, {} failed", self.ok, self.warn - infos, self.fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    #[test]
    fn the_first_failure_gives_the_status() {
        let mut checks = Checks::default();
        checks.ok("a", "good");
        checks.warn("b", "so so", "do this");
        assert_eq!(checks.status(), 0);
        checks.error("c", &Error::new(Code::PortClosed, "connect", "x", ""));
        checks.fail("d", "bad", "do that");
        assert_eq!(checks.status(), 8);
        let mut text = Vec::new();
        checks.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("warn  b - so so - do this\n"), "{text}");
        assert!(text.ends_with("1 ok, 1 warnings, 2 failed\n"), "{text}");
    }

    #[test]
    fn information_is_shown_as_ok_and_kept_in_json() {
        let mut checks = Checks::default();
        let condition = |severity| Condition {
            what: "certificate".into(),
            name: "host".into(),
            severity,
            code: Code::CertificateEnds,
            found: "it ends on 2026-12-24".into(),
            remedy: "it renews itself".into(),
            since_unix: 0,
        };
        checks.condition(&condition(Severity::Info));
        checks.condition(&condition(Severity::Warning));
        assert_eq!(checks.status(), 0);
        let mut text = Vec::new();
        checks.write_text(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let words: Vec<&str> = text.lines().map(|line| &line[..4]).collect();
        assert_eq!(words, ["info", "warn", "0 ok"], "{text}");
        assert!(text.ends_with("0 ok, 1 for information, 1 warnings, 0 failed\n"), "{text}");
        let json = serde_json::to_value(&checks).unwrap();
        assert_eq!((&json["checks"][0]["level"], &json["warn"]), (&"warn".into(), &2.into()), "{json}");
    }
}
