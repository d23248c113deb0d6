//! Login: how a person with an account on the PoP's machine gets a certificate of some hours.
//!
//! On the PoP's machine the request goes over the local [`socket`], and the name of the asking
//! account becomes the user's name at the site. From elsewhere the same request goes through
//! `ssh USER@POP renkei login --csr-stdin`, so that the site's own keys, passwords and second factors decide. The
//! private key is made by the client and stays there.
//!
//! The reply carries the cards of the sites the PoP trusts, its own among them. Guarantees: a card never replaces
//! one with another fingerprint; nothing is kept of a reply whose certificate is not for our key or not good
//! under the card of its own site.

use super::account::Account;
use super::authority::{Authority, USER_HOURS};
use super::card::SiteCard;
use super::certificate::parse_chain;
use super::credential::{Credential, KeyRequest};
use super::former_names;
use super::socket::{self, Peer};
use super::trust::{Added, Trust, home_of_user};
use super::verify::verify_peer;
use super::{issued, map, secret};
use crate::home::{Home, make_private_dir};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::SystemTime;

/// A login request.
#[derive(Debug, Deserialize)]
struct Request {
    csr: String,
    #[serde(default = "default_hours")]
    hours: u32,
}

/// A login reply.
#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    certificate: String,
    cards: Vec<String>,
    /// The former names of renamed sites, each with the one of today.
    #[serde(default)]
    former_names: Vec<(String, String)>,
}

fn default_hours() -> u32 {
    USER_HOURS
}

/// What a login brought.
#[derive(Debug)]
pub struct LoggedIn {
    /// Who we are now.
    pub principal: Principal,
    /// Until when.
    pub not_after: SystemTime,
    /// Sites that were not known here before, or whose endpoints changed.
    pub sites: Vec<(SiteName, Added)>,
}

/// The PoP's half: answers `{"op":"login","csr":PEM,"hours":12}` of `peer`.
pub fn grant(home: &Home, peer: Peer, request: &Value, now: SystemTime) -> Result<Value, Error> {
    let request = Request::deserialize(request)
        .map_err(|error| Error::new(Code::ProtocolViolation, "login", "local socket", error))?;
    let account = Account::lookup_uid(peer.uid)?;
    let authority = Authority::load(home)?;
    map::refuse_shut_out(home, &Principal::user(authority.site(), &account.name)?)?;
    let issued = authority.issue_user(&account.name, &request.csr, request.hours, now)?;
    issued::note(home, &issued)?;
    tracing::info!(principal = %issued.principal, serial = issued.serial, uid = peer.uid, "login");
    reply_with(home, issued.pem)
}

/// A reply with a certificate and the cards of the sites that the PoP trusts.
pub(super) fn reply_with(home: &Home, certificate: String) -> Result<Value, Error> {
    let trust = Trust::load(home)?;
    let cards = trust.list().filter_map(|card| trust.export(&card.site)).map(|card| card.to_text());
    let names = former_names::read(home)?;
    let former_names =
        names.iter().map(|(former, current)| (former.to_owned(), current.to_owned())).collect();
    let reply = Reply { certificate, cards: cards.collect(), former_names };
    Ok(serde_json::to_value(reply).expect("a reply is plain data"))
}

/// A certificate of an hour for an account's user, whose key is thrown away: it proves nothing to others, and here who it
/// is for whom the PoP does something by itself.
pub fn vouch(home: &Home, account: &Account, now: SystemTime) -> Result<Vec<CertificateDer<'static>>, Error> {
    let request = KeyRequest::generate()?.request;
    let issued = Authority::load(home)?.issue_user(&account.name, &request, 1, now)?;
    issued::note(home, &issued)?;
    tracing::info!(target: "audit", principal = %issued.principal, serial = issued.serial, "vouched for");
    parse_chain(&issued.pem)
}

/// Logs in at the PoP behind the socket.
pub fn login(home: &Home, socket: &Path, hours: u32, now: SystemTime) -> Result<LoggedIn, Error> {
    let key = KeyRequest::generate()?;
    let reply = forward(socket, &key.request, hours)?;
    refuse_another(&reply, &key, home)?;
    keep(home, &key, reply, now)
}

/// Whoever serves the socket may pass the request on as its own account; what is done then would be that one's.
fn refuse_another(reply: &Value, key: &KeyRequest, home: &Home) -> Result<(), Error> {
    let certificate = reply["certificate"].as_str().unwrap_or_default();
    let named = Credential::parse(certificate, &key.key, &home.user_credential())?.principal()?;
    let own = Account::own()?.name;
    if named.user_name() == Some(own.as_str()) {
        return Ok(());
    }
    let cause = format!(
        "the PoP made a certificate of {named} for the account {own}; who runs the PoP behind that socket?"
    );
    Err(Error::new(Code::ProtocolViolation, "login", "local socket", cause))
}

/// Asks the PoP behind the socket for a certificate on a request that came from elsewhere.
pub fn forward(socket: &Path, request: &str, hours: u32) -> Result<Value, Error> {
    socket::request(socket, &json!({"op": "login", "csr": request, "hours": hours}))
}

/// How to reach a PoP's machine by ssh.
#[derive(Clone, Debug)]
pub struct SshRoute {
    /// The ssh program.
    pub program: String,
    /// `USER@HOST`, or a name of the ssh configuration.
    pub target: String,
    /// Directory or socket of the PoP on that machine, if it is not the default one.
    pub pop: Option<PathBuf>,
}

/// Logs in at a PoP through ssh; may ask for a password on the terminal, as ssh does.
pub fn login_by_ssh(home: &Home, route: &SshRoute, hours: u32, now: SystemTime) -> Result<LoggedIn, Error> {
    let key = KeyRequest::generate()?;
    let reply = route.ask(&format!("login --csr-stdin --hours {hours}"), &key.request)?;
    keep(home, &key, reply, now)
}

/// What it means that nothing came back.
fn silence(words: &str, status: ExitStatus) -> String {
    let verb = words.split(' ').next().unwrap_or_default();
    match status.code() {
        Some(255) => "ssh could not connect or log in; it said why above".into(),
        Some(127) => "there is no `renkei` on the path of that account there".into(),
        _ => format!("`renkei {verb}` there said nothing ({status})"),
    }
}

impl SshRoute {
    /// Runs `renkei WORDS` there, which reads the request, and gives what it answers.
    ///
    /// # Errors
    /// `SshFailed`, and those of the PoP there, which are told as that machine's.
    pub(super) fn ask(&self, words: &str, request: &str) -> Result<Value, Error> {
        let output = self.run(words, request)?;
        socket::parse_reply(output.trim_end()).map_err(|error| error.at(&self.target))
    }

    /// The one line of it.
    fn run(&self, words: &str, request: &str) -> Result<String, Error> {
        if self.target.is_empty() || self.target.starts_with('-') {
            return Err(Error::new(Code::UsageInvalid, "ssh", &self.target, "write USER@HOST"));
        }
        let fail = |cause: &dyn std::fmt::Display| Error::new(Code::SshFailed, "ssh", &self.target, cause);
        let mut child = Command::new(&self.program)
            .args(["-T", &self.target, &self.command(words)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| fail(&format!("cannot run {}: {error}", self.program)))?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // A failure here is told better by the exit status.
        let _ = stdin.write_all(request.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(|error| fail(&error))?;
        if output.stdout.is_empty() {
            return Err(fail(&silence(words, output.status)));
        }
        String::from_utf8(output.stdout).map_err(|error| fail(&error))
    }

    fn command(&self, words: &str) -> Result<String, Error> {
        let mut command = format!("renkei {words}");
        if let Some(pop) = &self.pop {
            let bad = || Error::new(Code::UsageInvalid, "ssh", pop.display(), "the path is not UTF-8");
            let quoted = pop.to_str().ok_or_else(bad)?.replace('\'', r"'\''");
            command.push_str(&format!(" --pop '{quoted}'"));
        }
        Ok(command)
    }
}

/// Checks a reply as a whole, then keeps cards and credential.
fn keep(home: &Home, key: &KeyRequest, reply: Value, now: SystemTime) -> Result<LoggedIn, Error> {
    keep_at(home, &home.user_credential(), key, reply, now)
}

/// The same with the credential in a file of its own.
pub(super) fn keep_at(
    home: &Home,
    file: &Path,
    key: &KeyRequest,
    reply: Value,
    now: SystemTime,
) -> Result<LoggedIn, Error> {
    let bad = |cause: String| Error::new(Code::ProtocolViolation, "login", "reply", cause);
    let reply = Reply::deserialize(reply).map_err(|error| bad(error.to_string()))?;
    let credential = Credential::parse(&reply.certificate, &key.key, file)?;
    let cards = reply.cards.iter().map(|text| SiteCard::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let principal = credential.principal()?;
    let place = home_of_user(home, principal.site())?;
    let mut trust = Trust::load(&place)?;
    for card in &cards {
        trust.compare_given(card)?;
    }
    if !cards.iter().any(|card| card.site == *principal.site()) {
        return Err(bad(format!("it lacks the card of {}", principal.site())));
    }
    if place != *home {
        make_private_dir(place.config_dir())?;
    }
    let mut sites = Vec::new();
    for card in cards {
        let site = card.site.clone();
        match trust.add_given(card)? {
            Added::Same => {}
            added => sites.push((site, added)),
        }
    }
    // What a site was called means it for users who log in after it was renamed, too.
    for (former, current) in &reply.former_names {
        let current = SiteName::parse(current)?;
        // A site that has that name is itself.
        let is_free = trust.list().all(|card| card.site.as_str() != former);
        if is_free
            && trust.card(&current).is_some()
            && let Err(error) = former_names::note(&place, former, &current)
        {
            tracing::warn!(%error, former, %current, "the former name of a site is not kept");
        }
    }
    former_names::install(&place)?;
    verify_peer(&credential.chain, &trust, now)?;
    make_private_dir(home.state_dir())?;
    secret::write(file, &format!("{}{}", reply.certificate, key.key))?;
    Ok(LoggedIn { principal, not_after: credential.facts()?.not_after, sites })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::tests::{card, now, pop, site};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn own_peer() -> Peer {
        Peer { uid: rustix::process::geteuid().as_raw(), gid: 0, pid: 1 }
    }

    fn own_name() -> String {
        Account::own().unwrap().name
    }

    /// A reply of the PoP for `key`.
    fn reply(home: &Home, key: &KeyRequest) -> Result<Value, Error> {
        grant(home, own_peer(), &json!({"op": "login", "csr": key.request}), now())
    }

    #[test]
    fn a_login_gives_a_credential_and_the_cards() {
        let (pop_dir, user_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (home, _) = pop(pop_dir.path(), "kek");
        let titech = Authority::create(&site("titech"), now()).unwrap();
        Trust::load(&home).unwrap().add(card(&titech)).unwrap();
        let user = Home::at(user_dir.path());
        let key = KeyRequest::generate().unwrap();
        let got = keep(&user, &key, reply(&home, &key).unwrap(), now()).unwrap();
        assert_eq!(got.principal.to_string(), format!("{}@kek", own_name()));
        assert_eq!(got.sites, [(site("kek"), Added::New), (site("titech"), Added::New)]);
        let credential = Credential::user(&user, now()).unwrap();
        assert_eq!(credential.principal().unwrap(), got.principal);
        let mode = user.user_credential().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(issued::find(&home, &got.principal.to_string(), now()).unwrap().len(), 1);
        let again = keep(&user, &key, reply(&home, &key).unwrap(), now()).unwrap();
        assert!(again.sites.is_empty());
    }

    #[test]
    fn a_login_goes_over_the_socket() {
        let (pop_dir, user_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (home, _) = pop(pop_dir.path(), "kek");
        let listener = socket::bind_socket(&home.socket()).unwrap();
        let stop = AtomicBool::new(false);
        let handler = |peer: Peer, request: &Value| grant(&home, peer, request, now());
        let got = std::thread::scope(|scope| {
            scope.spawn(|| socket::serve_socket(&listener, &handler, &stop));
            let got = login(&Home::at(user_dir.path()), &home.socket(), 2, now());
            stop.store(true, Ordering::Release);
            got.unwrap()
        });
        assert_eq!(got.principal.user_name(), Some(own_name().as_str()));
        assert_eq!(got.not_after, now() + Duration::from_secs(2 * 3600));
    }

    #[test]
    fn one_directory_can_be_a_pop_and_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        let key = KeyRequest::generate().unwrap();
        keep(&home, &key, reply(&home, &key).unwrap(), now()).unwrap();
        assert!(!home.trust_dir().join("kek.site").exists());
        Credential::user(&home, now()).unwrap();
        Credential::host(&home, now()).unwrap();
    }

    #[test]
    fn a_reply_with_another_authority_keeps_nothing() {
        let (first, second, user_dir) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ((good, _), (impostor, _)) = (pop(first.path(), "kek"), pop(second.path(), "kek"));
        let user = Home::at(user_dir.path());
        let key = KeyRequest::generate().unwrap();
        keep(&user, &key, reply(&good, &key).unwrap(), now()).unwrap();
        let before = std::fs::read(user.user_credential()).unwrap();
        let error = keep(&user, &key, reply(&impostor, &key).unwrap(), now()).unwrap_err();
        assert_eq!(error.code, Code::CardConflict);
        assert_eq!(std::fs::read(user.user_credential()).unwrap(), before);
    }

    #[test]
    fn a_reply_for_another_key_or_without_its_card_is_refused() {
        let (pop_dir, user_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (home, _) = pop(pop_dir.path(), "kek");
        let user = Home::at(user_dir.path());
        let (key, other) = (KeyRequest::generate().unwrap(), KeyRequest::generate().unwrap());
        let error = keep(&user, &other, reply(&home, &key).unwrap(), now()).unwrap_err();
        assert_eq!(error.code, Code::BadCertificate);
        let mut bare = reply(&home, &key).unwrap();
        bare["cards"] = json!([]);
        assert_eq!(keep(&user, &key, bare, now()).unwrap_err().code, Code::ProtocolViolation);
        assert!(!user.user_credential().exists() && !user.trust_dir().exists());
    }

    #[test]
    fn requests_without_sense_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        let ask = |request| grant(&home, own_peer(), &request, now()).unwrap_err().code;
        assert_eq!(ask(json!({"op": "login"})), Code::ProtocolViolation);
        assert_eq!(ask(json!({"op": "login", "csr": "x"})), Code::BadCertificate);
        let key = KeyRequest::generate().unwrap();
        assert_eq!(ask(json!({"op": "login", "csr": key.request, "hours": 10_000})), Code::UsageInvalid);
    }

    #[test]
    fn the_request_goes_through_ssh_and_the_key_does_not() {
        let (pop_dir, user_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (home, _) = pop(pop_dir.path(), "kek");
        let script = user_dir.path().join("ssh");
        let (seen, answer) = (user_dir.path().join("seen"), user_dir.path().join("answer"));
        let body = format!("#!/bin/sh\n(echo \"$@\"; cat) > {}\ncat {}\n", seen.display(), answer.display());
        std::fs::write(&script, body).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let denied: Result<Value, Error> = Err(Error::new(Code::AccountUnknown, "login", "uid", "none"));
        std::fs::write(&answer, socket::reply_line(denied)).unwrap();
        let route = SshRoute {
            program: script.display().to_string(),
            target: "alice@pop".into(),
            pop: Some("/srv/it's".into()),
        };
        let user = Home::at(user_dir.path());
        assert_eq!(login_by_ssh(&user, &route, 3, now()).unwrap_err().code, Code::AccountUnknown);
        let seen = std::fs::read_to_string(&seen).unwrap();
        assert!(seen.starts_with(r"-T alice@pop renkei login --csr-stdin --hours 3 --pop '/srv/it'\''s'"));
        assert!(seen.contains("CERTIFICATE REQUEST") && !seen.contains("PRIVATE KEY"));
        let _ = home;
    }

    #[test]
    fn an_ssh_target_is_no_option() {
        let dir = tempfile::tempdir().unwrap();
        let route = SshRoute { program: "ssh".into(), target: "-oProxyCommand=x".into(), pop: None };
        let error = login_by_ssh(&Home::at(dir.path()), &route, 1, now()).unwrap_err();
        assert_eq!(error.code, Code::UsageInvalid);
    }
}
