//! The credential of a mount: for machines whose mounts continue without a logged-in user, as those of /etc/fstab.
//!
//! The administrator grants it once, by name, for one user of the site. It names that user, and an extension beside
//! the name has the mount's name and the number of the grant: a PoP permits its holder file operations and nothing
//! else, and revoking the grant revokes all certificates that were issued for it. The key is generated on the machine
//! of the mount and stays there; the mount renews its certificate long before the end, as long as the grant stands.
//!
//! Guarantees: every certificate is recorded before it is handed out; a number belongs to one grant for ever.
//! Non-goal: restricting the files that the user may use; the map and the volumes' grants do that.

use super::authority::issued;
use super::authority::{Authority, Issued, random_number};
use super::certificate::{Facts, parse_serial, unix_seconds};
use super::credential::{Credential, KeyRequest};
use super::login::{LoggedIn, SshRoute, keep_at, reply_with};
pub use super::pki::extension::{Grant, check_name};
use super::socket;
use super::{map, secret};
use renkei_config::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lifetime of a mount's certificate: a machine may be off for some weeks. A running mount renews it long before.
pub const MOUNT_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Largest file of grants.
const MAX_BYTES: u64 = 16 << 20;

// ---- at the PoP ------------------------------------------------------------------------------------------------------

/// The mounts that have a credential, in the order they were granted.
///
/// # Errors
/// Errors of the file; lines that cannot be parsed are `ConfigInvalid`.
pub fn list(home: &Home) -> Result<Vec<Grant>, Error> {
    let text = read_text(&home.mounts_file(), MAX_BYTES)?.unwrap_or_default();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let bad = |number: usize| {
        let cause = format!("line {}: NAME USER@SITE NUMBER SECONDS is expected", number + 1);
        Error::new(Code::ConfigInvalid, "read mount credentials", home.mounts_file().display(), cause)
    };
    lines.map(|(number, line)| parse_line(line).ok_or_else(|| bad(number))).collect()
}

fn parse_line(line: &str) -> Option<Grant> {
    let mut words = line.split(' ');
    let (name, user) = (words.next()?.to_owned(), Principal::parse(words.next()?).ok()?);
    let number = parse_serial(words.next()?).ok()?;
    let since = UNIX_EPOCH.checked_add(Duration::from_secs(words.next()?.parse().ok()?))?;
    Some(Grant { name, user, number, since })
}

fn store(home: &Home, all: &[Grant]) -> Result<(), Error> {
    let line = |grant: &Grant| {
        format!("{} {} {} {}\n", grant.name, grant.user, grant.number, unix_seconds(grant.since))
    };
    let head = "# Mounts with a credential of their own. Written by `renkei mount-credential`.\n";
    let text: String = std::iter::once(head.to_owned()).chain(all.iter().map(line)).collect();
    write_file(&home.mounts_file(), text.as_bytes(), 0o600)
}

/// The PoP's half of a grant: answers `{"op":"grant_mount","csr":PEM,"name":NAME,"user":USER}`. The caller's
/// permission is checked before. An earlier credential of a mount of that name is revoked.
///
/// # Errors
/// `UsageInvalid` for an invalid name or user, `BadCertificate` for the request.
pub fn grant(home: &Home, request: &Value, now: SystemTime) -> Result<Value, Error> {
    #[derive(Deserialize)]
    struct CertificateRequest {
        csr: String,
        name: String,
        user: String,
    }
    let asked = CertificateRequest::deserialize(request)
        .map_err(|error| Error::new(Code::ProtocolViolation, "grant mount", "local socket", error))?;
    check_name(&asked.name)?;
    let authority = Authority::load(home)?;
    let user = Principal::user(authority.site(), &asked.user)?;
    map::refuse_shut_out(home, &user)?;
    let grant = Grant { name: asked.name, user, number: random_number(), since: now };
    // An invalid request must not revoke the credential of the mount that has the name.
    let fresh = authority.issue_mount(&grant, &asked.csr, now, MOUNT_LIFE)?;
    revoke(home, &grant.name, now)?;
    let mut all = list(home)?;
    all.push(grant.clone());
    store(home, &all)?;
    issued::note_delegated(home, &[&fresh], &grant.number)?;
    tracing::info!(target: "audit", mount = grant.name, user = %grant.user, serial = fresh.serial, "mount credential granted");
    reply_with(home, fresh.pem)
}

/// A fresh certificate for the mount of a grant, on a request of its holder.
///
/// # Errors
/// `MountNotGranted` if the grant was revoked, `BadCertificate` for the request.
pub fn renew(home: &Home, number: &str, request: &str, now: SystemTime) -> Result<Issued, Error> {
    let Some(grant) = list(home)?.into_iter().find(|grant| grant.number == number) else {
        let cause = "its grant was revoked; `renkei mount-credential list` shows those that stand";
        return Err(Error::new(Code::MountNotGranted, "renew mount credential", number, cause));
    };
    let fresh = Authority::load(home)?.issue_mount(&grant, request, now, MOUNT_LIFE)?;
    issued::note_delegated(home, &[&fresh], number)?;
    Ok(fresh)
}

/// Revokes the credential of a mount; `None` if no mount of that name has one.
///
/// # Errors
/// Errors of the files.
pub fn revoke(home: &Home, name: &str, now: SystemTime) -> Result<Option<Grant>, Error> {
    let mut all = list(home)?;
    let Some(at) = all.iter().position(|grant| grant.name == name) else { return Ok(None) };
    let gone = all.remove(at);
    // Certificates first: if the process ends in between, the name is still listed to be revoked again.
    Authority::load(home)?.revoke(home, std::slice::from_ref(&gone.number), now)?;
    store(home, &all)?;
    tracing::info!(target: "audit", mount = gone.name, user = %gone.user, "mount credential revoked");
    Ok(Some(gone))
}

/// The end of validity of the newest certificate of a grant.
///
/// # Errors
/// Errors of the file.
pub fn valid_until(home: &Home, number: &str) -> Result<Option<SystemTime>, Error> {
    issued::newest_of(home, number)
}

// ---- on the machine of the mount -------------------------------------------------------------------------------------

/// The request of a machine.
pub struct CredentialRequest<'a> {
    /// The mount's name.
    pub name: &'a str,
    /// The user's name at the site.
    pub user: &'a str,
}

impl CredentialRequest<'_> {
    /// Requests it from the PoP behind the socket, as its administrator, and stores the credential in `home`.
    pub fn take(&self, home: &Home, socket: &Path, now: SystemTime) -> Result<LoggedIn, Error> {
        let key = KeyRequest::generate()?;
        let reply = self.forward(socket, &key.request)?;
        keep_at(home, &home.mount_credential(), &key, reply, now)
    }

    /// Forwards a certificate request that came from elsewhere.
    pub fn forward(&self, socket: &Path, request: &str) -> Result<Value, Error> {
        let asked = json!({"op": "grant_mount", "csr": request, "name": self.name, "user": self.user});
        socket::request(socket, &asked)
    }

    /// Requests it through ssh, as an administrator of the PoP there.
    pub fn take_by_ssh(&self, home: &Home, route: &SshRoute, now: SystemTime) -> Result<LoggedIn, Error> {
        check_name(self.name)?;
        // Names of users need no quotes either, once they are checked.
        Principal::user(&SiteName::parse("any")?, self.user)?;
        let key = KeyRequest::generate()?;
        let words = format!("mount-credential grant {} --user {} --csr-stdin", self.name, self.user);
        let reply = route.ask(&words, &key.request)?;
        keep_at(home, &home.mount_credential(), &key, reply, now)
    }
}

/// Whether a mount should renew its certificate: a third of its lifetime has passed.
///
/// # Errors
/// `BadCertificate`.
pub fn is_due(credential: &Credential, now: SystemTime) -> Result<bool, Error> {
    let Facts { not_before, not_after, .. } = credential.facts()?;
    let life = not_after.duration_since(not_before).unwrap_or_default();
    Ok(not_after.duration_since(now).unwrap_or_default() < life * 2 / 3)
}

/// The request for a fresh certificate, on the existing key.
///
/// # Errors
/// Errors of the file.
pub fn request_again(home: &Home) -> Result<KeyRequest, Error> {
    let path = home.mount_credential();
    let none = || Error::new(Code::NotLoggedIn, "read credential", path.display(), "there is no such file");
    KeyRequest::again(&secret::read(&path)?.ok_or_else(none)?)
}

/// Stores a fresh certificate, if it is for the same user and mount as the previous one.
///
/// # Errors
/// `BadCertificate` if it is not, and errors of the file.
pub fn keep(home: &Home, pem: &str, key: &KeyRequest) -> Result<SystemTime, Error> {
    let path = home.mount_credential();
    let fresh = Credential::parse(pem, &key.key, &path)?.facts()?;
    let before = Credential::of_mount(home)?.map(|credential| credential.facts()).transpose()?;
    if before.is_none_or(|before| before.mount != fresh.mount || before.names != fresh.names) {
        let cause = "the site sent a certificate of another user";
        return Err(Error::new(Code::BadCertificate, "renew mount credential", path.display(), cause));
    }
    secret::write(&path, &format!("{pem}{}", key.key))?;
    Ok(fresh.not_after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::parse_chain;
    use crate::identity::tests::{now, pop};
    use crate::identity::trust::Trust;
    use crate::identity::verify::verify_peer;

    const DAY: Duration = Duration::from_secs(86_400);

    struct Here {
        home: Home,
        key: KeyRequest,
        _dir: tempfile::TempDir,
    }

    fn here() -> Here {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        Here { home, key: KeyRequest::generate().unwrap(), _dir: dir }
    }

    impl Here {
        fn grant(&self, name: &str, user: &str) -> Result<String, Error> {
            let asked = json!({"op": "grant_mount", "csr": self.key.request, "name": name, "user": user});
            let reply = grant(&self.home, &asked, now())?;
            Ok(reply["certificate"].as_str().unwrap().to_owned())
        }

        fn judge(&self, pem: &str, at: SystemTime) -> Result<String, Code> {
            let trust = Trust::load(&self.home).unwrap();
            let judged = verify_peer(&parse_chain(pem).unwrap(), &trust, at);
            judged.map(|principal| principal.to_string()).map_err(|error| error.code)
        }
    }

    #[test]
    fn a_grant_is_listed_renewed_and_revoked_with_its_certificates() {
        let here = here();
        let first = here.grant("node17", "alice").unwrap();
        assert_eq!(here.judge(&first, now()).as_deref(), Ok("alice@kek"));
        let listed = list(&here.home).unwrap();
        assert_eq!((listed[0].name.as_str(), listed.len()), ("node17", 1));
        let number = &listed[0].number;
        let later = now() + 20 * DAY;
        let fresh = renew(&here.home, number, &here.key.request, later).unwrap();
        assert_eq!(valid_until(&here.home, number).unwrap(), Some(later + MOUNT_LIFE));
        assert_eq!(here.judge(&fresh.pem, later).as_deref(), Ok("alice@kek"));
        assert_eq!(revoke(&here.home, "node17", later).unwrap().unwrap().number, *number);
        assert_eq!(here.judge(&first, later), Err(Code::CertificateRevoked));
        assert_eq!(here.judge(&fresh.pem, later), Err(Code::CertificateRevoked));
        let again = renew(&here.home, number, &here.key.request, later).unwrap_err();
        assert_eq!((again.code, revoke(&here.home, "node17", later).unwrap()), (Code::MountNotGranted, None));
    }

    #[test]
    fn granting_a_name_again_revokes_the_first_grant() {
        let here = here();
        let (first, second) = (here.grant("a", "alice").unwrap(), here.grant("a", "bob").unwrap());
        assert_eq!(here.judge(&first, now()), Err(Code::CertificateRevoked));
        assert_eq!(here.judge(&second, now()).as_deref(), Ok("bob@kek"));
        assert_eq!(list(&here.home).unwrap().len(), 1);
    }

    #[test]
    fn a_mount_grant_is_revoked_with_its_user() {
        let here = here();
        let pem = here.grant("a", "alice").unwrap();
        let serials = issued::find(&here.home, "alice@kek", now()).unwrap();
        assert_eq!(serials, [list(&here.home).unwrap()[0].number.clone()]);
        Authority::load(&here.home).unwrap().revoke(&here.home, &serials, now()).unwrap();
        assert_eq!(here.judge(&pem, now()), Err(Code::CertificateRevoked));
    }

    #[test]
    fn names_are_checked_and_an_invalid_request_revokes_nothing() {
        let here = here();
        let first = here.grant("a", "alice").unwrap();
        for (name, user) in [("", "alice"), ("a b", "alice"), ("-a", "alice"), ("a", "b c")] {
            assert_eq!(here.grant(name, user).unwrap_err().code, Code::UsageInvalid, "{name} {user}");
        }
        let asked = json!({"op": "grant_mount", "csr": "x", "name": "a", "user": "alice"});
        assert_eq!(grant(&here.home, &asked, now()).unwrap_err().code, Code::BadCertificate);
        assert_eq!(here.judge(&first, now()).as_deref(), Ok("alice@kek"));
    }

    #[test]
    fn renewal_is_due_after_a_third_of_the_lifetime() {
        let here = here();
        let pem = here.grant("a", "alice").unwrap();
        let credential = Credential::parse(&pem, &here.key.key, Path::new("test")).unwrap();
        let due = |days| is_due(&credential, now() + days * DAY).unwrap();
        assert_eq!([due(0), due(9), due(11), due(40)], [false, false, true, true]);
    }
}
