//! The inventory shown by the console: volumes, trusted sites, the map, drop folders, certificates, threads.
//!
//! The administrator sees all of it. Users see the volumes that they may open, the sites that they may know, their
//! own mapping, and their own certificates.

use super::Monitor;
use super::conditions::Condition;
use super::console::Visitor;
use crate::access::Caller;
use crate::queue::drop_folders::{RuleState, label};
use crate::volume::admin::manages;
use crate::workers::Worker;
use renkei_config::Rule;
use renkei_core::error::Error;
use renkei_core::identity::{Principal, Rule as MapRule, Verdict};
use renkei_core::path::SiteName;
use renkei_core::wire::message::LineStatus;
use renkei_net::identity::account::Account;
use renkei_net::identity::authority::issued;
use renkei_net::identity::certificate::{Facts as Certificate, hosts};
use renkei_net::identity::map::{account_of, resolve};
use renkei_net::identity::mounting;
use renkei_net::identity::trust::card_history::newest;
use renkei_volume::home::follower_registry::followers;
use renkei_volume::volume_config::unknown;
use std::time::{Duration, Instant, SystemTime};

// These types are shown as they are.
pub use renkei_net::identity::authority::issued::Inventory;
pub use renkei_net::identity::trust::card_history::CardChange;
pub use renkei_volume::follower::restored_home::RestoreReport;
pub use renkei_volume::grant::Level;
pub use renkei_volume::volume_status::VolumeStatus;
pub use renkei_volume::{Followed, VolumeState};

/// Maximum card changes that are shown.
const SHOWN_CHANGES: usize = 20;

/// A follower of a volume of this site.
pub struct Follower {
    /// The site.
    pub site: SiteName,
    /// The record that it has confirmed since the PoP started.
    pub record: Option<u64>,
    /// Age of the confirmation.
    pub heard: Option<Duration>,
}

/// A trusted site.
pub struct Partner {
    /// The site.
    pub site: SiteName,
    /// Whether it is this one.
    pub is_own: bool,
    /// Fingerprint of its authority.
    pub fingerprint: String,
    /// Its endpoints.
    pub places: String,
    /// Its reachability.
    pub reach: Reach,
}

/// The reachability of a site.
pub enum Reach {
    /// It is this site.
    Own,
    /// The last connection to it succeeded.
    Reached(Instant),
    /// A line between the two is up.
    Line(LineStatus),
    /// The last connection failed; with the condition, if there is one.
    Unreached(Error, Option<Condition>),
    /// There was no connection since the PoP started.
    NotTried,
}

/// The result of testing the map for a principal.
pub struct Tested {
    /// The principal.
    pub principal: Principal,
    /// The verdict of the map.
    pub verdict: Verdict,
    /// The account, or why it is refused.
    pub outcome: Result<Account, Error>,
}

/// The map.
pub struct Map {
    /// The rules in their order.
    pub rules: Vec<MapRule>,
    /// Whether users of this site need no rule.
    pub own_users: bool,
    /// The lowest uid that a rule for all users of a site may map to.
    pub min_uid: u32,
}

/// A drop folder.
pub struct DropFolder {
    /// Its name.
    pub name: String,
    /// The rule.
    pub rule: Rule,
    /// The label of its transfers.
    pub label: String,
    /// Its state, once it was scanned.
    pub state: RuleState,
}

/// A certificate of the PoP or of an authority.
pub struct OwnCertificate {
    /// Its name.
    pub name: String,
    /// Its host names, or the fingerprint of an authority.
    pub about: String,
    /// Its expiry.
    pub until: Option<SystemTime>,
    /// Its serial.
    pub serial: String,
}

/// A mount with a credential of its own.
pub struct Mount {
    /// Its name.
    pub name: String,
    /// The user it works as.
    pub user: String,
    /// The time of the grant.
    pub since: SystemTime,
    /// The expiry of its certificate.
    pub until: Option<SystemTime>,
}

impl Monitor {
    // ---- volumes --------------------------------------------------------------------------------------------

    /// The names of the volumes that a visitor may see.
    pub fn volumes_seen(&self, visitor: &Visitor) -> Vec<String> {
        self.volumes_of(visitor.caller())
    }

    /// The names of the volumes that a caller may see.
    pub fn volumes_of(&self, caller: Caller<'_>) -> Vec<String> {
        let snapshot = self.context.last_snapshot();
        match caller.user() {
            None => snapshot.volumes.keys().cloned().collect(),
            Some(access) => access.volumes().into_iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// A volume as a visitor may see it.
    ///
    /// # Errors
    /// `VolumeUnknown`, and those of its storage and catalogue.
    pub fn volume_seen(&self, visitor: &Visitor, name: &str) -> Result<VolumeStatus, Error> {
        self.volume_of(visitor.caller(), name)
    }

    /// A volume as a caller may see it.
    ///
    /// # Errors
    /// As [`Monitor::volume_seen`].
    pub fn volume_of(&self, caller: Caller<'_>, name: &str) -> Result<VolumeStatus, Error> {
        let snapshot = self.context.last_snapshot();
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        if !self.volumes_of(caller).iter().any(|seen| seen == name) {
            return Err(unknown(name));
        }
        // A missing file system may block the caller.
        if let Some(error) = snapshot.trouble_of(name) {
            return Err(error);
        }
        match caller.user() {
            None => Ok(VolumeStatus::new(name, facts, Some(self.volumes.volume_standing(name)?))),
            Some(access) => self.volumes.show_volume(access, name),
        }
    }

    /// The followers of a volume of this site, for the administrator and its managers.
    pub fn followers_seen(&self, visitor: &Visitor, name: &str) -> Vec<Follower> {
        let snapshot = self.context.last_snapshot();
        let Some(facts) = snapshot.volumes.get(name).filter(|facts| !snapshot.follows(facts)) else {
            return Vec::new();
        };
        if visitor.caller().user().is_some_and(|access| !manages(facts, access)) {
            return Vec::new();
        }
        let known = snapshot.volume_tree(facts.id).and_then(|tree| followers(&tree)).unwrap_or_default();
        let follower = |site: SiteName| {
            let told = self.volumes.confirmed.of(facts.id, &site);
            let (record, heard) = (told.map(|(seq, _)| seq), told.map(|(_, at)| at.elapsed()));
            Follower { site, record, heard }
        };
        known.into_keys().map(follower).collect()
    }

    // ---- trust ----------------------------------------------------------------------------------------------

    /// The trusted sites, as far as a visitor may know them.
    pub fn partners_seen(&self, visitor: &Visitor) -> Vec<Partner> {
        let snapshot = self.context.last_snapshot();
        let knows_all = visitor.sees_trust(&snapshot.site);
        let own = visitor.caller().user().map(|access| access.principal.site().clone());
        let (conditions, unreached) = (self.conditions(), self.relay.memory.unreached());
        let lines = self.relay.line_status(|_| true);
        let reach = |site: &SiteName| {
            let found = conditions
                .iter()
                .find(|one| ["partner", "line"].contains(&one.what.as_str()) && one.name == site.as_str());
            match (unreached.get(site), lines.iter().find(|line| line.site == *site)) {
                _ if *site == snapshot.site => Reach::Own,
                (_, Some(line)) => Reach::Line(line.clone()),
                (Some(last), None) => Reach::Unreached(last.error.clone(), found.cloned()),
                (None, None) => self.relay.memory.reached(site).map_or(Reach::NotTried, Reach::Reached),
            }
        };
        let seen = snapshot.trust.list().filter(|card| knows_all || own.as_ref() == Some(&card.site));
        let partner = |card: &renkei_net::identity::trust::card::SiteCard| Partner {
            site: card.site.clone(),
            is_own: card.site == snapshot.site,
            fingerprint: card.fingerprint(),
            places: card.places(),
            reach: reach(&card.site),
        };
        seen.map(partner).collect()
    }

    /// The changed cards, the newest first; for the administrator.
    pub fn card_changes(&self) -> Vec<CardChange> {
        newest(self.context.home(), SHOWN_CHANGES)
    }

    // ---- mapping --------------------------------------------------------------------------------------------

    /// The map, for the administrator.
    pub fn map_rules(&self) -> Map {
        let snapshot = self.context.last_snapshot();
        Map {
            rules: snapshot.mapping.rules().to_vec(),
            own_users: snapshot.config.map_own_users,
            min_uid: snapshot.config.map_min_uid,
        }
    }

    /// Tests the map for a principal.
    ///
    /// # Errors
    /// `UsageInvalid` for an invalid principal.
    pub fn test_map(&self, principal: &str) -> Result<Tested, Error> {
        let (snapshot, principal) = (self.context.last_snapshot(), Principal::parse(principal)?);
        let verdict = resolve(&snapshot.mapping, &snapshot.config, &principal);
        let outcome = account_of(&snapshot.mapping, &snapshot.config, &principal);
        Ok(Tested { principal, verdict, outcome })
    }

    // ---- drop folders, threads ------------------------------------------------------------------------------

    /// The drop folders, for the administrator.
    pub fn drop_folders_seen(&self) -> Vec<DropFolder> {
        let (snapshot, mut states) = (self.context.last_snapshot(), self.drop_folders.states());
        let folder = |(name, rule): (&String, &Rule)| DropFolder {
            name: name.clone(),
            rule: rule.clone(),
            label: label(name),
            state: states.remove(name).unwrap_or_default(),
        };
        snapshot.config.rule.iter().map(folder).collect()
    }

    /// The background threads, for the administrator.
    pub fn workers(&self) -> Vec<Worker> {
        self.context.workers.all()
    }

    // ---- certificates ---------------------------------------------------------------------------------------

    /// The certificates of the PoP, of the web and of the trusted authorities, for the administrator.
    pub fn own_certificates(&self) -> Vec<OwnCertificate> {
        let snapshot = self.context.last_snapshot();
        let mut all = Vec::new();
        if let Some(leaf) = snapshot.credential.chain.first() {
            let about = hosts(leaf).unwrap_or_default().join(", ");
            let facts = Certificate::read(leaf).ok();
            let (until, serial) = facts.map(|facts| (facts.not_after, facts.serial)).unzip();
            all.push(OwnCertificate {
                name: "host".into(),
                about,
                until,
                serial: serial.unwrap_or_default(),
            });
        }
        if let Some(web) = snapshot.web.used() {
            let (name, about, serial) = ("web".into(), web.hosts.join(", "), web.serial.clone());
            all.push(OwnCertificate { name, about, until: Some(web.not_after), serial });
        }
        let authorities = snapshot.trust.list().map(|card| {
            let facts = Certificate::read(&card.authority).ok();
            let (until, serial) = facts.map(|facts| (facts.not_after, facts.serial)).unzip();
            let name = format!("authority of {}", card.site);
            OwnCertificate { name, about: card.fingerprint(), until, serial: serial.unwrap_or_default() }
        });
        all.extend(authorities);
        all
    }

    /// Certificates that this site's authority issued and revoked: all of them, or the visitor's.
    ///
    /// # Errors
    /// Those of the files.
    pub fn issued_certificates(&self, visitor: &Visitor) -> Result<Inventory, Error> {
        issued::inventory(
            self.context.home(),
            visitor.caller().user().map(|access| &access.principal),
            SystemTime::now(),
        )
    }

    /// The mounts with credentials of their own: all of them, or the visitor's.
    ///
    /// # Errors
    /// Those of the files.
    pub fn mounts_seen(&self, visitor: &Visitor) -> Result<Vec<Mount>, Error> {
        let mut grants = mounting::list(self.context.home())?;
        grants.retain(|grant| visitor.sees(&grant.user.to_string()));
        let mount = |grant: mounting::Grant| {
            let until = mounting::valid_until(self.context.home(), &grant.number)?;
            Ok(Mount { name: grant.name, user: grant.user.to_string(), since: grant.since, until })
        };
        grants.into_iter().map(mount).collect()
    }
}
