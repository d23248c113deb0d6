//! Updates for partners: changes of this site's addresses, authority, name and revocation list are sent to the sites
//! that trust it.
//!
//! When a site's card or revocation list changes, even while the PoP does not run, each site that it trusts is sent
//! the new one, with retries until the partner has taken it; never before this PoP's ports are open. A site that is
//! trusted later got the card by enrolment or by hand, and is sent the list. The partner accepts it because the
//! session proves the site's PoP, and because the authority is the one it knows. Guarantee: an address that leads
//! into the partner's own network, which strangers could misuse, is not taken without the administrator's consent,
//! unless the site was reached there before. Nor is another authority, unless the trusted one handed over to it
//! (`renkei_net::identity::handover`).

use super::Partners;
use super::enrolment::without_list;
use crate::access::Proof;
use crate::snapshot::Snapshot;
use crate::workers::spawn;
use renkei_config::home::{Home, read_text, write_file};
use renkei_config::random::random_number;
use renkei_core::backoff::{Backoff, Pauses};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::is_inside;
use renkei_core::wire::message::Request;
use renkei_core::wire::violation;
use renkei_mover::connect::transport::resolve;
use renkei_net::identity::handover::former_name;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::trust::{Added, Trust};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Poll interval for a changed card.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Backoff for a partner that could not be informed.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(15 * 60));
/// Timeout for name look-ups of a received card.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(4);
/// Maximum size of the stored list of pending partners.
const MAX_BYTES: u64 = 16 << 20;

/// Pending updates for partners.
struct Telling {
    home: Home,
    /// Digest of the card and the revocation list at the last check.
    card: Option<String>,
    /// The partners at the last check.
    partners: Option<BTreeSet<SiteName>>,
    /// Partners that have not taken this card yet.
    waiting: BTreeSet<SiteName>,
    /// The last failure for each of them.
    failed: BTreeMap<SiteName, Failed>,
}

/// A failure to inform a partner.
struct Failed {
    at: Instant,
    /// Duration of the pause after it.
    pause: Duration,
    pauses: Pauses,
    error: Error,
}

/// The partners that have not taken the card yet, with the last error.
pub(crate) type Untold = BTreeMap<SiteName, Option<Error>>;

/// Starts the update thread, which runs as long as the PoP lives.
pub fn spawn_partners(partners: &Arc<Partners>) -> Result<(), Error> {
    let mut telling = Telling::read(partners.context.home().clone());
    // Before the queue opens.
    telling.update(&partners.context.last_snapshot());
    telling.show(partners);
    let telling = Mutex::new(telling);
    partners.context.spawn_every(partners, "partners", LOOK_EVERY, move |partners| {
        telling.lock().unwrap_or_else(PoisonError::into_inner).look(partners);
    })
}

impl Telling {
    /// The stored state; without it, as if nothing had changed.
    fn read(home: Home) -> Self {
        let text = read_text(&home.told_file(), MAX_BYTES).ok().flatten().unwrap_or_default();
        let mut lines = text.lines();
        let card = lines.next().map(str::to_owned);
        let waiting = lines.filter_map(|line| SiteName::parse(line).ok()).collect();
        Telling { home, card, partners: None, waiting, failed: BTreeMap::new() }
    }

    fn look(&mut self, room: &Partners) {
        let now = room.context.last_snapshot();
        let Some(text) = self.update(&now) else { return };
        if !room.context.is_listening() {
            return;
        }
        let partners = partners(&now);
        for partner in self.waiting.clone() {
            let is_told = !partners.contains(&partner) || self.tell(room, &now, &partner, &text);
            if is_told {
                self.waiting.remove(&partner);
                self.keep();
            }
        }
        self.show(room);
    }

    /// Marks the partners that have to be informed of the current card, and returns its text.
    fn update(&mut self, now: &Snapshot) -> Option<String> {
        let card = now.trust.own_card().map(without_list)?;
        let (text, partners) = (card.to_text(), partners(now));
        let digest = digest(&now.trust, &text);
        let before = self.partners.replace(partners.clone()).unwrap_or_else(|| partners.clone());
        if now.trust.revocation_list(&now.site).is_some() {
            self.waiting.extend(partners.difference(&before).cloned());
        }
        if self.card.as_ref() != Some(&digest) {
            // A PoP without stored state has informed no partner of its new authority.
            let is_handed_over = card.handover.as_ref().is_some_and(|one| one.is_live(SystemTime::now()));
            if self.card.is_some() || is_handed_over {
                self.waiting = partners;
            }
            self.failed.clear();
            self.card = Some(digest);
            self.keep();
        }
        Some(text)
    }

    /// Publishes the pending partners and errors for the conditions.
    fn show(&self, room: &Partners) {
        let why = |partner: &SiteName| self.failed.get(partner).map(|failed| failed.error.clone());
        *room.untold() = self.waiting.iter().map(|partner| (partner.clone(), why(partner))).collect();
    }

    /// Informs one partner, if it is due; whether the partner needs no further attempt.
    fn tell(&mut self, room: &Partners, now: &Snapshot, partner: &SiteName, text: &str) -> bool {
        let failed = self.failed.get(partner);
        if failed.is_some_and(|failed| failed.at.elapsed() < failed.pause) {
            return false;
        }
        let mut pauses = failed.map_or(BACKOFF.begin(), |failed| failed.pauses);
        match tell(room, now, partner, text) {
            Ok(_) => {
                tracing::info!(target: "audit", site = %partner, "sent the site's new card and revocation list");
                self.failed.remove(partner);
                true
            }
            Err(error) => {
                let remedy =
                    format!("or by hand: `renkei trust export` here, `renkei trust add` at {partner}");
                let pause = pauses.next(random_number());
                let again_in_s = pause.as_secs();
                tracing::warn!(site = %partner, %error, again_in_s, remedy, "a partner has not received the new card yet");
                self.failed.insert(partner.clone(), Failed { at: Instant::now(), pause, pauses, error });
                false
            }
        }
    }

    fn keep(&self) {
        let waiting = self.waiting.iter().map(ToString::to_string);
        let lines: Vec<String> = self.card.iter().cloned().chain(waiting).collect();
        if let Err(error) = write_file(&self.home.told_file(), (lines.join("\n") + "\n").as_bytes(), 0o600) {
            tracing::warn!(%error, "the list of informed partners is not stored");
        }
    }
}

/// Sends a partner the card, and the revocation list, because the list signed by the former authority is not valid
/// for ever.
fn tell(room: &Partners, now: &Snapshot, partner: &SiteName, text: &str) -> Result<(), Error> {
    let mut session = room.relay.dialler_to_untold(now)?.connect(partner)?;
    session.ask(Request::TakeCard(text.to_owned()))?;
    match now.trust.revocation_list(&now.site) {
        Some((_, list)) => session.ask(Request::Revocations(list.to_vec())).map(drop),
        None => Ok(()),
    }
}

/// The partners that have not taken this card of the site in `home`; `None` if its PoP has not seen this card yet.
pub fn untold(home: &Home, card: &SiteCard) -> Option<BTreeSet<SiteName>> {
    let told = Telling::read(home.clone());
    let trust = Trust::load(home).ok()?;
    (told.card? == digest(&trust, &without_list(card).to_text())).then_some(told.waiting)
}

/// The digest that detects a changed card or revocation list.
fn digest(trust: &Trust, card: &str) -> String {
    let number =
        trust.own_site().and_then(|site| trust.revocation_list(site)).map_or(0, |(number, _)| number);
    blake3::hash(format!("{number} {card}").as_bytes()).to_hex().to_string()
}

fn partners(now: &Snapshot) -> BTreeSet<SiteName> {
    now.trust.list().map(|card| card.site.clone()).filter(|site| *site != now.site).collect()
}

impl Partners {
    /// Partners that have not taken the card of this site yet.
    pub(crate) fn untold(&self) -> MutexGuard<'_, Untold> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails as long as one of these sites may not know the new name of this site.
    ///
    /// # Errors
    /// `SiteUnreachable`.
    pub(crate) fn await_new_name(&self, now: &Snapshot, sites: [&SiteName; 2]) -> Result<(), Error> {
        let untold = self.untold();
        let waiting =
            sites.into_iter().find(|site| now.former_credential.is_some() && untold.contains_key(site));
        let Some(waiting) = waiting else { return Ok(()) };
        let cause = format!("this site was renamed to {}, and {waiting} was not told yet", now.site);
        Err(Error::new(Code::SiteUnreachable, "work under the new name", waiting, cause))
    }

    /// Takes the newer card of a trusted site from its PoP.
    ///
    /// # Errors
    /// `NotAllowed` from any other peer, and for addresses that need the administrator's consent; `CardConflict` if
    /// the authority is another one to which the known one did not hand over, `AuthorityReplaced` if the time for
    /// the handover is over.
    pub fn take_card(&self, proof: &Proof, text: &str) -> Result<(), Error> {
        let refused = |cause: String| Error::new(Code::NotAllowed, "take site card", &proof.principal, cause);
        let Principal::Host(site) = &proof.principal else {
            return Err(refused("a PoP sends only the card of its own site".into()));
        };
        let card = without_list(&SiteCard::parse(text)?);
        let is_renamed = former_name(&card.authority)?.is_some_and(|former| former == site.as_str());
        if (card.site != *site && !is_renamed)
            || *site == self.context.name()
            || card.site == self.context.name()
        {
            return Err(violation("card", format_args!("{site} sent the card of {}", card.site)));
        }
        // The trust is loaded after the look-ups, which take time.
        let resolved = look_up(&card.endpoints);
        let mut trust = Trust::load(self.context.home())?;
        let unknown = || Error::new(Code::SiteUnknown, "take site card", site, "");
        let known = trust.card(site).ok_or_else(unknown)?.clone();
        if let Some(file) = (card.site != *site).then(|| self.file_with_name(&card.site)).flatten() {
            let cause = format!(
                "the configuration of {} has the new name {} already, perhaps for another site; its administrator may take \
                 the card: renkei trust add CARD",
                self.context.name(),
                card.site
            );
            let (name, file) = (&card.site, file.display());
            tracing::warn!(target: "audit", %site, %name, %file, "the card of a renamed site was not taken: the file has the new name already");
            return Err(refused(cause));
        }
        if let Some(endpoint) =
            card.endpoints.iter().find(|endpoint| is_new_inside(endpoint, &known, &resolved))
        {
            let cause = format!(
                "{endpoint} leads into a private network; the administrator of {} may take it: renkei trust add CARD",
                self.context.name()
            );
            tracing::warn!(target: "audit", %site, endpoint, "a changed card was not taken: a private address needs `renkei trust add`");
            return Err(refused(cause));
        }
        let shown = |card: &SiteCard| format!("{}, {}", card.places(), card.fingerprint());
        let (before, after, name) = (shown(&known), shown(&card), card.site.clone());
        let added = trust.add(card).inspect_err(|error| {
            tracing::warn!(target: "audit", %site, %error, "a changed card was not taken");
        })?;
        match added {
            Added::Same | Added::New => return Ok(()),
            Added::Updated => tracing::info!(target: "audit", %site, before, after, "its new card was taken"),
            Added::Replaced => {
                tracing::info!(target: "audit", %site, before, after, "its new authority was taken over");
            }
            Added::Renamed => {
                tracing::info!(target: "audit", %site, name = %name, after, "its new name was taken over");
            }
        }
        self.context.read_again();
        Ok(())
    }

    /// A file that mentions a site of this name, although the site is not known.
    fn file_with_name(&self, site: &SiteName) -> Option<PathBuf> {
        let home = self.context.home();
        let volumes = std::fs::read_dir(home.volumes_dir()).into_iter().flatten().flatten();
        let files =
            [home.map_file(), home.config_file()].into_iter().chain(volumes.map(|entry| entry.path()));
        files.into_iter().find(|file| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            text.split(|letter| !is_in_name(letter)).any(|word| word == site.as_str())
        })
    }
}

/// Addresses of endpoints.
type Resolved = BTreeMap<String, Vec<IpAddr>>;

/// Resolves endpoints that are names. Names that do not resolve in time have no addresses.
fn look_up(endpoints: &[String]) -> Resolved {
    let (begun, (told, answers)) = (Instant::now(), channel());
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.parse::<SocketAddr>().is_err()).cloned() {
        let told = told.clone();
        // In parallel, so that no name delays the others.
        let looking = spawn("look up", move || {
            let found = resolve(&endpoint).unwrap_or_default().iter().map(|address| address.ip()).collect();
            let _ = told.send((endpoint, found));
        });
        if let Err(error) = looking {
            tracing::warn!(%error, "the names of a site card are not looked up");
        }
    }
    drop(told);
    let left = || LOOK_UP_WITHIN.saturating_sub(begun.elapsed());
    std::iter::from_fn(|| answers.recv_timeout(left()).ok()).collect()
}

/// Whether an endpoint is an address within a private network, or a name of one, that was not known for the site.
/// Another port of a known machine may be taken: a relay couples circuits only with peers that proved to be the
/// site's PoP.
fn is_new_inside(endpoint: &str, known: &SiteCard, resolved: &Resolved) -> bool {
    let host = host_of(endpoint);
    let is_known = |host: &str| known.endpoints.iter().any(|old| host_of(old) == host);
    let leads_inside = |address: &IpAddr| is_inside(*address) && !is_known(&address.to_string());
    !is_known(host)
        && (is_named_inside(host) || resolved.get(endpoint).into_iter().flatten().any(leads_inside))
}

fn host_of(endpoint: &str) -> &str {
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether a host is private by its notation, whatever it resolves to.
fn is_named_inside(host: &str) -> bool {
    if let Ok(address) = host.parse() {
        return is_inside(address);
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    // 127.1, 2130706433 and 0x7f.1 are addresses to a resolver (inet_aton(3)), and no domain ends like them.
    let is_number = match last.strip_prefix("0x") {
        Some(digits) => digits.chars().all(|digit| digit.is_ascii_hexdigit()),
        None => last.chars().all(|digit| digit.is_ascii_digit()),
    };
    last == "localhost" || is_number
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_net::identity::authority::Authority;
    use renkei_net::identity::testing::{card, now, site};

    #[test]
    fn private_addresses_are_accepted_if_the_former_one_was_private() {
        let mut known = card(&Authority::create(&site("kek"), now()).unwrap());
        known.endpoints = vec!["10.0.0.7:7512".into(), "pop.kek.jp:7512".into()];
        let at = |name: &str, address: &str| (name.to_owned(), vec![address.parse().unwrap()]);
        let resolved = Resolved::from([
            at("ip6-localhost:22", "::1"),
            at("new.kek.jp:7512", "203.0.113.9"),
            at("inside.kek.jp:7512", "10.0.0.8"),
            at("same.kek.jp:7512", "10.0.0.7"),
        ]);
        let asked = |endpoint: &str| is_new_inside(endpoint, &known, &resolved);
        for inside in [
            "127.0.0.1:22",
            "[::1]:22",
            "192.168.1.1:7512",
            "10.0.0.8:7512",
            "169.254.1.1:80",
            "[fd00::1]:1",
            "[fe80::1]:1",
            "[::ffff:127.0.0.1]:22",
            "localhost:22",
            "0.0.0.0:22",
            "127.1:22",
            "2130706433:22",
            "0x7f.1:22",
            "localhost.:22",
            "a.LOCALHOST:22",
            "ip6-localhost:22",
            "inside.kek.jp:7512",
            "[::127.0.0.1]:22",
            "[64:ff9b::7f00:1]:22",
            "100.64.0.1:22",
            "0.0.0.1:22",
            "255.255.255.255:22",
        ] {
            assert!(asked(inside), "{inside}");
        }
        for good in [
            "10.0.0.7:7513",
            "same.kek.jp:7512",
            "new.kek.jp:7512",
            "unresolved.kek.jp:7512",
            "0xpop.kek.jp:7512",
            "5a:7512",
            "203.0.113.9:7512",
            "[2001:db8::1]:7512",
        ] {
            assert!(!asked(good), "{good}");
        }
    }

    #[test]
    fn names_are_resolved_as_by_a_resolver() {
        let found = look_up(&["127.0.0.1:7512", "[::1]:7512", "127.1:22"].map(str::to_owned));
        assert_eq!(found, Resolved::from([("127.1:22".into(), vec!["127.0.0.1".parse().unwrap()])]));
    }
}
