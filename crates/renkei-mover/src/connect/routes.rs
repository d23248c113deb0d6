//! Tries the routes to a site in order of preference, and caches the failures.
//!
//! [`renkei_core::route`] plans the routes from the cards, the reverse connections that are up and the
//! administrator's rules. After a network failure the next route is tried; a refusal by the site itself is final.

use super::dial::{DialHints, Dialler, Session};
use super::relay_client::RelayClient;
use super::route_context::{RouteContext, Unreached};
use super::slow_connect::SlowConnectReporter;
use super::transport::{Transport, is_network, resolve};
use crate::lock;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::{self, Facts, Failures, Rule, Step, Way};
use renkei_core::wire::message::TriedWay;
use renkei_core::wire::on_behalf::OnBehalf;
use renkei_net::identity::trust::Trust;
use renkei_net::{ANSWER_TIMEOUT, CONNECT_TIMEOUT};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Timeout of the answer of a host in a test of routes.
const TEST_WITHIN: Duration = Duration::from_secs(3);

impl RouteContext {
    fn now(&self) -> Duration {
        self.memory.since.elapsed()
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Failures> {
        lock(&self.memory.failures)
    }

    fn note(&self, site: &SiteName, way: &Way, failed: bool) {
        match failed {
            true => self.failures().note(site, way, self.now()),
            false => self.failures().clear(site, way),
        }
    }
}

/// Failure of one route.
struct Missed {
    error: Error,
    /// No other route is tried: the site itself refused, or a request that works only once was sent.
    last: bool,
}

/// The routes from a PoP or an agent to another site, as far as cards tell: a reverse connection counts as up if the
/// card lists the PoP.
pub fn plan_of(
    from: &Principal,
    to: &SiteName,
    trust: &Trust,
    rules: &BTreeMap<SiteName, Rule>,
) -> Result<Vec<Step>, Error> {
    let is_pop = matches!(from, Principal::Host(_));
    let has_line = is_pop && trust.card(to).is_some_and(|card| card.via.contains(from.site()));
    let ways = RouteContext { rules: rules.clone(), ..RouteContext::of(from) };
    plan(to, trust, &ways, has_line)
}

impl Dialler {
    /// The routes to a site, best first.
    ///
    /// # Errors
    /// `SiteUnknown`.
    pub fn plan(&self, site: &SiteName) -> Result<Vec<Step>, Error> {
        let has_line = self
            .ways
            .reverse_registry
            .as_ref()
            .is_some_and(|board| board.has_line(&Principal::Host(site.clone())));
        plan(site, self.trust(), &self.ways, has_line)
    }

    /// Opens a session like [`Dialler::connect`], with hints on what to do beside the greeting.
    pub fn connect_ahead(&self, site: &SiteName, ahead: &DialHints) -> Result<Session, Error> {
        self.by_any_way(site, |reach| {
            let mut used = false;
            let opened = self.open_noting(&Principal::Host(site.clone()), reach, ahead, &mut used);
            opened.map_err(|error| Missed { last: used || !is_network(error.code), error })
        })
    }

    /// A raw connection to a site, and its transport; TLS is the caller's.
    pub fn circuit(&self, site: &SiteName) -> Result<(TcpStream, Transport), Error> {
        self.by_any_way(site, |reach| {
            let sock = reach.connect(site).map_err(|error| Missed { error, last: false })?;
            Ok((sock, reach.clone()))
        })
    }

    /// The transport to a site through the PoP of `relay`; the site's card need not be known.
    pub fn reach_through(&self, relay: &SiteName, site: &SiteName) -> Result<Transport, Error> {
        let first = self.trust().endpoints(relay)?.first().map(|endpoint| resolve(endpoint)).transpose()?;
        let address = first.and_then(|addresses| addresses.first().copied());
        let none =
            || Error::new(Code::NoRoute, "connect", site, format!("{relay} cannot be dialled from here"));
        self.relay_client(relay, address.ok_or_else(none)?, site).map_err(|missed| missed.error)
    }

    /// Opens a session with the agent of a storage, through the PoP of its site, which is reached by `by`.
    pub fn connect_to_agent(
        &self,
        site: &SiteName,
        storage: &str,
        by: &Transport,
        ahead: &DialHints,
    ) -> Result<Session, Error> {
        let agent = Principal::agent(site, storage)?;
        let relay_client = RelayClient::ask_for_agent(&self.asker(), site, by.clone(), storage)?;
        let reach = Transport::Through(relay_client);
        let opened = self.open_noting(&agent, &reach, ahead, &mut false);
        opened.map_err(|error| explained(&reach, Missed { error, last: true }).error)
    }

    /// Opens a session for requests on behalf of a user, if for one: with the PoP of a site, or with the agent of a storage
    /// of the dialling PoP's own site.
    ///
    /// # Errors
    /// As [`Dialler::connect`]; `AgentAbsent`.
    pub fn connect_for(
        &self,
        user: Option<&OnBehalf>,
        site: &SiteName,
        storage: &str,
        ahead: &DialHints,
    ) -> Result<Session, Error> {
        match user {
            Some(OnBehalf::Word { .. }) => self.connect_to_own_agent(site, storage, ahead),
            Some(OnBehalf::Chain(_)) | None => self.connect_ahead(site, ahead),
        }
    }

    /// Opens a session with the agent that keeps a line to the dialling PoP.
    fn connect_to_own_agent(
        &self,
        site: &SiteName,
        storage: &str,
        ahead: &DialHints,
    ) -> Result<Session, Error> {
        let absent = |cause: &str| Error::new(Code::AgentAbsent, "connect", storage, cause);
        let lines = self.ways.reverse_registry.clone().ok_or_else(|| absent("no lines are kept to here"))?;
        let agent = Principal::agent(site, storage)?;
        let reach = Transport::Line(lines, agent.clone());
        self.open_noting(&agent, &reach, ahead, &mut false).map_err(|error| match error.code {
            Code::NoLine => absent(&error.cause),
            _ => error,
        })
    }

    fn by_any_way<T>(
        &self,
        site: &SiteName,
        mut work: impl FnMut(&Transport) -> Result<T, Missed>,
    ) -> Result<T, Error> {
        let steps = self.plan(site)?;
        let mut failures = Vec::new();
        let mut open = steps.iter().filter(|step| step.against.is_none()).peekable();
        let patience = self.ways.tell.as_ref().map(SlowConnectReporter::new);
        while let Some(step) = open.next() {
            let within = if open.peek().is_some() { ANSWER_TIMEOUT } else { CONNECT_TIMEOUT };
            let how = self.attempt_text(site, &step.way, within);
            if let Some(patience) = &patience {
                patience.trying(no_answer_yet(site, &how));
            }
            let _tried = self.ways.trying.begin(site, &how);
            match self.by_way(site, &step.way, within, &mut work) {
                Ok(done) => {
                    self.ways.note(site, &step.way, false);
                    lock(&self.ways.memory.unreached).remove(site);
                    lock(&self.ways.memory.reached).insert(site.clone(), Instant::now());
                    return Ok(done);
                }
                Err(missed) if missed.last => return Err(missed.error),
                Err(missed) => {
                    self.ways.note(site, &step.way, true);
                    failures.push((step.way.clone(), missed.error));
                }
            }
        }
        let here = self.ways.here.as_ref();
        let via = self.trust().card(site).map(|card| &card.via[..]).unwrap_or_default();
        let error = no_way(site, &steps, failures, via.iter().any(|hub| Some(hub) == here));
        if is_network(error.code) {
            let unreached = Unreached { error: error.clone(), tried: Instant::now() };
            lock(&self.ways.memory.unreached).insert(site.clone(), unreached);
        }
        Err(error)
    }

    /// Describes an attempt, for messages.
    fn attempt_text(&self, site: &SiteName, way: &Way, within: Duration) -> String {
        let at = |site: &SiteName| self.trust().endpoints(site).map(|all| all.join(", ")).unwrap_or_default();
        let how = match way {
            Way::Direct => format!("at {}", at(site)),
            Way::Line => "over the line it keeps to this PoP".into(),
            Way::Through(relay) => format!("through {relay} at {}", at(relay)),
        };
        format!("{how}, for {} s at most", within.as_secs())
    }

    /// Tests each permitted route to a site, and returns the outcomes.
    ///
    /// # Errors
    /// `SiteUnknown`.
    pub fn test_ways(&self, site: &SiteName) -> Result<Vec<TriedWay>, Error> {
        let patience = self.ways.tell.as_ref().map(SlowConnectReporter::new);
        let test = |Step { way, why, against, .. }: Step| {
            let mut open = |reach: &Transport| {
                let host = Principal::Host(site.clone());
                let opened = self.open_noting(&host, reach, &DialHints::default(), &mut false);
                opened.map_err(|error| Missed { last: !is_network(error.code), error })
            };
            if let Some(patience) = &patience {
                patience.trying(no_answer_yet(site, &self.attempt_text(site, &way, TEST_WITHIN)));
            }
            let tried = against.is_none().then(|| self.by_way(site, &way, TEST_WITHIN, &mut open));
            let failed = tried.and_then(Result::err).map(|missed| missed.error);
            TriedWay { way, why, against, failed }
        };
        Ok(self.plan(site)?.into_iter().map(test).collect())
    }

    fn by_way<T>(
        &self,
        site: &SiteName,
        way: &Way,
        within: Duration,
        work: &mut impl FnMut(&Transport) -> Result<T, Missed>,
    ) -> Result<T, Missed> {
        match (way, &self.ways.reverse_registry) {
            (Way::Direct, _) => self.by_addresses(site, |address| work(&Transport::Direct(address, within))),
            (Way::Line, Some(board)) => work(&Transport::Line(board.clone(), Principal::Host(site.clone()))),
            (Way::Line, None) => {
                let error = Error::new(Code::NoLine, "connect", site, "no site keeps a line to this PoP");
                Err(Missed { error, last: false })
            }
            (Way::Through(relay), _) => self.by_addresses(relay, |address| {
                let reach = self.relay_client(relay, address, site)?;
                work(&reach).map_err(|missed| explained(&reach, missed))
            }),
        }
    }

    fn relay_client(
        &self,
        relay: &SiteName,
        address: SocketAddr,
        site: &SiteName,
    ) -> Result<Transport, Missed> {
        let further = self.ways.further.saturating_sub(1);
        let by = Transport::Direct(address, ANSWER_TIMEOUT);
        let relay_client = RelayClient::ask(&self.asker(), relay, by, site, further);
        relay_client.map(Transport::Through).map_err(|error| Missed { error, last: false })
    }

    /// Tries all addresses of a site, as long as the failures are of the network.
    fn by_addresses<T>(
        &self,
        site: &SiteName,
        mut work: impl FnMut(SocketAddr) -> Result<T, Missed>,
    ) -> Result<T, Missed> {
        let (mut failures, mut refused) = (Vec::new(), None);
        for endpoint in self.trust().endpoints(site).map_err(|error| Missed { error, last: false })? {
            match self.by_endpoint(site, endpoint, &mut work) {
                Ok(done) => return Ok(done),
                Err(missed) if missed.last && is_network(missed.error.code) => return Err(missed),
                Err(missed) if missed.last => refused = refused.or(Some(missed)),
                Err(missed) => failures.push(missed.error),
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let error = match failures.len() {
            1 => failures.remove(0),
            _ => {
                let causes: Vec<String> = failures.iter().map(Error::to_string).collect();
                Error::new(Code::SiteUnreachable, "connect", site, causes.join("; ")).at("client")
            }
        };
        Err(Missed { error, last: false })
    }

    fn by_endpoint<T>(
        &self,
        site: &SiteName,
        endpoint: &str,
        work: &mut impl FnMut(SocketAddr) -> Result<T, Missed>,
    ) -> Result<T, Missed> {
        let mut last = None;
        for address in resolve(endpoint).map_err(|error| Missed { error, last: false })? {
            let checked = self.ways.targets.as_ref().map_or(Ok(()), |to| to.check(self, site, address));
            let checked = checked.map_err(|error| Missed { error, last: false });
            match checked.and_then(|()| work(address)) {
                Err(missed) if !missed.last => last = Some(missed.error),
                done => return done,
            }
        }
        let none = || Error::new(Code::NameUnresolved, "resolve", endpoint, "no address");
        Err(Missed { error: last.unwrap_or_else(none), last: false })
    }
}

fn plan(site: &SiteName, trust: &Trust, ways: &RouteContext, has_line: bool) -> Result<Vec<Step>, Error> {
    let unknown = || Error::new(Code::SiteUnknown, "look up site", site, "");
    let card = trust.card(site).ok_or_else(unknown)?;
    let own = ways.here.as_ref().or(ways.home.as_ref()).and_then(|own| trust.card(own));
    let now = ways.now();
    Ok(route::plan(&Facts {
        to: site,
        has_endpoints: !card.endpoints.is_empty(),
        via: &card.via,
        has_line,
        here: ways.here.as_ref(),
        home: ways.home.as_ref(),
        own_via: own.map(|card| &card.via[..]).unwrap_or_default(),
        further: ways.further,
        can_dial: &|relay| trust.card(relay).is_some_and(|card| !card.endpoints.is_empty()),
        rule: ways.rules.get(site).unwrap_or(&Rule::default()),
        failed: &|way| ways.failures().since(site, way, now),
    }))
}

/// The report of a slow attempt.
fn no_answer_yet(site: &SiteName, how: &str) -> String {
    format!("{site} does not answer yet; trying it {how}")
}

/// Prefers the relay's error for a connection that it failed to pass on.
fn explained(reach: &Transport, missed: Missed) -> Missed {
    let silent =
        is_network(missed.error.code) || matches!(missed.error.code, Code::NotRenkei | Code::TlsFailed);
    match silent {
        true => Missed { error: reach.explain(missed.error), last: missed.last },
        false => missed,
    }
}

/// The error when no route worked: that of the nearest route, with the differing errors of the others.
fn no_way(site: &SiteName, steps: &[Step], mut failures: Vec<(Way, Error)>, is_called: bool) -> Error {
    let new = |code, cause: String| Error::new(code, "connect", site, cause).at("client");
    failures.sort_by_key(|(way, _)| matches!(way, Way::Through(_)));
    match &failures[..] {
        [(_, nearest), others @ ..] => {
            // Others that failed alike add nothing.
            let others = others.iter().filter(|(_, other)| other.code != nearest.code);
            let others = others.map(|(way, error)| format!("{way}: {error}"));
            let causes: Vec<String> = std::iter::once(nearest.cause.clone()).chain(others).collect();
            Error { cause: causes.join("; "), ..nearest.clone() }
        }
        [] => match steps.iter().find_map(|step| step.against.clone()) {
            Some(against) => new(Code::RouteForbidden, against),
            None if is_called => new(Code::NoLine, "it is configured, but no line is up".into()),
            None => new(Code::NoRoute, "its card names no endpoint and no PoP that is known here".into()),
        },
    }
}
