//! The remedy of an error, by the case: the reader's role, the site, the account that was refused, the command to
//! type.
//!
//! Each code has a generic remedy that fits all readers; here are more specific ones where more is known. The facts
//! about the reader come from the directory of the PoP or user that the command worked in, loaded when the first
//! error is printed.

use renkei_catalogue::first_digits;
use renkei_config::home::{Home, read_text};
use renkei_config::{Config, nearest};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::{SiteName, is_label, quoted};
use renkei_core::remedy::{explained, fill, names};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use std::path::Path;
use std::sync::OnceLock;

/// Commands whose --all is for the administrator of this machine's PoP.
const FOR_EVERYBODY: [&str; 8] =
    ["transfers", "why", "cancel", "pause", "resume", "retry", "buffer", "unfinished"];
/// Longest record of the last login's options.
const MAX_LOGIN_BYTES: u64 = 4096;

/// The user who reads an error.
#[derive(Debug, Default)]
struct Reader {
    /// The principal of the certificate, if there is one.
    principal: Option<Principal>,
    /// The site whose PoP is in this directory: the reader is its administrator.
    administers: Option<SiteName>,
    /// The storages of that PoP and their roots.
    roots: Vec<(String, String)>,
    /// The sites that are known here.
    known: Vec<String>,
    /// The options of the reader's last login.
    login: Option<String>,
    /// The command that starts the PoP of this directory, if there is one; else whether the machine has one as a
    /// service.
    serve: Option<String>,
}

/// The operation of an error of `renkei mount-credential revoke`.
pub(super) const REVOKE: &str = "revoke mount credential";

static HOME: OnceLock<Home> = OnceLock::new();
static READER: OnceLock<Reader> = OnceLock::new();
/// `--dir` and `--identity` as given, to be repeated in commands.
static DIR: OnceLock<String> = OnceLock::new();
/// The verbs are above this file, which they all use.
static VERB: OnceLock<fn() -> String> = OnceLock::new();

/// Sets the function that finds the verb of this process's command line.
pub(super) fn find_verb_by(find: fn() -> String) {
    let _ = VERB.set(find);
}

/// The verb of this process's command line, as `storage add`.
fn verb() -> String {
    VERB.get().map(|find| find()).unwrap_or_default()
}

/// Sets the directory of the user who reads errors, and the options that select it.
pub(super) fn read_by(home: Home, option: String) {
    // A second command in one process occurs in tests only.
    let _ = HOME.set(home);
    if !option.is_empty() {
        let _ = DIR.set(option);
    }
}

/// Inserts an option behind the program's name in the commands that the reader is to type. Commands for other people,
/// and those that name their directory, stay as they are.
pub(super) fn with_option(text: &str, option: &str) -> String {
    let others = ["administrator", "ask ", "` there", "check there", "at that site"];
    let mine = |clause: &&str| !others.iter().any(|word| clause.contains(word));
    let clauses = text.split_inclusive("; ");
    clauses
        .map(|clause| Some(clause).filter(mine).map_or(clause.into(), |own| in_spans(own, option)))
        .collect()
}

/// The same for a part of a text whose commands are all for its reader.
fn in_spans(text: &str, option: &str) -> String {
    let spans = text.split('`').enumerate().map(|(number, span)| {
        let is_whole = ["--ssh", "--dir", "--pop"].iter().any(|option| span.contains(option));
        match span.strip_prefix("renkei ").filter(|_| number % 2 == 1 && !is_whole) {
            Some(words) => format!("renkei {option} {words}"),
            None => span.into(),
        }
    });
    spans.collect::<Vec<_>>().join("`")
}

/// A text with commands of the reader, with the given `--dir` inserted.
pub(super) fn here(text: &str) -> String {
    DIR.get().map_or_else(|| text.to_owned(), |option| with_option(text, option))
}

/// The command that starts the PoP of a directory.
pub(super) fn start(home: &Home) -> String {
    match *home == Home::system() {
        true => "`systemctl start renkei`".into(),
        false => format!("`renkei --dir {} serve`", quoted(&home.config_dir().to_string_lossy())),
    }
}

/// The remedy of an error.
pub(super) fn remedy(error: &Error) -> String {
    remedy_of(error, None)
}

/// The remedy for the error of a queued transfer with this id.
pub(super) fn remedy_of(error: &Error, id: Option<&str>) -> String {
    let reader = READER.get_or_init(|| HOME.get().map(Reader::look).unwrap_or_default());
    here(&reader.told(error, id))
}

impl Reader {
    fn look(home: &Home) -> Self {
        let config = Config::load(home).unwrap_or_default();
        let root = |(name, storage): (&String, &renkei_config::Storage)| {
            (name.clone(), storage.path.display().to_string())
        };
        let roots = config.storage.iter().map(root).collect();
        let administers = config.site;
        let known = Trust::load(home).map(|trust| trust.list().map(|card| card.site.to_string()).collect());
        let own = start(home);
        let service = Home::system().config_file().exists().then(|| start(&Home::system()));
        Reader {
            principal: Credential::user_named(home).ok(),
            serve: administers.as_ref().map(|_| own).or(service),
            administers,
            roots,
            known: known.unwrap_or_default(),
            login: read_text(&home.login_file(), MAX_LOGIN_BYTES).ok().flatten(),
        }
    }

    /// The remedy with known words filled in, and an explanation of the remaining placeholders.
    fn told(&self, error: &Error, id: Option<&str>) -> String {
        let remedy = self.remedy(error).unwrap_or_else(|| error.code.row().remedy.into());
        let id = id.map(|id| ("ID", id.to_owned()));
        let known: Vec<_> = id.into_iter().chain(self.words(error)).collect();
        explained(&fill(&remedy, &known))
    }

    fn remedy(&self, error: &Error) -> Option<String> {
        use Code::*;
        match error.code {
            PermissionDenied => self.denied(error),
            PeerDown if error.op == "ask" => Some(
                "look at what the PoP does (`journalctl -u renkei`, `ps -o pid,stat,wchan,cmd -C renkei`) and start it again"
                    .into(),
            ),
            PeerDown | PortClosed | SiteUnreachable | NameUnresolved | NoLine => self.unreached(error),
            NotMapped => self.not_mapped(error),
            UnknownAuthority => self.other_authority(error),
            Cancelled if self.knows(&error.subject) => {
                let site = &error.subject;
                Some(format!(
                    "run the same command again to resume; `renkei unfinished {site}` shows the data kept for that, and --drop removes it"
                ))
            }
            CrossDevice if error.op == "link" => Some(
                "a hard link is made at one site, in the directory of the file or above; elsewhere make a copy (`renkei cp`) or a symbolic \
                 link (`renkei ln -s`)"
                    .into(),
            ),
            NotAllowed | ReadOnlyStorage => self.not_granted(error),
            SiteUnknown => self.unknown_site(&error.subject),
            CardConflict if self.is_administrator(&error.subject) => Some(self.taken_name(error)),
            CardConflict if is_label(&error.subject) => {
                let site = &error.subject;
                Some(format!(
                    "compare both fingerprints with the administrator of {site}; if the new one is right: `renkei trust remove {site}`, then \
                     the same command again"
                ))
            }
            PathNotFound if error.op == "remove rule" => {
                let list = if error.subject.contains('@') { "map list" } else { "rule list" };
                Some(format!("`renkei {list}` lists the rules"))
            }
            PathNotFound if error.op == REVOKE => {
                Some("`renkei mount-credential list` lists them".into())
            }
            PathNotFound if error.op == "open directory" && verb() == "mkdir" => {
                Some("add -p to make the directories above it, too".into())
            }
            PathNotFound => misspelt(error).or_else(|| Some(absent(error))),
            NoSpace | QuotaExceeded if error.op == "write" || self.knows(&error.side) => {
                let place = quoted(&error.side);
                let shows =
                    if error.side == "client" { "`df`".into() } else { format!("`renkei df {place}`") };
                // A write has no journal and starts again.
                let resumes = if error.op == "write" { "" } else { ": a copy resumes" };
                Some(format!("free space ({shows} shows it), then run the same command again{resumes}"))
            }
            StorageMissing | StorageChanged | StorageCopied | StorageNotMounted
                if self.knows(&error.side) && !self.is_administrator(&error.side) =>
            {
                let side = &error.side;
                Some(format!(
                    "tell the administrator of {side}, whose `renkei status` says what to do; a copy resumes automatically then"
                ))
            }
            IsADirectory => directory(error),
            // Other commands name sites, too.
            UsageInvalid if ["copy", "move", "parse path"].contains(&error.op.as_str()) => {
                misspelt(error).or_else(|| self.nearly_a_place(error)).or_else(|| usage(error))
            }
            UsageInvalid => misspelt(error).or_else(|| usage(error)),
            AuthorityReplaced => {
                let site = error.subject.rsplit('@').next().filter(|site| is_label(site))?;
                Some(error.code.row().remedy.replace("SITE", site))
            }
            BadPath if error.op == "parse path" => misspelt(error).or_else(|| self.nearly_a_place(error)),
            BadPath => misspelt(error),
            MountBusy => Some(busy(error)),
            NotEmpty if error.op == "mount" => Some(
                "choose an empty directory, or add --non-empty to hide the files until it is unmounted"
                    .into(),
            ),
            NotEmpty if error.op == "remove" && self.knows(&error.side) => directory(error),
            NotEmpty => not_empty(error),
            ReplicaWrong => repaired(error),
            PopNotRunning => Some(self.not_running(error, &verb())),
            StorageUnknown => self.unknown_storage(error),
            // The certificate of a PoP, which no login renews.
            CertificateExpired if !error.subject.contains('@') => None,
            CertificateExpired | NotLoggedIn if error.op == "read credential" => self.log_in(),
            _ => None,
        }
    }

    /// The values for the placeholders in remedies, from the error and its reader.
    fn words(&self, error: &Error) -> Vec<(&'static str, String)> {
        let subject = &*error.subject;
        let first = subject.split([' ', ':']).next().unwrap_or_default();
        let site = [first, &error.side].into_iter().find(|name| self.knows(name));
        let own = self.principal.as_ref().map(|own| ("PRINCIPAL", own.to_string()));
        let target = (error.code == Code::SshFailed).then_some(subject).or_else(|| self.ssh_target());
        let words = [
            ("SITE", site.map(str::to_owned)),
            ("STORAGE", self.storage_of(error)),
            ("ID", first_digits(first)),
            ("USER@HOST", target.map(str::to_owned)),
            ("COMMAND", Some(verb()).filter(|verb| !verb.is_empty())),
        ];
        // Site names are recognised by the reader's known sites instead.
        let told = names(error).into_iter().filter(|(word, _)| *word != "SITE");
        // Of two values for a placeholder the first counts: the reader's own where the error names none.
        words.into_iter().filter_map(|(word, name)| Some((word, name?))).chain(told).chain(own).collect()
    }

    /// The target of the reader's last login by ssh.
    fn ssh_target(&self) -> Option<&str> {
        let mut options = self.login.as_deref()?.split(' ');
        options.find(|option| *option == "--ssh").and_then(|_| options.next())
    }

    /// The storage that an error names, or one of the reader's PoP by its root.
    fn storage_of(&self, error: &Error) -> Option<String> {
        let named = Some(&error.subject).filter(|_| error.code == Code::AgentRefused).cloned();
        let by_path =
            self.roots.iter().find(|(_, root)| *root == error.subject).map(|(name, _)| name.clone());
        named.or(by_path)
    }

    fn knows(&self, site: &str) -> bool {
        self.known.iter().any(|known| known == site)
    }

    fn is_administrator(&self, site: &str) -> bool {
        self.administers.as_ref().is_some_and(|own| own.as_str() == site)
    }

    /// The remedy if another site with the reader's site name is known there already.
    fn taken_name(&self, error: &Error) -> String {
        let (own, side) = (&error.subject, &error.side);
        let other = if is_label(side) && side != "client" && side != own { side } else { "the other site" };
        let made = "choose another name: `renkei --dir DIR init --site NAME` makes the site anew in an empty directory";
        let asked = format!("ask the administrator of {other}, if {own} is known there by mistake");
        format!("{made}; or {asked}: `renkei trust remove {own}` there makes room for it")
    }

    /// The remedy if the file system refused an account.
    fn denied(&self, error: &Error) -> Option<String> {
        let (side, path) = (&error.side, &error.subject);
        let Some((account, _)) = error.cause.split_once(" may not ") else {
            let own =
                format!("you have no access to it on this machine: look with `ls -ld {}`", quoted(path));
            return (side == "client").then_some(own);
        };
        if error.cause.contains(" may not change it") {
            return Some(format!(
                "only its owner may: {account} works for you at {side}, and the cause names the owner"
            ));
        }
        let rights = if error.cause.contains(" may not read") { "rX" } else { "rwx" };
        if let Some(mode) = mode_of_own(error, account) {
            return Some(self.denied_to_owner(error, account, rights, mode));
        }
        let allow = |path: &str| format!("`setfacl -m u:{account}:{rights} {}`", quoted(path));
        Some(match side.as_str() {
            "client" => format!("you are {account} here: have its owner or root type {}", allow(path)),
            _ if self.is_administrator(side) => {
                let at = self.on_disk(path).unwrap_or_else(|| path.clone());
                let allow = allow(&at);
                format!("as root: {allow}; or map the user to another account: `renkei map list`")
            }
            _ => format!(
                "at {side} you work as {account}: ask the owner, whom the cause names, or the administrator of {side} for \
                 `setfacl -m u:{account}:{rights}` on that directory"
            ),
        })
    }

    /// The remedy if the file system refused the owner, to whom access lists do not apply.
    fn denied_to_owner(&self, error: &Error, account: &str, rights: &str, mode: &str) -> String {
        let (side, path) = (&error.side, &error.subject);
        let is_here = side == "client" || self.is_administrator(side);
        let at = quoted(&self.on_disk(path).filter(|_| side != "client").unwrap_or_else(|| path.clone()));
        let is_allowed = rights.to_lowercase().chars().all(|right| mode[..3].contains(right) || right == 'x');
        match (is_allowed, is_here) {
            (true, true) => format!(
                "the mode allows it to {account}, its owner: look at what is above and beside that with `namei -l {at}`, `getfacl {at}` \
                 and `lsattr -d {at}`"
            ),
            (true, false) => format!(
                "the mode allows it to {account}, its owner: ask the administrator of {side} to look with `namei -l` and `lsattr -d`"
            ),
            (false, true) => format!("{account} owns it: `chmod u+{rights} {at}`"),
            (false, false) => {
                let place = quoted(&format!("{side}:{path}"));
                format!("you own it: at {side} you work as {account}; `renkei chmod u+{rights} {place}`")
            }
        }
    }

    /// The path in the machine's file system of a path of the reader's own PoP.
    fn on_disk(&self, path: &str) -> Option<String> {
        let (storage, below) = path.strip_prefix('/')?.split_once('/').unwrap_or((&path[1..], ""));
        let root = self.roots.iter().find(|(name, _)| name == storage)?.1.trim_end_matches('/');
        Some(if below.is_empty() { root.into() } else { format!("{root}/{below}") })
    }

    /// The remedy for an unreachable site.
    fn unreached(&self, error: &Error) -> Option<String> {
        let name = error.subject.split(' ').next().unwrap_or_default();
        let site = Some(name).filter(|name| self.known.iter().any(|known| known == name))?;
        let test = format!("`renkei doctor {site}` tests each step of the connection");
        let own_site = self.principal.as_ref().is_some_and(|own| own.site().as_str() == site);
        // A PoP learns changed addresses from its partners.
        let moved = match self.administers {
            None => "; if its address changed, `renkei login` learns the new one",
            Some(_) => "",
        };
        Some(match &self.serve {
            Some(serve) if self.is_administrator(site) => format!("start your PoP: {serve}; {test}"),
            _ if own_site => {
                format!("ask the administrator of {site}, your site, to start its PoP; {test}{moved}")
            }
            _ => format!(
                "{site} is another site: its administrator must start or repair its PoP; {test}{moved}; a copy that waits until {site} is \
                 back: `renkei cp --detach`"
            ),
        })
    }

    /// The remedy for a known site whose certificate another authority signed.
    fn other_authority(&self, error: &Error) -> Option<String> {
        let site = error.subject.rsplit('@').next().filter(|_| error.cause.contains(" known here ("))?;
        let again = format!("`renkei trust remove {site}`, and `renkei join` with an invitation of {site}");
        let ours = error.side == "client";
        Some(match (&self.administers, ours) {
            (Some(_), true) => format!(
                "compare the fingerprint in the cause with the administrator of {site}, who sees the new one with `renkei site show`; if \
                 {site} was made anew: {again}"
            ),
            (None, true) => format!(
                "`renkei login` learns the authorities that your site trusts; if it remains, ask the administrator of your site to compare \
                 fingerprints with {site}"
            ),
            (_, false) if error.side == site => {
                "`renkei login`: the site has another authority since you logged in".into()
            }
            (_, false) => {
                let side = &error.side;
                format!(
                    "`renkei login`: {site} may have another authority since you logged in; if it remains, {side} knows another authority \
                     of {site}: its administrator should compare fingerprints with the one of {site} and then renew the trust there: {again}"
                )
            }
        })
    }

    fn not_mapped(&self, error: &Error) -> Option<String> {
        let (side, principal) = (&error.side, self.principal.as_ref()?);
        if self.is_administrator(side) {
            return Some(format!("`renkei map add {} ACCOUNT`", error.subject));
        }
        Some(format!("ask the administrator of {side} for `renkei map add {principal} ACCOUNT`"))
    }

    /// The remedy for a missing grant on a volume.
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

    /// The remedy for a local path that was most likely meant as a place at a site: `alice@kek:/data/x`, `kek:data`,
    /// `kek`.
    fn nearly_a_place(&self, error: &Error) -> Option<String> {
        if error.subject.starts_with(['/', '.', '-']) {
            return None;
        }
        let (site, path) = error.subject.split_once([':', '/']).unwrap_or((&error.subject, ""));
        let name = site.rsplit('@').next().unwrap_or(site);
        let known = self.known.iter().any(|known| known == name);
        let path =
            Some(path.trim_start_matches('/')).filter(|path| !path.is_empty()).unwrap_or("STORAGE/PATH");
        if known && error.subject == format!("{name}:/{path}") {
            return of_small_letters(name, path);
        }
        known.then(|| {
            format!(
                "did you mean {}? A place at a site is written SITE:/STORAGE/PATH",
                quoted(&format!("{name}:/{path}"))
            )
        })
    }

    /// The remedy for an unknown storage, of the reader's own PoP or of another site.
    fn unknown_storage(&self, error: &Error) -> Option<String> {
        let is_own =
            self.administers.is_some() && (error.side == "client" || self.is_administrator(&error.side));
        if !is_own {
            return self
                .knows(&error.side)
                .then(|| format!("`renkei ls {}:/` lists the storages you may use", error.side));
        }
        let names = self.roots.iter().map(|(name, _)| name.as_str());
        let meant =
            nearest(&error.subject, names).map(|name| format!("did you mean {name}? ")).unwrap_or_default();
        Some(format!(
            "{meant}`renkei storage list` lists the storages of this PoP; `renkei storage add {} DIR` adds it",
            quoted(&error.subject)
        ))
    }

    fn unknown_site(&self, name: &str) -> Option<String> {
        let meant = nearest(name, self.known.iter().map(String::as_str))?;
        Some(format!("did you mean {meant}? {}", Code::SiteUnknown.row().remedy))
    }

    /// Only its administrator can start a PoP; other readers get the contact, and alternatives without it.
    fn not_running(&self, error: &Error, verb: &str) -> String {
        let side = error.side.as_str();
        if !["client", ""].contains(&side) {
            return format!(
                "ask the administrator of the PoP at {side} to start it; --pop names another one there"
            );
        }
        match (&self.serve, &self.principal) {
            (Some(serve), _) if self.administers.is_some() => format!("start it: {serve}"),
            (Some(serve), _) => format!("start it as root: {serve}; or ask the administrator of this machine"),
            (None, _) if is_named_pop(&error.subject) => {
                "start that PoP, or ask its administrator to; --pop names another one".into()
            }
            (None, Some(own)) => no_pop_here(own.site(), verb),
            (None, None) => "there is no PoP on this machine: log in through ssh at the machine of your site's PoP, `renkei \
                             login --ssh USER@HOST`; `renkei init --site NAME` makes a PoP here"
                .into(),
        }
    }

    /// The login command with the options of the last time.
    fn log_in(&self) -> Option<String> {
        let options = self.login.as_ref()?.trim();
        let space = if options.is_empty() { "" } else { " " };
        Some(format!("`renkei login{space}{options}`, as you did the last time"))
    }
}

/// Whether a socket is that of an explicitly named PoP, not the one of the machine's service.
fn is_named_pop(socket: &str) -> bool {
    socket.starts_with('/') && Path::new(socket) != Home::system_socket()
}

/// The remedy for a user of a site whose machine has no PoP.
fn no_pop_here(site: &SiteName, verb: &str) -> String {
    let here = "there is no PoP on this machine";
    match verb {
        "login" => format!("{here}: log in at that of {site} through ssh, `renkei login --ssh USER@HOST`"),
        "status" => format!("{here}; `renkei status {site}` shows what that of your site is doing"),
        verb if FOR_EVERYBODY.contains(&verb) => format!(
            "{here}; `renkei {verb}` without --all asks {site} about your own; with it, it is for the administrator of {site}, on the machine \
             of its PoP"
        ),
        _ => format!(
            "{here}; this is for the administrator of {site}, on the machine of its PoP; `renkei status {site}` shows what that is doing"
        ),
    }
}

fn busy(error: &Error) -> String {
    let point = quoted(&error.subject);
    if error.op == "mount" {
        return format!("use it, or `renkei umount {point}` first");
    }
    format!(
        "leave the directory and end the programs that use it (`fuser -vm {point}` lists them), or `renkei umount --lazy {point}`"
    )
}

/// The mode bits of the refusing file, if the account owns it; a cause ends as `al may not read it: al:staff
/// drwx------`.
fn mode_of_own<'e>(error: &'e Error, account: &str) -> Option<&'e str> {
    let found = error.cause.split(';').next()?;
    let (_, whose) = found.rsplit_once(": ")?;
    let (owner, rest) = whose.split_once(':')?;
    let mode = rest.rsplit(' ').next()?.get(1..).filter(|mode| mode.len() == 9)?;
    let is_of_it = ["may not read it", "may not write in it"].iter().any(|words| error.cause.contains(words));
    (owner == account && is_of_it).then_some(mode)
}

/// The same place with the name of its storage in lower case.
fn of_small_letters(site: &str, path: &str) -> Option<String> {
    let (storage, rest) =
        path.split_once('/').map_or((path, String::new()), |(name, rest)| (name, format!("/{rest}")));
    let small = storage.to_ascii_lowercase();
    let place = quoted(&format!("{site}:/{small}{rest}"));
    (small != storage && is_label(&small))
        .then(|| format!("did you mean {place}? The names of storages are small letters"))
}

/// The remedy for a path that does not exist.
fn absent(error: &Error) -> String {
    let (side, path) = (&error.side, &error.subject);
    if side == "client" || !path.starts_with('/') {
        return "check the path; it is one of this machine, and a place at a site is written SITE:/STORAGE/PATH".into();
    }
    let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
    let place = quoted(&format!("{side}:{}", if parent.is_empty() { "/" } else { parent }));
    format!("check the path: `renkei ls {place}` lists what is there")
}

/// The remedy for a directory where a file is needed.
fn directory(error: &Error) -> Option<String> {
    let place = quoted(&format!("{}:{}", error.side, error.subject));
    match error.op.as_str() {
        "open" | "read" if error.side != "client" => {
            Some(format!("name a file: `renkei ls {place}` lists those in it"))
        }
        "open" | "read" => Some("name a file".into()),
        "remove" => Some(format!("`renkei rm -r {place}` removes it with all that is in it")),
        _ => None,
    }
}

/// The command in the parser's usage line: `renkei storage list`.
fn command_of(cause: &str) -> Option<&str> {
    let (_, usage) = cause.split_once("usage: ")?;
    let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let words = usage.split_inclusive(' ').take_while(is_word);
    Some(usage[..words.map(str::len).sum()].trim_end())
}

/// The remedy for an error in the arguments.
fn usage(error: &Error) -> Option<String> {
    let command = command_of(&error.cause)?;
    let words = command.strip_prefix("renkei").unwrap_or(command);
    let help = format!("`renkei help{words}` explains the command");
    let (_, names) = error.cause.split_once("similar argument").unwrap_or_default();
    Some(match names.split('\'').nth(1) {
        Some(name) => format!("did you mean {name}? {help}"),
        None => help,
    })
}

/// A file repaired by `--repair` needs no second repair.
fn repaired(error: &Error) -> Option<String> {
    let is_repaired = error.cause.ends_with("it was fetched again from another site");
    is_repaired.then(|| {
        format!(
            "it is repaired; if it happens again, look at the disk at {} (`dmesg`, `smartctl -a`)",
            error.side
        )
    })
}

/// A volume is created in place from existing files, which need not be removed.
fn not_empty(error: &Error) -> Option<String> {
    let dir = quoted(&error.subject);
    (error.op == "create volume").then(|| {
        format!("give the same command with `--in-place {dir}` instead of `--path`, or choose an empty directory with `--path DIR`")
    })
}

/// The remedy for a misspelt verb or site name, one letter or its case off.
fn misspelt(error: &Error) -> Option<String> {
    let command = command_of(&error.cause).unwrap_or("renkei");
    let words = command.strip_prefix("renkei").unwrap_or_default();
    if let Some((_, names)) = error.cause.split_once("similar subcommand") {
        let name = names.split('\'').nth(1)?;
        return Some(format!("did you mean `{command} {name}`? `renkei help{words}` lists the commands"));
    }
    if error.cause.starts_with("unrecognized subcommand") {
        return Some(format!("`renkei help{words}` lists the commands"));
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
        let roots = vec![("data".into(), "/lustre/my data".into())];
        Reader { administers: Some(SiteName::parse("kek").unwrap()), roots, serve, ..reader() }
    }

    fn error(code: Code, subject: &str, cause: &str) -> Error {
        Error::new(code, "create", subject, cause).at("kek")
    }

    #[test]
    fn a_refused_user_learns_what_to_request_and_the_administrator_the_command() {
        let denied =
            error(Code::PermissionDenied, "/data/run", "al may not write in it: root:root drwxr-xr-x");
        let told = reader().remedy(&denied).unwrap();
        assert!(told.starts_with("at kek you work as al: ask "), "{told}");
        assert!(told.ends_with("`setfacl -m u:al:rwx` on that directory"), "{told}");
        // The administrator gets the path on the disk.
        let told = administrator().remedy(&denied).unwrap();
        assert!(told.starts_with("as root: `setfacl -m u:al:rwx '/lustre/my data/run'`"), "{told}");
        let here = Error { side: "client".into(), cause: "al may not read it".into(), ..denied };
        assert!(reader().remedy(&here).unwrap().ends_with("`setfacl -m u:al:rX /data/run`"));
    }

    #[test]
    fn the_owner_is_advised_to_use_chmod() {
        let denied = |mode: &str| error(Code::PermissionDenied, "/data/my run", mode);
        let closed = denied("al may not write in it: al:staff dr-xr-xr-x; 1 entry in it not copied");
        let told = reader().remedy(&closed).unwrap();
        assert_eq!(told, "you own it: at kek you work as al; `renkei chmod u+rwx 'kek:/data/my run'`");
        let told = administrator().remedy(&closed).unwrap();
        assert_eq!(told, "al owns it: `chmod u+rwx '/lustre/my data/my run'`");
        let here = Error {
            side: "client".into(),
            subject: "/x".into(),
            ..denied("al may not read it: al:staff ----r--r--")
        };
        assert_eq!(reader().remedy(&here).unwrap(), "al owns it: `chmod u+rX /x`");
        // Where the mode is not the reason, changing it does not help.
        let told = administrator().remedy(&denied("al may not read it: al:staff -rw-------")).unwrap();
        assert!(told.contains("`lsattr -d '/lustre/my data/my run'`") && !told.contains("chmod"), "{told}");
        let other = denied("al may not write in it: bo:staff drwx------");
        assert!(reader().remedy(&other).unwrap().contains("setfacl"));
    }

    #[test]
    fn placeholders_of_remedies_are_filled_in_or_explained() {
        let told = |reader: &Reader, code, subject: &str| reader.told(&error(code, subject, ""), None);
        let waits = told(&reader(), Code::ChangesWait, "genome");
        assert!(waits.contains("`renkei volume unsubscribe genome --abandon`"), "{waits}");
        let runs = told(&reader(), Code::UnfinishedRuns, "5f3a90c2");
        assert!(runs.starts_with("`renkei cancel 5f3a90c2`"), "{runs}");
        let shut = told(&reader(), Code::ShutOut, "bob@osaka");
        assert!(shut.contains("`renkei map remove bob@osaka`"), "{shut}");
        let ssh = told(&reader(), Code::SshFailed, "al@pop");
        assert!(ssh.contains("`ssh al@pop renkei --version`"), "{ssh}");
        let changed = told(&administrator(), Code::StorageChanged, "/lustre/my data");
        assert!(changed.contains("`renkei storage accept data`"), "{changed}");
        let by_ssh = Reader { login: Some("--hours 3 --ssh al@pop".into()), ..reader() };
        let missing = told(&by_ssh, Code::NotLoggedIn, "");
        assert!(missing.contains("`renkei login --ssh al@pop`") && !missing.contains("HOST"), "{missing}");
        let unknown = told(&Reader::default(), Code::NotLoggedIn, "");
        assert!(
            unknown.ends_with("(USER@HOST is your account and the machine of your site's PoP, as for ssh)"),
            "{unknown}"
        );
        let late = reader().told(&error(Code::DeadlinePassed, "", ""), Some("5f3a90c2"));
        assert!(late.contains("`renkei why 5f3a90c2`") && late.contains("`renkei retry 5f3a90c2`"), "{late}");
    }

    #[test]
    fn a_remedy_for_a_taken_name_removes_nothing_locally() {
        let site =
            |name: &str, side: &str| Error { side: side.into(), ..error(Code::CardConflict, name, "") };
        let told = with_option(&administrator().told(&site("kek", "titech"), None), "--dir /d");
        assert!(told.starts_with("choose another name: `renkei --dir DIR init --site NAME`"), "{told}");
        assert!(
            told.contains("ask the administrator of titech")
                && told.contains("`renkei trust remove kek` there"),
            "{told}"
        );
        assert!(
            administrator().told(&site("kek", "client"), None).contains("administrator of the other site")
        );
        // A site that is known here may be replaced.
        assert!(
            administrator()
                .told(&site("titech", "client"), None)
                .contains("`renkei trust remove titech`, then")
        );
    }

    #[test]
    fn the_remedy_for_a_missing_storage_names_its_site() {
        let unknown = error(Code::StorageUnknown, "dat", "");
        assert_eq!(reader().remedy(&unknown).unwrap(), "`renkei ls kek:/` lists the storages you may use");
        let told = administrator().remedy(&unknown).unwrap();
        assert!(told.starts_with("did you mean data? `renkei storage list`"), "{told}");
    }

    #[test]
    fn the_remedy_for_a_site_that_is_down_depends_on_the_reader() {
        let down = |site: &str| error(Code::PortClosed, &format!("{site} at 192.0.2.1:7512"), "");
        assert!(reader().remedy(&down("kek")).unwrap().starts_with("kek is another site: "));
        assert!(reader().remedy(&down("titech")).unwrap().contains("titech, your site"));
        assert!(administrator().remedy(&down("kek")).unwrap().starts_with("start your PoP: `systemctl"));
        assert_eq!(reader().remedy(&down("192.0.2.1:7512")), None);
    }

    #[test]
    fn a_changed_authority_differs_from_an_unknown_site() {
        let cause = "the authority of nig known here (12:34) did not sign it (CN=nig)";
        let told = |reader: &Reader, subject: &str, side: &str| {
            reader.told(&Error { side: side.into(), ..error(Code::UnknownAuthority, subject, cause) }, None)
        };
        let here = told(&administrator(), "nig", "client");
        assert!(here.contains("if nig was made anew: `renkei trust remove nig`"), "{here}");
        assert!(told(&reader(), "nig", "client").starts_with("`renkei login` learns"));
        let there = told(&reader(), "alice@nig", "kek");
        assert!(there.starts_with("`renkei login`: nig may have another authority"), "{there}");
        assert!(there.contains("kek knows another authority of nig: "), "{there}");
        assert!(!told(&reader(), "alice@nig", "nig").contains("trust remove"));
        let unknown = error(Code::UnknownAuthority, "nig", "the site nig is not trusted here");
        assert!(reader().told(&unknown, None).contains("`renkei join`"));
    }

    #[test]
    fn a_changed_address_has_remedies_for_users_and_pops() {
        let down = error(Code::PortClosed, "kek at 192.0.2.1:7512", "");
        assert!(reader().remedy(&down).unwrap().contains("`renkei login` learns the new one"));
        let other = Reader { administers: Some(SiteName::parse("titech").unwrap()), ..reader() };
        assert!(!other.remedy(&down).unwrap().contains("login"));
    }

    #[test]
    fn an_interrupted_copy_names_the_place_of_its_data() {
        let stopped = error(Code::Cancelled, "kek", "interrupted");
        assert!(reader().told(&stopped, None).contains("`renkei unfinished kek`"));
        assert!(reader().told(&error(Code::Cancelled, "", ""), None).contains("`renkei unfinished`"));
    }

    #[test]
    fn a_missing_grant_is_spelled_out() {
        let cause = "no grant lets you write it";
        let told = reader().remedy(&error(Code::NotAllowed, "/genome/2026", cause)).unwrap();
        assert!(told.ends_with("`renkei volume grant genome alice@titech write`"), "{told}");
        let told =
            reader().remedy(&error(Code::ReadOnlyStorage, "/genome", "nig lets this site read it alone; x"));
        assert_eq!(told.unwrap(), "ask the administrator of nig for `renkei volume grant genome kek write`");
        assert_eq!(reader().remedy(&error(Code::NotAllowed, "/genome", "something else")), None);
    }

    #[test]
    fn a_repaired_replica_needs_no_repair() {
        let wrong = |cause: &str| error(Code::ReplicaWrong, "src/a", cause);
        let told = reader()
            .remedy(&wrong("its content is another; it was fetched again from another site"))
            .unwrap();
        assert!(told.starts_with("it is repaired") && told.contains("at kek"), "{told}");
        assert_eq!(reader().remedy(&wrong("its content is another; it is given out no more")), None);
    }

    #[test]
    fn the_remedy_for_a_new_volume_does_not_remove_its_directory() {
        let full = |op: &str| Error { op: op.into(), ..error(Code::NotEmpty, "genome", "it is not empty") };
        let told = reader().remedy(&full("create volume")).unwrap();
        assert!(told.contains("`--in-place genome`") && !told.contains("rm -r"), "{told}");
        assert_eq!(reader().remedy(&full("rmdir")), None);
    }

    #[test]
    fn similar_names_are_suggested() {
        let meant = |code, op: &str, subject: &str, cause: &str| {
            reader().remedy(&Error { op: op.into(), ..error(code, subject, cause) })
        };
        let kek = meant(Code::UsageInvalid, "parse site name", "KEK", "").unwrap();
        assert!(kek.starts_with("did you mean kek?"), "{kek}");
        let place = meant(Code::BadPath, "parse path", "Kek:/data/x", "").unwrap();
        assert!(place.starts_with("did you mean kek:/data/x?"), "{place}");
        let absent = meant(Code::PathNotFound, "open", "/data/my run/X", "").unwrap();
        assert_eq!(absent, "check the path: `renkei ls 'kek:/data/my run'` lists what is there");
        assert!(meant(Code::SiteUnknown, "look up site", "kekk", "").unwrap().contains("did you mean kek?"));
        let verb = "unrecognized subcommand 'lss'; a similar subcommand exists: 'ls'; usage: renkei";
        assert!(meant(Code::UsageInvalid, "parse arguments", "", verb).unwrap().contains("`renkei ls`"));
    }

    #[test]
    fn a_misspelt_place_is_suggested_as_a_place() {
        for (written, meant) in [
            ("alice@kek:/data/x", "kek:/data/x"),
            ("kek:data/x", "kek:/data/x"),
            ("kek/data", "kek:/data"),
            ("kek", "kek:/STORAGE/PATH"),
            ("kek:/Data/X", "kek:/data/X"),
        ] {
            let told = reader().nearly_a_place(&error(Code::UsageInvalid, written, "")).unwrap();
            assert!(told.starts_with(&format!("did you mean {meant}? ")), "{told}");
        }
        for fine in ["./kek", "kek:/data/x"] {
            assert_eq!(reader().nearly_a_place(&error(Code::UsageInvalid, fine, "")), None);
        }
    }

    #[test]
    fn commands_in_remedies_are_complete() {
        let told = |cause: &str| reader().remedy(&error(Code::UsageInvalid, "", cause)).unwrap();
        let verb = "unrecognized subcommand 'lst'; a similar subcommand exists: 'list'; usage: renkei storage [OPTIONS] <COMMAND>";
        assert_eq!(
            told(verb),
            "did you mean `renkei storage list`? `renkei help storage` lists the commands"
        );
        let option = "unexpected argument '--recursiv' found; a similar argument exists: '--recursive'; usage: renkei cp \
                      --recursive <SOURCE>... <DESTINATION>";
        assert_eq!(told(option), "did you mean --recursive? `renkei help cp` explains the command");
        let down = error(Code::NoRoute, "kek", "");
        assert!(reader().told(&down, None).contains("`renkei route kek`"));
    }

    #[test]
    fn options_of_the_command_are_repeated_in_commands_of_the_same_reader() {
        let text = "`renkei login`, `renkei login --ssh A@B`; ask the administrator of kek for `renkei map add x`; then `renkei ls kek:/`; \
                    `renkei ls kek:/` lists what is there; `renkei map remove x` there removes it";
        let told = with_option(text, "--dir /d");
        let expected = "`renkei --dir /d login`, `renkei login --ssh A@B`; ask the administrator of kek for `renkei map add x`; then `renkei --dir /d ls kek:/`; \
                        `renkei --dir /d ls kek:/` lists what is there; `renkei map remove x` there removes it";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_login_is_repeated_with_its_options() {
        let expired =
            Error { op: "read credential".into(), ..error(Code::CertificateExpired, "alice@titech", "") };
        let by_ssh = Reader { login: Some("--ssh alice@pop.titech".into()), ..reader() };
        assert!(by_ssh.remedy(&expired).unwrap().starts_with("`renkei login --ssh alice@pop.titech`"));
        assert_eq!(reader().remedy(&expired), None);
        let of_a_pop = Error { subject: "titech".into(), ..expired };
        assert_eq!(by_ssh.remedy(&of_a_pop), None);
    }

    /// The error of a PoP that does not answer on this machine.
    fn not_running(socket: &str) -> Error {
        Error { side: "client".into(), op: "connect".into(), ..error(Code::PopNotRunning, socket, "") }
    }

    #[test]
    fn a_stopped_pop_is_started_by_its_administrator_only() {
        let service = not_running("/run/renkei/renkei.sock");
        let told = |reader: &Reader, verb: &str| reader.not_running(&service, verb);
        assert_eq!(told(&administrator(), "status"), "start it: `systemctl start renkei`");
        let of_the_machine = Reader { serve: Some("`systemctl start renkei`".into()), ..reader() };
        let told_user = told(&of_the_machine, "status");
        assert!(told_user.starts_with("start it as root: ") && told_user.contains("or ask"), "{told_user}");
        // Without a PoP there is nothing to start.
        for (verb, is_told) in [
            ("login", "`renkei login --ssh USER@HOST`"),
            ("status", "`renkei status titech`"),
            ("transfers", "`renkei transfers` without --all asks titech about your own"),
            ("unfinished", "the administrator of titech"),
            ("mount-credential grant", "the administrator of titech"),
        ] {
            let told = told(&reader(), verb);
            assert!(told.contains(is_told) && !told.contains("start"), "{verb}: {told}");
        }
        assert!(told(&Reader::default(), "status").contains("`renkei login --ssh USER@HOST`"));
    }

    #[test]
    fn a_pop_reached_by_name_or_ssh_is_not_local() {
        let named = reader().not_running(&not_running("/srv/pop/run/renkei.sock"), "login");
        assert!(named.starts_with("start that PoP, or ask its administrator"), "{named}");
        let there = Error { side: "al@pop".into(), ..not_running("/run/renkei/renkei.sock") };
        for reader in [reader(), Reader::default(), administrator()] {
            let told = reader.not_running(&there, "login");
            assert!(told.starts_with("ask the administrator of the PoP at al@pop to start it"), "{told}");
        }
    }
}
