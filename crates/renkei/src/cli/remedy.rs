//! What to do about an error, by the case: who reads it, at which site, as which account it was tried, what to type.
//!
//! Each code has a remedy that is right for everybody; here is what is better where more is known. What is known of the
//! reader comes from the directory of the PoP or user that the command worked in, and is looked up when the first error is printed.

use crate::config::{Config, nearest};
use crate::home::{Home, read_text};
use crate::identity::credential::Credential;
use crate::identity::trust::Trust;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::{SiteName, is_label};
use std::sync::OnceLock;

/// Longest note of how somebody logged in.
const MAX_LOGIN_BYTES: u64 = 4096;

/// Whoever reads an error.
#[derive(Debug, Default)]
struct Reader {
    /// Whom the certificate names, if there is one.
    principal: Option<Principal>,
    /// The site whose PoP is in this directory: the reader is its administrator.
    administers: Option<SiteName>,
    /// The sites that are known here.
    known: Vec<String>,
    /// With which options the reader logged in last.
    login: Option<String>,
    /// What starts the PoP of this directory, if there is one; else whether the machine has one as a service.
    serve: Option<String>,
}

static HOME: OnceLock<Home> = OnceLock::new();
static READER: OnceLock<Reader> = OnceLock::new();

/// Errors are told to whoever works in this directory.
pub(super) fn read_by(home: Home) {
    // A second command in one process is a test's.
    let _ = HOME.set(home);
}

/// What to do.
pub(super) fn remedy(error: &Error) -> String {
    let reader = READER.get_or_init(|| HOME.get().map(Reader::look).unwrap_or_default());
    reader.remedy(error).unwrap_or_else(|| error.code.row().remedy.into())
}

impl Reader {
    fn look(home: &Home) -> Self {
        let administers = Config::load(home).ok().and_then(|config| config.site);
        let known = Trust::load(home).map(|trust| trust.list().map(|card| card.site.to_string()).collect());
        let is_service = *home == Home::system();
        let own = match is_service {
            true => "`systemctl start renkei`".to_owned(),
            false => format!("`renkei --dir {} serve`", home.config_dir().display()),
        };
        let service = Home::system().config_file().exists().then(|| "`systemctl start renkei`".to_owned());
        Reader {
            principal: Credential::user_named(home).ok(),
            serve: administers.as_ref().map(|_| own).or(service),
            administers,
            known: known.unwrap_or_default(),
            login: read_text(&home.login_file(), MAX_LOGIN_BYTES).ok().flatten(),
        }
    }

    fn remedy(&self, error: &Error) -> Option<String> {
        use Code::*;
        match error.code {
            PermissionDenied => self.denied(error),
            PeerDown | PortClosed | SiteUnreachable | NameUnresolved | NoLine => self.unreached(error),
            NotMapped => self.not_mapped(error),
            NotAllowed | ReadOnlyStorage => self.not_granted(error),
            SiteUnknown => self.unknown_site(&error.subject),
            UsageInvalid | BadPath | PathNotFound => misspelt(error),
            MountBusy => Some(busy(&error.subject)),
            PopNotRunning => Some(self.not_running()),
            // That of a PoP, which no login mends.
            CertificateExpired if !error.subject.contains('@') => None,
            CertificateExpired | NotLoggedIn if error.op == "read credential" => self.log_in(),
            _ => None,
        }
    }

    fn is_administrator(&self, site: &str) -> bool {
        self.administers.as_ref().is_some_and(|own| own.as_str() == site)
    }

    /// The file system refused an account.
    fn denied(&self, error: &Error) -> Option<String> {
        let (account, _) = error.cause.split_once(" may not ")?;
        let rights = if error.cause.contains(" may not write") { "rwx" } else { "rX" };
        let (side, path) = (&error.side, &error.subject);
        let allow = format!("`setfacl -m u:{account}:{rights} {path}`");
        Some(match side.as_str() {
            "client" => format!("you are {account} here: have its owner or root type {allow}"),
            _ if self.is_administrator(side) => {
                format!(
                    "as root, on the directory of that storage: {allow}; or map the user to another account (`renkei map list`)"
                )
            }
            _ => format!(
                "at {side} you work as {account}: ask the owner of {path} or the administrator of {side} to allow that account, for \
                 instance by {allow}"
            ),
        })
    }

    /// Nobody answers.
    fn unreached(&self, error: &Error) -> Option<String> {
        let name = error.subject.split(' ').next().unwrap_or_default();
        let site = Some(name).filter(|name| self.known.iter().any(|known| known == name))?;
        let test = format!("`renkei doctor {site}` tests each step of the way");
        let own_site = self.principal.as_ref().is_some_and(|own| own.site().as_str() == site);
        Some(match &self.serve {
            Some(serve) if self.is_administrator(site) => format!("start your PoP: {serve}; {test}"),
            _ if own_site => format!("ask the administrator of {site}, your site, to start its PoP; {test}"),
            _ => format!(
                "{site} is another site: its administrator must see to its PoP; {test}; a copy that waits until {site} is back: \
                 `renkei cp --detach`"
            ),
        })
    }

    fn not_mapped(&self, error: &Error) -> Option<String> {
        let (side, principal) = (&error.side, self.principal.as_ref()?);
        if self.is_administrator(side) {
            return Some(format!("`renkei map add {} ACCOUNT`", error.subject));
        }
        Some(format!("ask the administrator of {side} for `renkei map add {principal} ACCOUNT`"))
    }

    /// A volume of which more is granted to others.
    fn not_granted(&self, error: &Error) -> Option<String> {
        let right = ["write", "read"].into_iter().find(|right| {
            error.cause.contains(&format!("lets you {right} it"))
                || error.cause.contains("lets this site read it alone")
        })?;
        let volume = error.subject.trim_start_matches(|c| c != '/').trim_start_matches('/');
        let volume = volume.split('/').next().filter(|volume| is_label(volume))?;
        let principal = self.principal.as_ref()?;
        if error.cause.contains("lets this site read it alone") {
            let (home, _) = error.cause.split_once(' ')?;
            let site = &error.side;
            return Some(format!(
                "ask the administrator of {home} for `renkei volume grant {volume} {site} write`"
            ));
        }
        let side = &error.side;
        let who = match self.is_administrator(side) {
            true => "you may give it".to_owned(),
            false => format!(
                "you may not {right} it; ask the administrator of {side}, or who manages the volume, for that"
            ),
        };
        Some(format!("{who}: `renkei volume grant {volume} {principal} {right}`"))
    }

    fn unknown_site(&self, name: &str) -> Option<String> {
        let meant = nearest(name, self.known.iter().map(String::as_str))?;
        Some(format!("did you mean {meant}? {}", Code::SiteUnknown.row().remedy))
    }

    fn not_running(&self) -> String {
        match (&self.serve, &self.principal) {
            (Some(serve), _) => format!("start it: {serve}"),
            (None, Some(own)) => {
                let site = own.site();
                format!("there is no PoP on this machine; name the site, as in `renkei status {site}` or `renkei transfers`")
            }
            (None, None) => "there is no PoP on this machine: log in through ssh at the machine of your site's PoP, `renkei \
                             login --ssh USER@HOST`; `renkei init --site NAME` makes a PoP here"
                .into(),
        }
    }

    /// As it was done the last time.
    fn log_in(&self) -> Option<String> {
        let options = self.login.as_ref()?.trim();
        let space = if options.is_empty() { "" } else { " " };
        Some(format!("`renkei login{space}{options}`, as you did the last time"))
    }
}

fn busy(point: &str) -> String {
    format!(
        "leave the directory and end what uses it (`fuser -vm {point}` lists that), or `renkei umount --lazy {point}`"
    )
}

/// A verb or the name of a site that is another one by a letter or its case.
fn misspelt(error: &Error) -> Option<String> {
    if let Some((_, names)) = error.cause.split_once("similar subcommand") {
        let name = names.split('\'').nth(1)?;
        return Some(format!("did you mean `renkei {name}`? `renkei help` lists the commands"));
    }
    if error.cause.starts_with("unrecognized subcommand") {
        return Some("`renkei help` lists the commands".into());
    }
    let (name, rest) = error.subject.split_once(':').unwrap_or((&error.subject, ""));
    let (small, colon) = (name.to_ascii_lowercase(), if error.subject.contains(':') { ":" } else { "" });
    let is_site = error.op == "parse site name" || rest.starts_with('/');
    let is_meant = error.side != "client" || error.code != Code::PathNotFound || !colon.is_empty();
    let meant = is_site && is_meant && small != name && is_label(&small);
    meant.then(|| format!("did you mean {small}{colon}{rest}? The names of sites are small letters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        Reader {
            principal: Some(Principal::parse("alice@titech").unwrap()),
            known: vec!["titech".into(), "kek".into()],
            ..Reader::default()
        }
    }

    fn administrator() -> Reader {
        let serve = Some("`systemctl start renkei`".into());
        Reader { administers: Some(SiteName::parse("kek").unwrap()), serve, ..reader() }
    }

    fn error(code: Code, subject: &str, cause: &str) -> Error {
        Error::new(code, "create", subject, cause).at("kek")
    }

    #[test]
    fn who_was_refused_is_told_what_to_ask_for_and_the_administrator_what_to_type() {
        let denied =
            error(Code::PermissionDenied, "/data/run", "al may not write in it: root:root drwxr-xr-x");
        let told = reader().remedy(&denied).unwrap();
        assert!(told.starts_with("at kek you work as al: ask "), "{told}");
        assert!(told.ends_with("`setfacl -m u:al:rwx /data/run`"), "{told}");
        assert!(administrator().remedy(&denied).unwrap().starts_with("as root, "));
        let here = Error { side: "client".into(), cause: "al may not read it".into(), ..denied };
        assert!(reader().remedy(&here).unwrap().ends_with("`setfacl -m u:al:rX /data/run`"));
    }

    #[test]
    fn a_site_that_is_down_is_somebodys() {
        let down = |site: &str| error(Code::PortClosed, &format!("{site} at 192.0.2.1:7512"), "");
        assert!(reader().remedy(&down("kek")).unwrap().starts_with("kek is another site: "));
        assert!(reader().remedy(&down("titech")).unwrap().contains("titech, your site"));
        assert!(administrator().remedy(&down("kek")).unwrap().starts_with("start your PoP: `systemctl"));
        assert_eq!(reader().remedy(&down("192.0.2.1:7512")), None);
    }

    #[test]
    fn a_grant_that_is_missing_is_written_out() {
        let cause = "no grant lets you write it";
        let told = reader().remedy(&error(Code::NotAllowed, "/genome/2026", cause)).unwrap();
        assert!(told.ends_with("`renkei volume grant genome alice@titech write`"), "{told}");
        let told =
            reader().remedy(&error(Code::ReadOnlyStorage, "/genome", "nig lets this site read it alone; x"));
        assert_eq!(told.unwrap(), "ask the administrator of nig for `renkei volume grant genome kek write`");
        assert_eq!(reader().remedy(&error(Code::NotAllowed, "/genome", "something else")), None);
    }

    #[test]
    fn names_that_are_nearly_right_are_told() {
        let meant = |code, op: &str, subject: &str, cause: &str| {
            reader().remedy(&Error { op: op.into(), ..error(code, subject, cause) })
        };
        let kek = meant(Code::UsageInvalid, "parse site name", "KEK", "").unwrap();
        assert!(kek.starts_with("did you mean kek?"), "{kek}");
        let place = meant(Code::BadPath, "parse path", "Kek:/data/x", "").unwrap();
        assert!(place.starts_with("did you mean kek:/data/x?"), "{place}");
        assert_eq!(meant(Code::PathNotFound, "open", "kek:/data/X", ""), None);
        assert_eq!(meant(Code::PathNotFound, "open", "/data/X", ""), None);
        assert!(meant(Code::SiteUnknown, "look up site", "kekk", "").unwrap().contains("did you mean kek?"));
        let verb = "unrecognized subcommand 'lss'; a similar subcommand exists: 'ls'; usage: renkei";
        assert!(meant(Code::UsageInvalid, "parse arguments", "", verb).unwrap().contains("`renkei ls`"));
    }

    #[test]
    fn a_login_is_repeated_as_it_was_made() {
        let expired =
            Error { op: "read credential".into(), ..error(Code::CertificateExpired, "alice@titech", "") };
        let by_ssh = Reader { login: Some("--ssh alice@pop.titech".into()), ..reader() };
        assert!(by_ssh.remedy(&expired).unwrap().starts_with("`renkei login --ssh alice@pop.titech`"));
        assert_eq!(reader().remedy(&expired), None);
        let of_a_pop = Error { subject: "titech".into(), ..expired };
        assert_eq!(by_ssh.remedy(&of_a_pop), None);
        let laptop = Reader::default().remedy(&error(Code::PopNotRunning, "/run/renkei/renkei.sock", ""));
        assert!(laptop.unwrap().contains("`renkei login --ssh USER@HOST`"));
    }
}
