//! Data for the console: this PoP, the paths to other sites, transfers; limited to what the visitor may see.

use super::Monitor;
use super::conditions::Condition;
use super::console::Visitor;
use crate::access::Access;
use crate::transfer::history::{Outcome, Run, Way};
use renkei_core::error::Code;
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{LineStatus, TransferStatus};
use renkei_net::identity::certificate::utc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// This PoP.
pub struct Overview {
    /// Its site.
    pub site: String,
    /// Program version.
    pub software: &'static str,
    /// Its uptime.
    pub uptime: Duration,
    /// Control sessions open now.
    pub sessions: u64,
    /// Transfers since the start: done and failed. For the administrator alone.
    pub ended: Option<(u64, u64)>,
    /// Conditions that need attention.
    pub warnings: Vec<Condition>,
}

/// A trusted site and the path to it.
pub struct Neighbour {
    /// The site.
    pub site: SiteName,
    /// Its endpoints.
    pub endpoints: Vec<String>,
    /// The line between the two sites, if one cannot be dialled and keeps one.
    pub line: Option<LineStatus>,
    /// Data streams kept for the next transfer to the site, and from it.
    pub kept: (usize, usize),
    /// Bytes per second of the active transfers that the visitor may see, to the site and from it.
    pub rates: (u64, u64),
    /// Statistics of the last transfers.
    pub way: Way,
    /// The error of the last failed attempt to reach it.
    pub unreached: Option<Code>,
}

/// A timestamp as displayed.
pub fn moment(time: SystemTime) -> String {
    utc(time)
}

impl Visitor {
    /// Whether the visitor may see activity of `principal`.
    pub(crate) fn sees(&self, principal: &str) -> bool {
        self.caller().user().is_none_or(|access| access.principal.to_string() == principal)
    }

    /// Whether the visitor may see the trusted sites: a user of this site, as in `Site::card`, or the
    /// administrator.
    pub(crate) fn sees_trust(&self, own: &SiteName) -> bool {
        let own_user = |access: &Access| match &access.principal {
            user @ Principal::User { .. } => user.site() == own,
            Principal::Host(_) | Principal::Agent { .. } => false,
        };
        self.caller().user().is_none_or(own_user)
    }
}

impl Monitor {
    /// Status of the PoP.
    pub fn overview(self: &Arc<Self>, visitor: &Visitor) -> Overview {
        let (snapshot, counters) = (self.context.last_snapshot(), &self.context.counters);
        let is_admin = visitor.caller().is_administrator();
        let ended = || {
            [&counters.transfers_done, &counters.transfers_failed].map(|n| n.load(Ordering::Relaxed)).into()
        };
        Overview {
            site: snapshot.site.to_string(),
            software: renkei_net::SOFTWARE,
            uptime: self.context.started().elapsed(),
            sessions: counters.sessions.load(Ordering::Relaxed),
            ended: is_admin.then(ended),
            warnings: self.warnings(visitor),
        }
    }

    /// Active conditions: all for the administrator, for others those of the storages they may use.
    fn warnings(self: &Arc<Self>, visitor: &Visitor) -> Vec<Condition> {
        let mut conditions = self.conditions();
        if let Some(access) = visitor.caller().user() {
            conditions.retain(|one| is_of_storage(one) && access.may_see(&one.name));
            // Paths and accounts are shown to the administrator only.
            conditions.iter_mut().for_each(|one| one.found = one.code.row().title.into());
        }
        conditions
    }

    /// The trusted sites, limited to what the visitor may know: all for own users and the administrator, the own
    /// site for others.
    pub fn neighbours(&self, visitor: &Visitor) -> Vec<Neighbour> {
        let snapshot = self.context.last_snapshot();
        let knows_all = visitor.sees_trust(&snapshot.site);
        let own = visitor.caller().user().map(|access| access.principal.site());
        let (running, lines) = (self.runs(visitor), self.relay.line_status(|_| true));
        let unreached = self.relay.memory.unreached();
        let cards = snapshot.trust.list().filter(|card| card.site != snapshot.site);
        let seen = cards.filter(|card| knows_all || own == Some(&card.site));
        let neighbour = |card: &renkei_net::identity::trust::card::SiteCard| Neighbour {
            site: card.site.clone(),
            endpoints: card.endpoints.clone(),
            line: lines.iter().find(|line| line.site == card.site).cloned(),
            kept: self.transfers.kept_streams(&card.site),
            rates: (rate(&running, &card.site, "send"), rate(&running, &card.site, "receive")),
            way: self.transfers.active.way(&card.site),
            unreached: unreached.get(&card.site).map(|last| last.error.code),
        };
        seen.map(neighbour).collect()
    }

    /// Active and past transfers, active ones first, each part newest first.
    pub fn runs(&self, visitor: &Visitor) -> Vec<Run> {
        self.transfers.active.runs(|status: &TransferStatus| visitor.sees(&status.principal))
    }
}

fn rate(runs: &[Run], site: &SiteName, direction: &str) -> u64 {
    let on_it = |run: &&Run| {
        run.outcome == Outcome::Running
            && run.peer.as_ref() == Some(site)
            && run.status.direction == direction
    };
    runs.iter().filter(on_it).map(Run::rate).sum()
}

/// Whether a condition concerns the users of a storage.
fn is_of_storage(condition: &Condition) -> bool {
    matches!(condition.what.as_str(), "storage" | "room" | "agent")
}
