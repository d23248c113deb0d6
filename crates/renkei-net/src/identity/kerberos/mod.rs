//! Kerberos: tickets that clients show over HTTP (`Negotiate`, RFC 4559), and tickets that a user of this machine has.
//!
//! [`Service`] has the keytab of one moment, and why it cannot be used. [`Service::begin`] starts an authentication, and
//! [`Pending::accept`] takes the tokens of the client, mostly one; the result is a [`Ticket`], whose account
//! [`Ticket::account`] finds by the map. [`held`] and [`token_for`] are the client's side.
//!
//! `library` finds the functions of MIT Kerberos at run time, `gss` calls them; no other file has `unsafe`. Guarantees:
//! only keys of the service HTTP are used, no other mechanism than Kerberos is agreed on, delegated credentials are not
//! taken. A token counts once: the library remembers those of the last minutes (`/var/tmp/krb5_<uid>.rcache2`).
//! Non-goals: channel bindings, which few clients send; constrained delegation.

mod gss;
mod library;

use super::map::check_ordinary;
use gss::{Accepted, Accepting, CREDENTIALS_EXPIRED, Credential, Failure};
use renkei_config::{Config, Kerberos};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Mapping, Verdict, Why};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// The service of HTTP servers (RFC 4559, 4.1).
const SERVICE: &str = "HTTP";
const OP: &str = "authenticate with Kerberos";
/// Mode bits that give everybody the keys.
const OPEN_TO_ALL: u32 = 0o006;

/// The keytab of the PoP, as of one moment.
#[derive(Debug)]
pub struct Service {
    config: Kerberos,
    stamp: Option<Stamp>,
    trouble: Option<Error>,
}

/// The state of a keytab, to detect changes.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    /// Seconds and nanoseconds: of the content, and of the content, owner and mode.
    modified: (i64, i64),
    changed: (i64, i64),
    size: u64,
    inode: u64,
}

/// What a client proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The principal, as `taro@EXAMPLE.ORG`.
    pub principal: String,
    /// The end of the ticket.
    pub end: SystemTime,
}

/// An authentication of which further tokens are awaited.
pub struct Pending(Accepting);

/// What a token of a client led to.
pub enum Step {
    /// The client has to answer to this reply.
    More(Pending, Vec<u8>),
    /// The client is authenticated; the reply proves the PoP to it, if it asked for that.
    Done(Ticket, Vec<u8>),
}

impl Service {
    /// Looks at the keytab of a configuration.
    pub fn load(config: &Kerberos) -> Self {
        // First, so that a change while it is read is noticed.
        let stamp = stamp(&config.keytab);
        let trouble = usable(&config.keytab).err();
        Service { config: config.clone(), stamp, trouble }
    }

    /// Whether the keytab, or the configuration, is another one by now, or what is wrong with it: a library may have been
    /// installed, or krb5.conf mended.
    pub fn is_stale(&self, config: &Kerberos) -> bool {
        let differs = || self.trouble.is_some() && usable(&config.keytab).err() != self.trouble;
        self.config != *config || self.stamp != stamp(&config.keytab) || differs()
    }

    /// Why tickets are not accepted.
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref()
    }

    /// Begins to authenticate a client.
    ///
    /// # Errors
    /// `KerberosOff`.
    pub fn begin(&self) -> Result<Pending, Error> {
        match &self.trouble {
            Some(trouble) => Err(trouble.clone()),
            None => keys(&self.config.keytab).map(|keys| Pending(Accepting::new(keys))),
        }
    }
}

impl Pending {
    /// Takes a token of the client.
    ///
    /// # Errors
    /// `TicketInvalid`, `TicketExpired`, `TicketReplayed`, `TicketClock`, `TicketElsewhere`.
    pub fn accept(self, token: &[u8]) -> Result<Step, Error> {
        match self.0.accept(token) {
            Ok(Accepted::More(next, reply)) => Ok(Step::More(Pending(next), reply)),
            Ok(Accepted::Done { principal, end, reply }) => Ok(Step::Done(Ticket { principal, end }, reply)),
            Err(failure) => Err(Error::new(refusal(&failure), OP, "ticket", failure.text)),
        }
    }
}

impl Ticket {
    /// The account of the principal, by the map.
    ///
    /// # Errors
    /// `TicketExpired`, `NotMapped`, `ShutOut`.
    pub fn account(&self, mapping: &Mapping, config: &Config, at: SystemTime) -> Result<String, Error> {
        if self.end <= at {
            let cause = format!("it ended on {}", super::certificate::utc(self.end));
            return Err(Error::new(Code::TicketExpired, OP, &self.principal, cause));
        }
        account(&self.principal, mapping, config).map(|(account, _)| account)
    }
}

/// The account of a principal, by the map, and the reason.
///
/// # Errors
/// `NotMapped`, `ShutOut`.
pub fn account(principal: &str, mapping: &Mapping, config: &Config) -> Result<(String, Why), Error> {
    match mapping.of_kerberos(principal) {
        Some(Verdict { account: Some(account), why }) => {
            check_ordinary(&format!("krb:{principal}"), &why, &account, config)?;
            Ok((account, why))
        }
        Some(Verdict { why: why @ Why::ShutOut { .. }, .. }) => {
            Err(Error::new(Code::ShutOut, "map", principal, why))
        }
        Some(Verdict { why, .. }) => Err(Error::new(Code::NotMapped, "map", principal, why)),
        None => Err(Error::new(Code::NotMapped, "map", principal, Why::NoRule)),
    }
}

fn usable(keytab: &Path) -> Result<(), Error> {
    if keytab.as_os_str().is_empty() {
        return Err(off(keytab, "`kerberos.keytab` is empty"));
    }
    // To open a pipe would wait for its writer.
    let file = std::fs::metadata(keytab).map_err(|error| off(keytab, error))?;
    if !file.is_file() {
        return Err(off(keytab, "it is not a file"));
    }
    let mode = file.mode();
    if mode & OPEN_TO_ALL != 0 {
        return Err(off(
            keytab,
            format!("every account of this machine has its keys (mode {:o})", mode & 0o777),
        ));
    }
    std::fs::File::open(keytab).map_err(|error| off(keytab, error))?;
    keys(keytab).map(drop)
}

fn keys(keytab: &Path) -> Result<Credential, Error> {
    let name = gss::keytab_name(keytab).ok_or_else(|| off(keytab, "a NUL in the name"))?;
    Credential::of_service(SERVICE, &name).map_err(|failure| off(keytab, failure.text))
}

fn off(keytab: &Path, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::KerberosOff, OP, keytab.display(), cause)
}

fn stamp(keytab: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(keytab).ok()?;
    Some(Stamp {
        modified: (file.mtime(), file.mtime_nsec()),
        changed: (file.ctime(), file.ctime_nsec()),
        size: file.len(),
        inode: file.ino(),
    })
}

/// The code of a refused token. Mechanisms below SPNEGO have their minor statuses renumbered, so the messages tell: those of
/// the library's own table of errors, which are English, because no program here sets a locale.
fn refusal(failure: &Failure) -> Code {
    let says = |words: &[&str]| words.iter().any(|word| failure.text.contains(word));
    match failure.routine {
        CREDENTIALS_EXPIRED => Code::TicketExpired,
        _ if says(&["Ticket expired"]) => Code::TicketExpired,
        _ if says(&["is a replay"]) => Code::TicketReplayed,
        _ if says(&["Clock skew", "not yet valid"]) => Code::TicketClock,
        _ if says(&["keytab", "Wrong principal", "Key table", "Cannot decrypt ticket", "isn't for us"]) => {
            Code::TicketElsewhere
        }
        _ => Code::TicketInvalid,
    }
}

/// A ticket that the user of this machine has.
#[derive(Clone, Debug)]
pub struct HeldTicket {
    /// Whose it is.
    pub principal: String,
    /// Its end.
    pub end: SystemTime,
    /// Where it is kept, as KRB5CCNAME says.
    pub cache: String,
}

/// The ticket of the user, from KRB5CCNAME or the default cache of the machine.
///
/// # Errors
/// `NoSuchIdentity` if there is none that is valid, or no library of Kerberos.
pub fn held(now: SystemTime) -> Result<HeldTicket, Error> {
    let cache = std::env::var("KRB5CCNAME").ok().filter(|name| !name.is_empty());
    let cache = cache.unwrap_or_else(|| "the default cache".into());
    let none = |cause: &str| Error::new(Code::NoSuchIdentity, "find Kerberos ticket", &cache, cause);
    let found = Credential::of_user().and_then(|credential| credential.holder());
    match found.map_err(|failure| none(&failure.text))? {
        (_, left) if left.is_zero() => Err(none("the ticket has expired: `kinit`")),
        (principal, left) => Ok(HeldTicket { principal, end: now + left, cache }),
    }
}

/// The token with which a principal, as [`held`] told it, authenticates at an HTTP server, by its name. The name is that of the
/// address, and the DNS is not asked for another; the KDC knows the realm of the server.
///
/// # Errors
/// `NoServiceTicket`.
pub fn token_for(host: &str, principal: &str) -> Result<Vec<u8>, Error> {
    let service = format!("{SERVICE}/{}@", host.trim_end_matches('.').to_ascii_lowercase());
    gss::initiate(&service, principal)
        .map_err(|failure| Error::new(Code::NoServiceTicket, "get Kerberos ticket", &service, failure.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_keytab_that_cannot_be_used_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let keytab = dir.path().join("krb5.keytab");
        let trouble = |keytab: &Path| {
            let service = Service::load(&Kerberos { keytab: keytab.into() });
            let error = service.begin().err().unwrap();
            assert_eq!((error.code, service.trouble()), (Code::KerberosOff, Some(&error)));
            error.cause
        };
        assert!(trouble(Path::new("")).contains("is empty"));
        assert!(trouble(&keytab).contains("No such file"));
        assert!(trouble(dir.path()).contains("not a file"));
        write(&keytab, "no keytab").unwrap();
        set_permissions(&keytab, Permissions::from_mode(0o644)).unwrap();
        assert!(trouble(&keytab).contains("mode 644"));
        let service = Service::load(&Kerberos { keytab: keytab.clone() });
        assert!(!service.is_stale(&Kerberos { keytab: keytab.clone() }));
        set_permissions(&keytab, Permissions::from_mode(0o600)).unwrap();
        assert!(service.is_stale(&Kerberos { keytab: keytab.clone() }), "a repaired mode");
        assert!(!trouble(&keytab).is_empty());
        assert!(service.is_stale(&Kerberos::default()));
        let service = Service::load(&Kerberos { keytab: keytab.clone() });
        set_permissions(&keytab, Permissions::from_mode(0o644)).unwrap();
        assert!(service.is_stale(&Kerberos { keytab }), "a loosened mode");
    }

    #[test]
    fn an_account_is_that_of_the_principal_then_of_its_realm() {
        let account = |table: &str, principal: &str| {
            let mapping = Mapping::parse(table).unwrap();
            account(principal, &mapping, &Config::default())
                .map(|(account, _)| account)
                .map_err(|error| error.code)
        };
        let table = "krb:*@KEK.JP *\nkrb:taro@KEK.JP yamada\nkrb:eve@KEK.JP !\nkrb:*@NII.JP guest\nkrb:a/admin@KEK.JP boss\n";
        assert_eq!(account(table, "taro@KEK.JP"), Ok("yamada".into()));
        assert_eq!(account(table, "nobody-there@KEK.JP"), Ok("nobody-there".into()));
        assert_eq!(account(table, "x@NII.JP"), Ok("guest".into()));
        assert_eq!(account(table, "a/admin@KEK.JP"), Ok("boss".into()));
        assert_eq!(account(table, "eve@KEK.JP"), Err(Code::ShutOut));
        // Neither services nor administrators are users by a rule for all; nor are accounts of the system.
        for other in [
            "b/admin@KEK.JP",
            "host/x@NII.JP",
            "taro@kek.jp",
            "taro@OTHER",
            "root@KEK.JP",
            "daemon@KEK.JP",
            "a\\@b@NII.JP",
        ] {
            assert_eq!(account(table, other), Err(Code::NotMapped), "{other}");
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let code = |text: &str| refusal(&Failure { routine: 13, text: text.into() });
        assert_eq!(code("Request is a replay"), Code::TicketReplayed);
        assert_eq!(code("Clock skew too great"), Code::TicketClock);
        assert_eq!(code("Request ticket server HTTP/x@R not found in keytab"), Code::TicketElsewhere);
        assert_eq!(code("Message stream modified"), Code::TicketInvalid);
        let expired = Failure { routine: CREDENTIALS_EXPIRED, text: String::new() };
        assert_eq!(refusal(&expired), Code::TicketExpired);
    }
}
