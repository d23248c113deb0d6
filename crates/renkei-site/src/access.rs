//! Access of one principal: the account it maps to, and the storages as that account sees them.

use super::evidence::Evidence;
use super::peer::Peer;
use super::snapshot::Snapshot;
use super::storage::root::Root;
use super::volume_access::{entered, granted};
use renkei_config::nearest;
use renkei_core::buffer::STORAGE;
use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::{only_new, rights_of};
use renkei_core::identity::{Need, OwnUsers, Principal, Rights, Scope, Why};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::Op;
use renkei_core::wire::message::{Identity, OpenReceive};
use renkei_mover::files::limit::Limit;
use renkei_mover::hex;
use renkei_net::identity::account::Account;
use renkei_net::identity::certificate::{Facts, public_key};
use renkei_net::identity::map::check_ordinary;
use renkei_store::Store;
use renkei_store::scoped::ScopedStore;
use renkei_store::temp::refuse_temp_names;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::SystemTime;

/// Maximum names of storages listed in an error.
const MAX_NAMES: usize = 8;

/// A principal and the evidence that proved it, which must stay valid as long as work is done for it.
#[derive(Clone)]
pub struct Proof {
    /// The principal.
    pub principal: Principal,
    /// Its scope, if the certificate is a delegated one.
    pub scope: Option<Arc<Scope>>,
    pub(super) evidence: Evidence,
    pub(super) at: SystemTime,
}

/// Who asks for something that a user may see in part, and the administrator in full.
#[derive(Clone, Copy)]
pub enum Caller<'a> {
    /// The administrator of this PoP, by its local socket or console.
    Administrator,
    /// A user, with the account here.
    User(&'a Access),
}

impl<'a> Caller<'a> {
    /// The access of a user; none for the administrator.
    pub fn user(self) -> Option<&'a Access> {
        match self {
            Caller::Administrator => None,
            Caller::User(access) => Some(access),
        }
    }

    /// The principal of a user; none for the administrator.
    pub fn principal(self) -> Option<&'a Principal> {
        self.user().map(|access| &access.principal)
    }

    /// Whether it is the administrator.
    pub fn is_administrator(self) -> bool {
        self.user().is_none()
    }
}

/// A principal with its account, and the configuration that authorised it.
#[derive(Clone)]
pub struct Access {
    /// The principal that makes the request.
    pub principal: Principal,
    /// The account that does the work.
    pub account: Account,
    /// The rule of the mapping that matched.
    pub rule: String,
    /// The account name by the mapping, for an agent that of its PoP's machine.
    pub(super) mapped: String,
    /// Whether the principal may access only what grants on volumes give it.
    pub(super) is_guest: bool,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) proof: Proof,
    /// The PoP that acts for the principal, if one does.
    pub(super) via: Option<Peer>,
}

/// A place opened for one account.
pub struct Opened {
    /// The storage.
    pub store: Arc<dyn Store>,
    /// The path in it.
    pub path: RelPath,
    /// The account that does the work there.
    pub account: Account,
}

impl Proof {
    /// The certificate chain that was shown, leaf first; empty if other evidence was.
    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        self.evidence.chain()
    }

    /// The transfer of a delegated certificate, as logged.
    pub(super) fn transfer(&self) -> Option<String> {
        self.scope.as_ref()?.transfer().map(|transfer| hex(transfer))
    }

    /// Whose token, S3 key or grid certificate proved it, if one did, as logged.
    pub(super) fn holder(&self) -> Option<String> {
        self.evidence.facts().ok()?.holder
    }

    /// The one check of a restricted credential: whether it gives one of these sets of rights to a place of a site.
    ///
    /// # Errors
    /// `OutOfScope`, with the rights, the path, and the scope.
    pub(super) fn check(&self, site: &SiteName, place: &Place, any_of: &[Rights]) -> Result<(), Error> {
        match &self.scope {
            Some(scope) if !any_of.iter().any(|rights| scope.allows(site, place, *rights)) => {
                Err(self.out_of_scope(site, place, any_of.first().copied().unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// The refusal of a restricted credential, noted in the audit log.
    pub(super) fn out_of_scope(&self, site: &SiteName, place: &Place, rights: Rights) -> Error {
        let scope = self.scope.as_ref().map(|scope| scope.to_string()).unwrap_or_default();
        let cause = format!("to {rights} it; the scope is: {scope}");
        let error = Error::new(Code::OutOfScope, "open", place, cause).at(site.as_str());
        let (principal, transfer) = (&self.principal, self.transfer());
        tracing::warn!(target: "audit", %principal, transfer, %error, "refused");
        error
    }

    /// The public key that the peer proved to possess.
    pub(super) fn public_key(&self) -> Option<Vec<u8>> {
        self.chain().first().and_then(|leaf| public_key(leaf).ok())
    }

    /// Serial of the certificate.
    pub(super) fn serial(&self) -> Result<String, Error> {
        Ok(self.facts()?.serial)
    }

    /// The number by whose revocation ends what is made with it: the serial of the certificate, or the number of evidence
    /// of another system.
    pub(super) fn origin(&self) -> Result<String, Error> {
        self.serial().or_else(|error| {
            let facts = self.evidence.facts()?;
            facts.bound.map(|_| facts.number).ok_or(error)
        })
    }

    /// The fields of the certificate.
    pub(super) fn facts(&self) -> Result<Facts, Error> {
        let none = || Error::new(Code::BadCertificate, "read", &self.principal, "no certificate was shown");
        Facts::read(self.chain().first().ok_or_else(none)?)
    }

    /// The mount that the certificate was issued for, if any.
    pub(super) fn mount(&self) -> Option<String> {
        self.facts().ok()?.mount
    }
}

impl Access {
    pub(super) fn new(proof: &Proof, snapshot: Arc<Snapshot>) -> Result<Self, Error> {
        let Mapped { account: mapped, rule, is_guest } = mapped(&proof.principal, &snapshot)?;
        let account = match snapshot.is_agent() {
            true => own_account(&mapped, &snapshot)?,
            false if is_guest => Account::lookup_to_lend(&mapped)?,
            false => Account::lookup(&mapped)?,
        };
        // The PoP does not run work as an account that is served by an agent.
        if !snapshot.has_agent_of(&mapped) {
            account.check_servable()?;
        }
        let (principal, proof) = (proof.principal.clone(), proof.clone());
        Ok(Access { principal, account, rule, mapped, is_guest, snapshot, proof, via: None })
    }

    /// Access for work that the PoP does on its own behalf, with its own credential, as an account.
    pub(super) fn of_the_pop(snapshot: Arc<Snapshot>, account: &Account) -> Self {
        let principal = Principal::Host(snapshot.site.clone());
        let proof = Proof {
            principal: principal.clone(),
            scope: None,
            evidence: Evidence::Chain(Arc::new([])),
            at: SystemTime::now(),
        };
        Access {
            principal,
            account: account.clone(),
            rule: "the PoP itself".into(),
            mapped: account.name.clone(),
            is_guest: true,
            snapshot,
            proof,
            via: None,
        }
    }

    /// Checks the access against a new configuration. A certificate that was valid when it was shown and expires
    /// meanwhile ends no running work.
    pub(super) fn judge_again(&self, now: &Arc<Snapshot>) -> Result<(), Error> {
        self.hold_against(now).map_err(|error| error.at(self.site()))
    }

    fn hold_against(&self, now: &Snapshot) -> Result<(), Error> {
        for proof in [Some(&self.proof), self.via.as_ref().map(|peer| &peer.proof)].into_iter().flatten() {
            proof.evidence.judge_again(&proof.principal, now, proof.at)?;
        }
        let Mapped { account, is_guest, .. } = mapped(&self.principal, now)?;
        match account {
            // The folders of grants are checked where a place is opened.
            name if name == self.mapped && is_guest == self.is_guest => Ok(()),
            name => {
                let cause = format!("now mapped to {name}, no longer to {}", self.mapped);
                Err(Error::new(Code::NotMapped, "map", &self.principal, cause))
            }
        }
    }

    /// The other site of a transfer, if the peer is its PoP.
    pub(super) fn peer_site(&self) -> Option<SiteName> {
        let own = match &self.principal {
            Principal::Host(site) if *site != self.snapshot.site => Some(site.clone()),
            _ => None,
        };
        own.or_else(|| self.via_site())
    }

    /// The site whose PoP acts for the principal, if one does.
    pub(super) fn via_site(&self) -> Option<SiteName> {
        let via = &self.via.as_ref()?.proof.principal;
        via.user_name().is_none().then(|| via.site().clone())
    }

    /// The certificate chain of the principal, leaf first.
    pub(super) fn chain(&self) -> Vec<Vec<u8>> {
        self.proof.chain().iter().map(|certificate| certificate.to_vec()).collect()
    }

    /// The evidence of a console session that was opened with this access; none if another PoP acts for its principal.
    pub(super) fn session_evidence(&self) -> Option<Evidence> {
        let own = self.via.is_none() && !matches!(self.proof.evidence, Evidence::Session(_));
        own.then(|| Evidence::Session(Arc::new(self.proof.clone())))
    }

    /// Whether the credential, a restricted one in particular, gives one of these sets of rights to a place.
    pub fn may(&self, place: &Place, any_of: &[Rights]) -> bool {
        let allows = |scope: &Arc<Scope>| {
            any_of.iter().any(|rights| scope.allows(&self.snapshot.site, place, *rights))
        };
        self.proof.scope.as_ref().is_none_or(allows)
    }

    /// The site that authorised it.
    pub fn site(&self) -> &str {
        self.snapshot.site.as_str()
    }

    /// Opens the storage of a place for reading or writing.
    ///
    /// # Errors
    /// `OutOfScope`, `StorageUnknown`, `StorageMissing`, `ReadOnlyStorage`.
    pub fn open(&self, place: &Place, write: bool) -> Result<Opened, Error> {
        self.open_for(place, if write { Need::Write } else { Need::Read })
    }

    /// Opens the storage of a place as far as it is needed.
    pub(super) fn open_for(&self, place: &Place, need: Need) -> Result<Opened, Error> {
        self.check(place, &[need.rights()])?;
        self.enter(place, need)
    }

    /// Opens the storage of a place for a change that needs these rights of a restricted credential.
    pub(super) fn open_to_change(&self, place: &Place, rights: Rights) -> Result<Opened, Error> {
        self.check(place, &[rights])?;
        self.enter(place, Need::Write)
    }

    /// Opens the storage of a place to compute the digest of content, for those who can read it or wrote it.
    pub(super) fn open_to_digest(&self, place: &Place) -> Result<Opened, Error> {
        self.check(place, &[Rights::READ, Rights::MODIFY])?;
        self.enter(place, Need::Examine)
    }

    /// Opens the storage of a place to list it.
    pub(super) fn examine(&self, place: &Place) -> Result<Opened, Error> {
        self.open_for(place, Need::Examine)
    }

    /// Opens the storage of a place to stat it.
    pub(super) fn look(&self, place: &Place) -> Result<Opened, Error> {
        self.open_for(place, Need::Look)
    }

    /// Opens the base of an incoming transfer; also returns the writable paths below it.
    pub(super) fn open_base(&self, open: &OpenReceive) -> Result<(Opened, Vec<RelPath>), Error> {
        let rights = match open.options.delete {
            false => Rights::CREATE | Rights::MODIFY,
            true => Rights::CREATE | Rights::MODIFY | Rights::DELETE,
        };
        let within = match &self.proof.scope {
            None => vec![RelPath::root()],
            Some(scope) => scope.writable_in(&self.snapshot.site, &open.to, rights),
        };
        let all = within.iter().any(RelPath::is_root);
        if within.is_empty() || (open.options.delete && !all) {
            return Err(self.refused(&open.to, rights));
        }
        Ok((self.enter(&open.to, Need::Write)?, within))
    }

    /// Opens the storage of a place for a file session, whose operations are checked one by one. The place may be above those
    /// of a scope. Transfers need none.
    pub(super) fn open_files(&self, place: &Place, need: Need) -> Result<(Opened, Option<Limit>), Error> {
        if self.proof.transfer().is_some() {
            return Err(self.refused(place, Rights::NONE));
        }
        let (site, scope) = (&self.snapshot.site, &self.proof.scope);
        if scope.as_ref().is_some_and(|scope| !scope.meets(site, place)) {
            return Err(self.refused(place, Rights::NONE));
        }
        let opened = self.enter(place, need)?;
        Ok((opened, self.proof.scope.is_some().then(|| self.limit(place))))
    }

    /// The check of the operations in a place by the scope. A credential that creates and does not modify writes new files
    /// alone.
    fn limit(&self, base: &Place) -> Limit {
        let (proof, site, base) = (self.proof.clone(), self.snapshot.site.clone(), base.clone());
        let place = move |path: &RelPath| Ok(Place { path: base.path.join(path)?, ..base.clone() });
        let needs = move |op: &Op| {
            let needs = rights_of(op).into_iter().map(|(rights, path)| Ok((rights, place(path)?)));
            needs.collect::<Result<Vec<_>, Error>>()
        };
        Arc::new(move |op: Op| {
            let refused = |(rights, place): &(Rights, Place)| {
                proof.scope.as_ref().is_some_and(|scope| !scope.allows(&site, place, *rights))
            };
            let needed = needs(&op)?;
            if needed.iter().any(refused)
                && let Some(narrower) = only_new(&op)
                && !needs(&narrower)?.iter().any(refused)
            {
                return Ok(narrower);
            }
            needed.iter().try_for_each(|(rights, place)| proof.check(&site, place, &[*rights]))?;
            Ok(op)
        })
    }

    /// Checks that a restricted credential gives one of these sets of rights to a place.
    fn check(&self, place: &Place, any_of: &[Rights]) -> Result<(), Error> {
        self.proof.check(&self.snapshot.site, place, any_of)
    }

    fn refused(&self, place: &Place, rights: Rights) -> Error {
        self.proof.out_of_scope(&self.snapshot.site, place, rights)
    }

    /// Refuses a request for a storage of an agent; `WithAgent` redirects the client to the agent.
    ///
    /// # Errors
    /// `WithAgent`, `AgentAbsent`, `NotAgentsAccount`.
    pub(super) fn expect_here(
        &self,
        storages: &[&str],
        is_up: impl Fn(&Principal) -> bool,
    ) -> Result<(), Error> {
        let Some((storage, account)) =
            storages.iter().find_map(|storage| Some((*storage, self.snapshot.agent_of(storage)?)))
        else {
            return Ok(());
        };
        let refused = |code, cause: String| Err(Error::new(code, "open", storage, cause).at(self.site()));
        if account != self.mapped {
            return refused(Code::NotAgentsAccount, format!("that of {account}, you are {}", self.mapped));
        }
        if storages.iter().any(|other| *other != storage) {
            let cause = format!("the agent of {storage} has it alone; copy the others separately");
            return refused(Code::NotAllowed, cause);
        }
        match is_up(&self.snapshot.agent(storage)) {
            true => refused(Code::WithAgent, String::new()),
            false => refused(Code::AgentAbsent, format!("that of {account}")),
        }
    }

    /// Whether a storage is visible to this principal.
    pub(super) fn may_see(&self, storage: &str) -> bool {
        !self.is_guest && self.snapshot.agent_of(storage).is_none_or(|account| account == self.mapped)
    }

    /// Opens a storage, narrowed to the scope's places in it.
    fn enter(&self, place: &Place, need: Need) -> Result<Opened, Error> {
        if need == Need::Write {
            refuse_temp_names("open", &place.path).map_err(|error| error.at(self.site()))?;
        }
        if let Some(facts) = self.snapshot.volumes.get(&place.storage) {
            return entered(self, facts, place, need).map_err(|error| error.at(self.site()));
        }
        if self.is_guest {
            let cause = format!("no account here is mapped to you; {}", self.rule);
            return Err(Error::new(Code::NotMapped, "open", place, cause).at(self.site()));
        }
        if place.storage == STORAGE {
            return self.enter_buffer(place, need);
        }
        let root = self.snapshot.storage(&place.storage).map_err(|error| self.other_storages(error))?;
        if need == Need::Write && root.storage.read_only {
            let cause = "added with --read-only";
            return Err(Error::new(Code::ReadOnlyStorage, "open", place, cause).at(self.site()));
        }
        let mut store = root.store().map_err(|error| error.at(self.site()))?;
        store = self.narrowed(store, place, need);
        let account = self.working_as(root.storage.account.as_deref())?;
        Ok(Opened { store, path: place.path.clone(), account })
    }

    /// The error for an unknown storage, with the names of the visible ones.
    fn other_storages(&self, error: Error) -> Error {
        let volumes = self.volumes();
        let storages = self.snapshot.storages.keys().filter(|name| self.may_see(name)).map(String::as_str);
        let names: Vec<&str> = storages.chain(volumes.iter().map(|(name, _)| name.as_str())).collect();
        let cause = match nearest(&error.subject, names.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None if names.is_empty() => "there is none that you may use".into(),
            None => format!("there are {}", names[..names.len().min(MAX_NAMES)].join(", ")),
        };
        Error { cause, ..error }
    }

    /// The account of a place that has one, else the principal's own. Any other account than the principal's own is
    /// a lent one.
    pub(super) fn working_as(&self, name: Option<&str>) -> Result<Account, Error> {
        match name {
            Some(name) if self.is_guest || name != self.account.name => Account::lookup_to_lend(name),
            _ => Ok(self.account.clone()),
        }
    }

    /// The store narrowed to the scope.
    pub(super) fn narrowed(&self, store: Arc<dyn Store>, place: &Place, need: Need) -> Arc<dyn Store> {
        let Some(scope) = &self.proof.scope else { return store };
        // The rights of other scopes than a transfer's are checked by path, for each operation.
        let need = scope.transfer().map_or(Need::Look, |_| need);
        let allowed = scope.paths(&self.snapshot.site, &place.storage, need).cloned().collect();
        Arc::new(ScopedStore::new(store, allowed))
    }

    /// The principal, its account here, and its storages.
    pub fn identity(&self) -> Identity {
        let storages = self.snapshot.storages.iter().filter_map(|(name, root)| self.use_of(name, root));
        let rule = match &self.proof.scope {
            None => self.rule.clone(),
            Some(scope) => match self.proof.transfer() {
                Some(transfer) => format!("{}, for transfer {transfer}: {scope}", self.rule),
                None => format!("{}, restricted: {scope}", self.rule),
            },
        };
        Identity {
            principal: self.principal.to_string(),
            site: self.snapshot.site.clone(),
            account: self.account.name.clone(),
            rule,
            storages: storages.collect(),
            volumes: self.volumes(),
        }
    }

    /// A storage that may be used, and whether it is writable.
    fn use_of(&self, name: &str, root: &Root) -> Option<(String, bool)> {
        let site = &self.snapshot.site;
        let named = |scope: &Arc<Scope>| scope.paths(site, name, Need::Look).next().is_some();
        let changes = |scope: &Arc<Scope>| scope.paths(site, name, Need::Write).next().is_some();
        let scope = self.proof.scope.as_ref();
        let writable = !root.storage.read_only && scope.is_none_or(changes);
        (self.may_see(name) && scope.is_none_or(named)).then(|| (name.into(), writable))
    }
}

/// The share of one principal in a resource with `limit` units.
pub fn one_share(limit: usize) -> usize {
    (limit / 2).max(1)
}

/// The share of all principals of another site together: a trusted site may name any number of users.
pub fn site_share(limit: usize) -> usize {
    (limit - limit / 4).max(1)
}

/// The account that runs this agent, for principals that the PoP maps to it.
fn own_account(mapped: &str, snapshot: &Snapshot) -> Result<Account, Error> {
    let served = snapshot.storages.values().find_map(|root| root.storage.agent.as_deref());
    match served {
        Some(served) if served == mapped => {
            let own = Account::own()?;
            Ok(if own.name == mapped { own } else { own.lent() })
        }
        served => {
            let cause = format!("that of {}, you are {mapped}", served.unwrap_or("nobody"));
            Err(Error::new(Code::NotAgentsAccount, "assume account", mapped, cause))
        }
    }
}

/// The account for a principal, and the rule.
struct Mapped {
    account: String,
    rule: String,
    is_guest: bool,
}

/// The account a principal is mapped to, else that of a volume that grants it access.
fn mapped(principal: &Principal, snapshot: &Snapshot) -> Result<Mapped, Error> {
    match account_name(principal, snapshot) {
        Ok((account, rule)) => Ok(Mapped { account, rule, is_guest: false }),
        Err(error) if error.code == Code::ShutOut => Err(error),
        Err(error) => {
            let (account, volume) = granted(principal, snapshot).ok_or(error)?;
            Ok(Mapped { account, rule: format!("a grant on /{volume}"), is_guest: true })
        }
    }
}

/// Whether users of the own site need a rule.
pub(super) fn own_users(snapshot: &Snapshot) -> OwnUsers<'_> {
    match snapshot.config.map_own_users {
        true => OwnUsers::SameName(&snapshot.site),
        false => OwnUsers::NeedRule,
    }
}

/// The account a principal is mapped to, and the matching rule.
pub(super) fn account_name(principal: &Principal, snapshot: &Snapshot) -> Result<(String, String), Error> {
    let verdict = snapshot.mapping.resolve(principal, own_users(snapshot));
    if let Why::ShutOut { .. } = verdict.why {
        return Err(Error::new(Code::ShutOut, "map", principal, verdict.why));
    }
    let Some(name) = verdict.account else {
        let cause = match verdict.why {
            Why::HostHasNone => "a PoP or an agent has no account of its own",
            Why::NotRootBySameName { .. } => "a rule with `*` maps no user to root",
            _ => "no rule matches",
        };
        return Err(Error::new(Code::NotMapped, "map", principal, cause));
    };
    // The accounts of an agent's machine are different ones.
    if !snapshot.is_agent() {
        check_ordinary(principal, &verdict.why, &name, &snapshot.config)?;
    }
    let rule = match verdict.why {
        Why::Rule { rule, .. } => rule,
        _ => "own user".into(),
    };
    Ok((name, rule))
}

impl Opened {
    /// Runs work on the place as its account, on a thread of that account.
    pub fn run<T: Send + 'static>(
        self,
        name: &str,
        work: impl FnOnce(&dyn Store, &RelPath) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Opened { store, path, account } = self;
        account.run(name, move || work(&*store, &path))
    }
}
