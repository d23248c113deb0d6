//! Identities that a user of this machine has already: bearer tokens where the WLCG says that they are found (WLCG
//! Bearer Token Discovery 1.0), and proxies where the programs of the grid keep them.
//!
//! A variable of the environment is explicit: what it names is used, or the verb fails. A file that merely lies there is
//! used if it is the user's alone, and passed over with a notice if not.

use super::exchange::Shown;
use crate::identity::certificate::parse_chain;
use crate::identity::credential::Credential;
use crate::identity::kerberos::HeldTicket;
use crate::identity::secret;
use crate::identity::token::jwt::Claims;
use renkei_core::error::{Code, Error};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that names the kind to look for.
pub const VARIABLE: &str = "RENKEI_CREDENTIAL";

/// Which identities are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kinds {
    /// Variables, then the login, then files.
    #[default]
    Any,
    /// That of the login alone.
    Login,
    /// Tokens alone.
    Token,
    /// Proxies alone.
    Proxy,
    /// Kerberos tickets alone.
    Kerberos,
}

impl Kinds {
    /// Parses the value of [`VARIABLE`].
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "" | "any" => Ok(Kinds::Any),
            "login" => Ok(Kinds::Login),
            "token" => Ok(Kinds::Token),
            "proxy" => Ok(Kinds::Proxy),
            "kerberos" => Ok(Kinds::Kerberos),
            other => {
                let cause = format!("{VARIABLE} is any, login, token, proxy or kerberos");
                Err(Error::new(Code::UsageInvalid, "find identity", other, cause))
            }
        }
    }
}

/// Where an identity came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `token`, `proxy` or `ticket`.
    pub kind: String,
    /// The variable, file or ticket cache.
    pub from: String,
    /// Who it says it is: subject and issuer of a token that can be read, principal of a ticket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
}

/// An identity that was found.
pub struct Found {
    /// Where.
    pub origin: Origin,
    /// Whether a variable named it.
    pub is_explicit: bool,
    /// Its text, with which its certificates are told apart.
    pub text: String,
}

/// What discovery reads.
pub struct Environment<'a> {
    /// The variables.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The directory for temporary files.
    pub temp: PathBuf,
    /// The user.
    pub uid: u32,
    /// Called with the reason why a file is passed over.
    pub notice: &'a dyn Fn(&Error),
    /// The Kerberos ticket of the user.
    pub ticket: &'a dyn Fn() -> Option<HeldTicket>,
}

impl Environment<'_> {
    /// The identity that variables name, if one does.
    ///
    /// # Errors
    /// `SecretExposed`, `NoSuchIdentity` if it cannot be used.
    pub fn named(&self, kinds: Kinds) -> Result<Option<Found>, Error> {
        if wants(kinds, Kinds::Token) {
            if let Some(text) = self.value("BEARER_TOKEN") {
                return Ok(Some(token(text, "BEARER_TOKEN".into(), true)));
            }
            if let Some(file) = self.value("BEARER_TOKEN_FILE") {
                let found = token_in(Path::new(&file), true)?;
                return found.ok_or_else(|| missing("BEARER_TOKEN_FILE", &file)).map(Some);
            }
        }
        match self.value("X509_USER_PROXY").filter(|_| wants(kinds, Kinds::Proxy)) {
            Some(file) => {
                let found = proxy_in(Path::new(&file), true)?;
                found.ok_or_else(|| missing("X509_USER_PROXY", &file)).map(Some)
            }
            None => Ok(None),
        }
    }

    /// The identity in the usual files or the ticket cache, if there is one. KRB5CCNAME is not explicit: logins of the
    /// machine set it for everybody.
    pub fn lying_about(&self, kinds: Kinds, now: SystemTime) -> Option<Found> {
        let name = format!("bt_u{}", self.uid);
        let runtime = self.value("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join(&name));
        let tokens = runtime.into_iter().chain([self.temp.join(name)]);
        let proxy = self.temp.join(format!("x509up_u{}", self.uid));
        let is_good = |found: &Found| !is_over(found, now);
        let usable = |found: Result<Option<Found>, Error>| {
            found.inspect_err(|error| (self.notice)(error)).ok().flatten().filter(is_good)
        };
        let mut found = None;
        if wants(kinds, Kinds::Token) {
            found = tokens.into_iter().find_map(|file| usable(token_in(&file, false)));
        }
        let proxy = || usable(proxy_in(&proxy, false)).filter(|_| wants(kinds, Kinds::Proxy));
        let held = || Some(ticket((self.ticket)()?));
        found.or_else(proxy).or_else(|| wants(kinds, Kinds::Kerberos).then(held).flatten())
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}

impl Found {
    /// The evidence to show.
    ///
    /// # Errors
    /// `BadCertificate` for a proxy that cannot be read.
    pub fn shown(&self) -> Result<Shown, Error> {
        match self.origin.kind.as_str() {
            "token" => Ok(Shown::Token(self.text.clone())),
            "ticket" => Ok(Shown::Ticket(self.text.clone())),
            _ => {
                let bad = |error: &dyn std::fmt::Display| {
                    Error::new(Code::BadCertificate, "read proxy", &self.origin.from, error)
                };
                let chain = parse_chain(&self.text)?;
                let key = PrivateKeyDer::from_pem_slice(self.text.as_bytes()).map_err(|error| bad(&error))?;
                Ok(Shown::Chain(Credential { chain, key }))
            }
        }
    }
}

/// The token of a file that the user named.
///
/// # Errors
/// `SecretExposed`, `NoSuchIdentity`.
pub fn token_file(path: &Path) -> Result<Found, Error> {
    token_in(path, true)?.ok_or_else(|| missing("--token", &path.display().to_string()))
}

/// The proxy of a file that the user named.
///
/// # Errors
/// `SecretExposed`, `NoSuchIdentity`.
pub fn proxy_file(path: &Path) -> Result<Found, Error> {
    proxy_in(path, true)?.ok_or_else(|| missing("--proxy", &path.display().to_string()))
}

/// A token that came another way.
pub fn token(text: String, from: String, is_explicit: bool) -> Found {
    let holder = Claims::read(&text).ok().map(|claims| claims.holder());
    Found { origin: Origin { kind: "token".into(), from, holder }, is_explicit, text }
}

/// A Kerberos ticket; its certificates are those of its principal.
pub fn ticket(held: HeldTicket) -> Found {
    let origin = Origin { kind: "ticket".into(), from: held.cache, holder: Some(held.principal.clone()) };
    Found { origin, is_explicit: false, text: held.principal }
}

fn wants(kinds: Kinds, kind: Kinds) -> bool {
    kinds == Kinds::Any || kinds == kind
}

fn missing(by: &str, file: &str) -> Error {
    Error::new(
        Code::NoSuchIdentity,
        "find identity",
        file,
        format!("{by} names it, and there is no such file"),
    )
}

fn read(path: &Path, is_explicit: bool) -> Result<Option<String>, Error> {
    if is_explicit { secret::read(path) } else { secret::read_in_public(path) }
}

fn token_in(path: &Path, is_explicit: bool) -> Result<Option<Found>, Error> {
    let text = read(path, is_explicit)?.map(|text| text.trim().to_owned());
    match text {
        Some(text) if text.is_empty() || text.contains(|c: char| !c.is_ascii_graphic()) => {
            let cause = "there is no token in it";
            Err(Error::new(Code::NoSuchIdentity, "find identity", path.display(), cause))
        }
        text => Ok(text.map(|text| token(text, path.display().to_string(), is_explicit))),
    }
}

fn proxy_in(path: &Path, is_explicit: bool) -> Result<Option<Found>, Error> {
    let from = path.display().to_string();
    let found =
        |text| Found { origin: Origin { kind: "proxy".into(), from, holder: None }, is_explicit, text };
    Ok(read(path, is_explicit)?.map(found))
}

/// Whether a token or proxy says itself that it is over.
fn is_over(found: &Found, now: SystemTime) -> bool {
    match found.origin.kind.as_str() {
        "token" => Claims::read(&found.text).is_ok_and(|claims| claims.ends() <= now),
        _ => parse_chain(&found.text).is_ok_and(|chain| chain.iter().any(|one| ended(one, now))),
    }
}

fn ended(certificate: &rustls::pki_types::CertificateDer<'_>, now: SystemTime) -> bool {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| {
        let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
        UNIX_EPOCH + Duration::from_secs(end) <= now
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[derive(Default)]
    struct Machine {
        variables: BTreeMap<&'static str, String>,
        ticket: Option<&'static str>,
        notices: RefCell<Vec<Code>>,
    }

    impl Machine {
        fn find(&self, dir: &Path, kinds: Kinds) -> Option<(String, String)> {
            let variable = |name: &str| self.variables.get(name).cloned();
            let notice = |error: &Error| self.notices.borrow_mut().push(error.code);
            let uid = rustix::process::geteuid().as_raw();
            let end = SystemTime::now() + Duration::from_secs(60);
            let held =
                |principal: &str| HeldTicket { principal: principal.into(), end, cache: "FILE:x".into() };
            let ticket = || self.ticket.map(held);
            let machine =
                Environment { variable: &variable, temp: dir.into(), uid, notice: &notice, ticket: &ticket };
            let named = machine.named(kinds).unwrap();
            let found = named.or_else(|| machine.lying_about(kinds, SystemTime::now()));
            found.map(|found| (found.origin.kind, found.text))
        }

        fn code(&self, dir: &Path) -> Code {
            let variable = |name: &str| self.variables.get(name).cloned();
            let machine = Environment {
                variable: &variable,
                temp: dir.into(),
                uid: 0,
                notice: &|_| {},
                ticket: &|| None,
            };
            machine.named(Kinds::Any).err().unwrap().code
        }
    }

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn is(kind: &str, text: &str) -> Option<(String, String)> {
        Some((kind.into(), text.into()))
    }

    #[test]
    fn identities_are_found_in_the_order_of_the_profile() {
        let dir = tempfile::tempdir().unwrap();
        let (temp, runtime) = (dir.path().join("tmp"), dir.path().join("run"));
        fs::create_dir(&temp).unwrap();
        fs::create_dir(&runtime).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let mut machine = Machine::default();
        assert_eq!(machine.find(&temp, Kinds::Any), None);
        machine.ticket = Some("taro@KEK.JP");
        assert_eq!(machine.find(&temp, Kinds::Any), is("ticket", "taro@KEK.JP"));
        assert_eq!(machine.find(&temp, Kinds::Token), None);
        put(&temp.join(format!("x509up_u{uid}")), "proxy", 0o600);
        assert_eq!(machine.find(&temp, Kinds::Any), is("proxy", "proxy"));
        put(&temp.join(format!("bt_u{uid}")), "  in-temp\n", 0o600);
        assert_eq!(machine.find(&temp, Kinds::Any), is("token", "in-temp"));
        assert_eq!(machine.find(&temp, Kinds::Proxy), is("proxy", "proxy"));
        machine.variables.insert("XDG_RUNTIME_DIR", runtime.display().to_string());
        put(&runtime.join(format!("bt_u{uid}")), "in-runtime", 0o600);
        assert_eq!(machine.find(&temp, Kinds::Any), is("token", "in-runtime"));
        let named = dir.path().join("named");
        put(&named, "in-file", 0o600);
        machine.variables.insert("X509_USER_PROXY", named.display().to_string());
        assert_eq!(machine.find(&temp, Kinds::Any), is("proxy", "in-file"));
        machine.variables.insert("BEARER_TOKEN_FILE", named.display().to_string());
        assert_eq!(machine.find(&temp, Kinds::Any), is("token", "in-file"));
        machine.variables.insert("BEARER_TOKEN", " in-variable ".into());
        assert_eq!(machine.find(&temp, Kinds::Any), is("token", "in-variable"));
        assert_eq!(machine.find(&temp, Kinds::Login), None);
        assert_eq!(machine.find(&temp, Kinds::Kerberos), is("ticket", "taro@KEK.JP"));
    }

    #[test]
    fn files_that_others_may_have_made_or_read_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(format!("bt_u{}", rustix::process::geteuid().as_raw()));
        put(&file, "token", 0o644);
        let machine = Machine::default();
        assert_eq!(machine.find(dir.path(), Kinds::Any), None);
        fs::remove_file(&file).unwrap();
        put(&dir.path().join("mine"), "token", 0o600);
        symlink(dir.path().join("mine"), &file).unwrap();
        assert_eq!(machine.find(dir.path(), Kinds::Any), None);
        fs::remove_file(&file).unwrap();
        put(&file, "two words", 0o600);
        assert_eq!(machine.find(dir.path(), Kinds::Any), None);
        assert_eq!(machine.notices.borrow().len(), 3);
    }

    #[test]
    fn a_variable_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let (file, none) = (dir.path().join("open"), dir.path().join("none"));
        put(&file, "token", 0o644);
        for (name, path, code) in [
            ("BEARER_TOKEN_FILE", &file, Code::SecretExposed),
            ("BEARER_TOKEN_FILE", &none, Code::NoSuchIdentity),
            ("X509_USER_PROXY", &none, Code::NoSuchIdentity),
        ] {
            let variables = BTreeMap::from([(name, path.display().to_string())]);
            assert_eq!(Machine { variables, ..Machine::default() }.code(dir.path()), code, "{name}");
        }
        assert_eq!(Kinds::parse("keys").unwrap_err().code, Code::UsageInvalid);
    }
}
