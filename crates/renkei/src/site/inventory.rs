//! What a PoP has and knows, as the console lists it: volumes, trusted sites, the map, drop folders, certificates, threads.
//!
//! The administrator sees all of it. Users see the volumes that they may open, the sites that they may know, what they are mapped
//! to, and their own certificates.

use super::Site;
use super::conditions::Condition;
use super::console::Visitor;
use super::drop_folders::{RuleState, label};
use super::volume_admin::manages;
use super::workers::Worker;
use crate::config::Rule;
use crate::identity::account::Account;
use crate::identity::card_history::newest;
use crate::identity::certificate::{Facts as Certificate, hosts};
use crate::identity::issued;
use crate::identity::map::{account_of, resolve};
use crate::identity::mounting;
use crate::volume::home::follower_registry::followers;
use crate::volume::volume_config::unknown;
use renkei_core::error::Error;
use renkei_core::identity::{Principal, Rule as MapRule, Verdict};
use renkei_core::path::SiteName;
use renkei_core::wire::message::LineStatus;
use std::time::{Duration, Instant, SystemTime};

// What is shown of these is what they say of themselves.
pub use crate::identity::card_history::CardChange;
pub use crate::identity::issued::Inventory;
pub use crate::volume::follower::restored_home::RestoreReport;
pub use crate::volume::grant::Level;
pub use crate::volume::volume_status::VolumeStatus;
pub use crate::volume::{Followed, Standing};

/// Changes of cards that are shown.
const SHOWN_CHANGES: usize = 20;

/// A site that follows a volume whose home is here.
pub struct Follower {
    /// The site.
    pub site: SiteName,
    /// The record up to which it has all, if it said since the PoP started.
    pub record: Option<u64>,
    /// How long ago it said so.
    pub heard: Option<Duration>,
}

/// A trusted site.
pub struct Partner {
    /// The site.
    pub site: SiteName,
    /// Whether it is this one.
    pub is_own: bool,
    /// Of its authority.
    pub fingerprint: String,
    /// Where it is reached.
    pub places: String,
    /// Whether it is reached.
    pub reach: Reach,
}

/// Whether a site is reached.
pub enum Reach {
    /// It is this one.
    Own,
    /// It was, when it was dialled last.
    Reached(Instant),
    /// A line between the two is up.
    Line(LineStatus),
    /// It is not, since this moment where that is known.
    Unreached(Error, Option<Condition>),
    /// Nobody has dialled it since the PoP started.
    NotTried,
}

/// What somebody would become here.
pub struct Tested {
    /// Who.
    pub principal: Principal,
    /// What the map says.
    pub verdict: Verdict,
    /// The account, or why it is refused.
    pub outcome: Result<Account, Error>,
}

/// The map.
pub struct Map {
    /// The rules in their order.
    pub rules: Vec<MapRule>,
    /// Whether users of this site need none.
    pub own_users: bool,
    /// The lowest user id that a rule for all of a site leads to.
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
    /// How it is doing, once it was looked into.
    pub state: RuleState,
}

/// A certificate of the PoP or of an authority.
pub struct OwnCertificate {
    /// Which.
    pub name: String,
    /// For which hosts, or of which site.
    pub about: String,
    /// Its last moment.
    pub until: Option<SystemTime>,
    /// Its serial.
    pub serial: String,
}

/// A mount with a credential of its own.
pub struct Mount {
    /// Its name.
    pub name: String,
    /// As whom it works.
    pub user: String,
    /// Since when it is granted.
    pub since: SystemTime,
    /// Until when its certificate is valid.
    pub until: Option<SystemTime>,
}

impl Site {
    // ---- volumes -----------------------------------------------------------------------------------------------------

    /// The names of the volumes that a visitor may see.
    pub fn volumes_seen(&self, visitor: &Visitor) -> Vec<String> {
        let snapshot = self.last_snapshot();
        match visitor.access() {
            None => snapshot.volumes.keys().cloned().collect(),
            Some(access) => access.volumes().into_iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// A volume as a visitor may see it.
    ///
    /// # Errors
    /// `VolumeUnknown`, and what keeps it from being looked at.
    pub fn volume_seen(&self, visitor: &Visitor, name: &str) -> Result<VolumeStatus, Error> {
        let snapshot = self.last_snapshot();
        let facts = snapshot.volumes.get(name).ok_or_else(|| unknown(name))?;
        if !self.volumes_seen(visitor).iter().any(|seen| seen == name) {
            return Err(unknown(name));
        }
        // A file system that is gone may hang whoever looks at it.
        if let Some(error) = snapshot.trouble_of(name) {
            return Err(error);
        }
        match visitor.access() {
            None => Ok(VolumeStatus::new(name, facts, Some(self.volume_standing(name)?))),
            Some(access) => self.show_volume(access, name),
        }
    }

    /// The sites that follow a volume whose home is here, for whoever manages it.
    pub fn followers_seen(&self, visitor: &Visitor, name: &str) -> Vec<Follower> {
        let snapshot = self.last_snapshot();
        let Some(facts) = snapshot.volumes.get(name).filter(|facts| !snapshot.follows(facts)) else {
            return Vec::new();
        };
        if visitor.access().is_some_and(|access| !manages(facts, access)) {
            return Vec::new();
        }
        let known = snapshot.volume_tree(facts.id).and_then(|tree| followers(&tree)).unwrap_or_default();
        let follower = |site: SiteName| {
            let told = self.confirmed.of(facts.id, &site);
            let (record, heard) = (told.map(|(seq, _)| seq), told.map(|(_, at)| at.elapsed()));
            Follower { site, record, heard }
        };
        known.into_keys().map(follower).collect()
    }

    // ---- trust -------------------------------------------------------------------------------------------------------

    /// The sites that this one trusts, as far as a visitor may know them.
    pub fn partners_seen(&self, visitor: &Visitor) -> Vec<Partner> {
        let snapshot = self.last_snapshot();
        let knows_all = visitor.sees_trust(&snapshot.site);
        let own = visitor.access().map(|access| access.principal.site().clone());
        let (conditions, unreached) = (self.conditions(), self.memory.unreached());
        let lines = self.line_status(|_| true);
        let reach = |site: &SiteName| {
            let found = conditions
                .iter()
                .find(|one| ["partner", "line"].contains(&one.what.as_str()) && one.name == site.as_str());
            match (unreached.get(site), lines.iter().find(|line| line.site == *site)) {
                _ if *site == snapshot.site => Reach::Own,
                (_, Some(line)) => Reach::Line(line.clone()),
                (Some(last), None) => Reach::Unreached(last.error.clone(), found.cloned()),
                (None, None) => self.memory.reached(site).map_or(Reach::NotTried, Reach::Reached),
            }
        };
        let seen = snapshot.trust.list().filter(|card| knows_all || own.as_ref() == Some(&card.site));
        let partner = |card: &crate::identity::card::SiteCard| Partner {
            site: card.site.clone(),
            is_own: card.site == snapshot.site,
            fingerprint: card.fingerprint(),
            places: card.places(),
            reach: reach(&card.site),
        };
        seen.map(partner).collect()
    }

    /// Which cards changed, the newest first; for the administrator.
    pub fn card_changes(&self) -> Vec<CardChange> {
        newest(self.home(), SHOWN_CHANGES)
    }

    // ---- who becomes whom --------------------------------------------------------------------------------------------

    /// The map, for the administrator.
    pub fn map_rules(&self) -> Map {
        let snapshot = self.last_snapshot();
        Map {
            rules: snapshot.mapping.rules().to_vec(),
            own_users: snapshot.config.map_own_users,
            min_uid: snapshot.config.map_min_uid,
        }
    }

    /// Who somebody would be here.
    ///
    /// # Errors
    /// `UsageInvalid` for what is no principal.
    pub fn test_map(&self, principal: &str) -> Result<Tested, Error> {
        let (snapshot, principal) = (self.last_snapshot(), Principal::parse(principal)?);
        let verdict = resolve(&snapshot.mapping, &snapshot.config, &principal);
        let outcome = account_of(&snapshot.mapping, &snapshot.config, &principal);
        Ok(Tested { principal, verdict, outcome })
    }

    // ---- drop folders, threads ---------------------------------------------------------------------------------------

    /// The drop folders, for the administrator.
    pub fn drop_folders(&self) -> Vec<DropFolder> {
        let (snapshot, mut states) = (self.last_snapshot(), self.rule_states.all());
        let folder = |(name, rule): (&String, &Rule)| DropFolder {
            name: name.clone(),
            rule: rule.clone(),
            label: label(name),
            state: states.remove(name).unwrap_or_default(),
        };
        snapshot.config.rule.iter().map(folder).collect()
    }

    /// The threads that work in the background, for the administrator.
    pub fn workers(&self) -> Vec<Worker> {
        self.workers.all()
    }

    // ---- certificates ------------------------------------------------------------------------------------------------

    /// The certificates of the PoP, of the web and of the authorities that the site believes, for the administrator.
    pub fn own_certificates(&self) -> Vec<OwnCertificate> {
        let snapshot = self.last_snapshot();
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

    /// What this site's authority issued and took back: all of it, or what names the visitor.
    ///
    /// # Errors
    /// Those of the files.
    pub fn issued_certificates(&self, visitor: &Visitor) -> Result<Inventory, Error> {
        issued::inventory(self.home(), visitor.access().map(|access| &access.principal), SystemTime::now())
    }

    /// The mounts with credentials of their own: all of them, or the visitor's.
    ///
    /// # Errors
    /// Those of the files.
    pub fn mounts_seen(&self, visitor: &Visitor) -> Result<Vec<Mount>, Error> {
        let mut grants = mounting::list(self.home())?;
        grants.retain(|grant| visitor.sees(&grant.user.to_string()));
        let mount = |grant: mounting::Grant| {
            let until = mounting::valid_until(self.home(), &grant.number)?;
            Ok(Mount { name: grant.name, user: grant.user.to_string(), since: grant.since, until })
        };
        grants.into_iter().map(mount).collect()
    }
}
