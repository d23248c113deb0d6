//! Every failure renkei reports: a stable code, the side and step it happened at, the first cause and what to do.
//!
//! The table at the bottom of this file is the only place a code is defined; docs/errors.md is generated from it.
//! An [`Error`] crosses the wire unchanged, so a user sees the far side's own words.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of a failure; decides the exit status and, at each protocol door, that protocol's own error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists and must not, or has another type than the operation needs.
    Exists,
    /// The account or principal may not do this.
    Permission,
    /// A certificate, key or trust relation is not good.
    Identity,
    /// The target is full: space, quota or inodes.
    NoSpace,
    /// The request itself is invalid.
    Invalid,
    /// A limit that protects the service was met.
    Limit,
    /// The other side or the path to it does not answer.
    Unavailable,
    /// Corrupt data.
    Integrity,
    /// The source changed while it was read.
    Changed,
    /// The work was cancelled.
    Interrupted,
    /// Some files failed, the others are done.
    Partial,
    /// A defect in renkei or an I/O error of the machine.
    Internal,
}

/// Whether a retry can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Permanent: only after a correction.
    Never,
    /// Transient: retried automatically after a backoff.
    Later,
}

impl Kind {
    /// Exit status of the command line for this kind (docs/cli.md).
    pub const fn exit_status(self) -> u8 {
        match self {
            Kind::Internal => 1,
            Kind::Invalid => 2,
            Kind::NotFound => 3,
            Kind::Exists => 4,
            Kind::Permission => 5,
            Kind::Identity => 6,
            Kind::NoSpace => 7,
            Kind::Unavailable => 8,
            Kind::Integrity => 9,
            Kind::Changed => 10,
            Kind::Limit => 11,
            Kind::Partial => 23,
            Kind::Interrupted => 130,
        }
    }
}

/// A failure with everything needed to act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The code, see docs/errors.md.
    pub code: Code,
    /// The side where it happened: `client` or a site's name.
    pub side: String,
    /// The operation: `open`, `rename`, `handshake` ...
    pub op: String,
    /// The path, peer or name it was about; printable.
    pub subject: String,
    /// The root cause, in the words of the side that found it.
    pub cause: String,
}

/// Side of an error before it is known.
pub const SIDE_UNKNOWN: &str = "";

impl Error {
    /// Makes an error without a side; the layer that knows it calls [`Error::at`].
    pub fn new(code: Code, op: &str, subject: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Error {
            code,
            side: SIDE_UNKNOWN.into(),
            op: op.into(),
            subject: subject.to_string(),
            cause: cause.to_string(),
        }
    }

    /// Sets the side, unless one nearer to the cause already did.
    pub fn at(mut self, side: &str) -> Self {
        if self.side == SIDE_UNKNOWN {
            self.side = side.into();
        }
        self
    }

    /// Completes a subject that is a path relative to `root`, if the error comes from a store and has no side yet.
    pub fn under(mut self, root: &str) -> Self {
        let relative = !self.subject.starts_with('/');
        if self.side == SIDE_UNKNOWN && self.code.row().id.starts_with("RK-STORE-") && relative {
            let slash = if self.subject.is_empty() || root.ends_with('/') { "" } else { "/" };
            self.subject = format!("{root}{slash}{}", self.subject);
        }
        self
    }

    /// The cause, unless it only repeats `title`, as the kernel's messages often do.
    pub fn cause_beyond(&self, title: &str) -> &str {
        let words = self.cause.split(" (os error").next().unwrap_or_default();
        if title.to_ascii_lowercase().starts_with(&words.to_ascii_lowercase()) { "" } else { &self.cause }
    }

    /// The kind of the failure.
    pub fn kind(&self) -> Kind {
        self.code.row().kind
    }

    /// Whether a retry can succeed.
    pub fn retry(&self) -> Retry {
        self.code.row().retry
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.code.row();
        write!(f, "{}: {}", row.id, row.title)?;
        if !self.subject.is_empty() {
            write!(f, ": {}", self.subject)?;
        }
        if !self.side.is_empty() {
            write!(f, " (at {}, {})", self.side, self.op)?;
        } else {
            write!(f, " ({})", self.op)?;
        }
        match self.cause_beyond(row.title) {
            "" => Ok(()),
            cause => write!(f, ": {cause}"),
        }
    }
}

impl std::error::Error for Error {}

/// One line of docs/errors.md.
#[derive(Debug)]
pub struct Row {
    /// The stable code, `RK-<LAYER>-<n>`.
    pub id: &'static str,
    /// The sort of failure.
    pub kind: Kind,
    /// When the same request may work.
    pub retry: Retry,
    /// What happened, in a few words.
    pub title: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
}

macro_rules! codes {
    ($($name:ident = $id:literal, $kind:ident, $retry:ident, $title:literal, $remedy:literal;)*) => {
        /// The stable codes. A code's meaning never changes; a retired one is never used again.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each variant's title and remedy stand in its row")]
        pub enum Code { $($name),* }

        impl Code {
            /// All codes, in the order of docs/errors.md.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The code's line of the table.
            pub const fn row(self) -> &'static Row {
                match self {
                    $(Code::$name => &Row {
                        id: $id, kind: Kind::$kind, retry: Retry::$retry, title: $title, remedy: $remedy,
                    },)*
                }
            }
        }
    };
}

impl Code {
    /// Finds a code by its stable text.
    pub fn parse(id: &str) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.row().id == id)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().id)
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.row().id)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        Ok(Code::parse(&id).unwrap_or(Code::Unrecognised))
    }
}

codes! {
    // STORE: the file system or object store at one side.
    PathNotFound = "RK-STORE-1", NotFound, Never, "no such file or directory",
        "check the path; `renkei ls` shows what is in a directory at a site";
    PathExists = "RK-STORE-2", Exists, Never, "exists already",
        "choose another name, or remove the existing one";
    NotADirectory = "RK-STORE-3", Exists, Never, "not a directory",
        "a file exists where a directory is needed; check the path (at a site: `renkei stat`)";
    IsADirectory = "RK-STORE-4", Exists, Never, "is a directory",
        "add -r to include directories and their contents";
    PermissionDenied = "RK-STORE-5", Permission, Never, "permission denied by the file system",
        "ask the owner for access; `renkei whoami SITE` shows the account you work as";
    NoSpace = "RK-STORE-6", NoSpace, Never, "no space left on the target",
        "free space (`renkei df` shows it), then run the same command again: it resumes; a queued transfer resumes automatically";
    QuotaExceeded = "RK-STORE-7", NoSpace, Never, "disk quota exceeded",
        "free some of the account's space or ask for quota, then run the same command again: it resumes; a queued transfer \
         resumes automatically";
    ReadOnlyStorage = "RK-STORE-8", Permission, Never, "the storage is read-only",
        "write to another storage, or let the administrator add this one without --read-only";
    NameTooLong = "RK-STORE-9", Invalid, Never, "the name is too long for the target file system",
        "shorten the name at the source, or choose a target with longer names";
    IoFailed = "RK-STORE-10", Internal, Never, "the file system reported an I/O error",
        "look at the kernel log of that machine; the disk may be failing";
    OutsideStorage = "RK-STORE-11", Permission, Never, "the path leads out of the storage",
        "a symbolic link or `..` points outside the storage's root; name the target by its own storage";
    NotEmpty = "RK-STORE-12", Exists, Never, "the directory is not empty",
        "`renkei rm -r` removes a directory and its contents";
    CrossDevice = "RK-STORE-13", Invalid, Never, "the two paths are not on one file system",
        "copy instead of moving: `renkei cp`, then `renkei rm`";
    SpecialFile = "RK-STORE-14", Invalid, Never, "a device, FIFO or socket is not copied",
        "no action is needed; create it at the target if it is needed there";
    Unsupported = "RK-STORE-15", Invalid, Never, "the target file system cannot hold this",
        "see the cause; the file system lacks the feature (extended attributes, symbolic links, this name)";
    StorageUnknown = "RK-STORE-16", NotFound, Never, "the site has no storage of that name",
        "`renkei ls SITE:/` lists the storages you may use";
    StorageMissing = "RK-STORE-17", Unavailable, Later, "the storage's root directory does not exist",
        "the administrator should mount its file system, or put the directory back: the storage then resumes automatically";
    TooManyOpenFiles = "RK-STORE-18", Limit, Later, "too many open files",
        "raise the open-files limit (LimitNOFILE in the systemd unit)";
    BadPath = "RK-STORE-19", Invalid, Never, "not a usable path",
        "write a path at a site as SITE:/STORAGE/PATH, without empty, `.` or `..` parts and NUL";
    BufferFull = "RK-STORE-20", NoSpace, Later, "the PoP's buffer is full",
        "wait until other transfers have left the buffer, or cancel some of your own";
    BufferTooSmall = "RK-STORE-21", NoSpace, Never, "the transfer is larger than the PoP's buffer allows",
        "split it into several transfers, or copy it while its destination can be reached";
    BufferGone = "RK-STORE-22", NotFound, Never, "the transfer's files are no longer in the PoP's buffer",
        "submit the copy again; files that wait longer than `buffer.keep_days` are removed";
    BufferMissing = "RK-STORE-23", NotFound, Never, "the PoP has no buffer",
        "copy without --detach, or let the administrator give the PoP one: `buffer.size_mib`";
    BufferDiskFull = "RK-STORE-24", NoSpace, Later, "the file system of the PoP's buffer is full",
        "the administrator should free space there, or lower `buffer.size_mib` to what there is";
    NotOpen = "RK-STORE-25", Invalid, Never, "the file or directory is not open",
        "open it again; an open file ends with the connection, or when the file is replaced while the connection is lost";
    DraftLost = "RK-STORE-26", Unavailable, Never, "data that was written and not yet published is lost",
        "write it again: the connection was lost before the file was closed or synced; the previous version is still there";
    StorageChanged = "RK-STORE-27", Unavailable, Later, "the storage is not the directory that was recorded",
        "the administrator should mount the right file system, or move the directory back: the storage then resumes automatically; if the exchange was \
         intended: `renkei storage accept STORAGE`";
    StorageNotMounted = "RK-STORE-28", Unavailable, Later, "nothing is mounted at the storage's directory",
        "the administrator should mount its file system: the storage then resumes automatically; if it is to be a plain directory from now on: \
         `renkei storage accept STORAGE --require-mount=no`";

    DirectoryTaken = "RK-STORE-29", Exists, Never, "the directory belongs to another volume, or to another site",
        "choose another directory: files that one of the two evicts would be lost for the other too; if the site named in the \
         cause no longer uses it, remove `.rk~volume` from it";
    StorageCopied = "RK-STORE-30", Unavailable, Later, "another storage of this PoP has the same id",
        "a copy that is meant as another storage: remove `.rk~storage` from it; a storage that was moved there: set its `path` in \
         config.toml instead of adding it again";
    BufferExposed = "RK-STORE-31", Unavailable, Later, "another account could exchange the buffer's directory",
        "the administrator should set `buffer.path` to a place below directories of root or the PoP's account, or give them the one in the \
         cause: `chown root DIR`, `chmod go-w DIR`; the PoP then uses it automatically";
    VersionReplaced = "RK-STORE-32", Changed, Never, "the file is not the version that was expected",
        "read the file again, and repeat the change if it is still wanted";

    // MOVE: the mover.
    SourceChanged = "RK-MOVE-1", Changed, Never, "the source changed while it was read",
        "run the same command again when no program writes to the file";
    SourceVanished = "RK-MOVE-2", Changed, Never, "the source vanished before it could be read",
        "no action is needed if it was removed on purpose; else find the program that removed it";
    DigestMismatch = "RK-MOVE-3", Integrity, Later, "the bytes that arrived are not the bytes that were sent",
        "run the command again; if it recurs, memory or a network device corrupts data at the named side";
    PartialFailure = "RK-MOVE-4", Partial, Never, "some files failed",
        "each failure is listed with its own code; correct them, then run the same command again";
    Cancelled = "RK-MOVE-5", Interrupted, Later, "cancelled",
        "run the same command again to resume; `renkei unfinished` shows the data kept for that, and --drop removes it";
    TransferBusy = "RK-MOVE-6", Limit, Later, "the same transfer is already running",
        "wait for it, or stop the other one";
    SameFile = "RK-MOVE-7", Invalid, Never, "source and destination are the same",
        "choose another destination";
    JournalBroken = "RK-MOVE-8", Internal, Later, "the transfer's journal cannot be used",
        "run the command again; the unusable journal is set aside and the files are compared instead";
    HardLinkTarget = "RK-MOVE-9", Partial, Never, "a hard link's first name did not arrive",
        "correct the failure of the first name, then run the same command again";
    ReadBackMismatch = "RK-MOVE-10", Integrity, Later, "data read back differs from the data that was written",
        "the block is sent again; check the disk of the named side";
    NameTaken = "RK-MOVE-11", Exists, Never, "two entries of one transfer have the same name",
        "one of them was copied; copy sources with equal names one after the other, or to different destinations";
    TooManyUnfinished = "RK-MOVE-12", Limit, Later, "the user has too many unfinished transfers at the site",
        "`renkei unfinished SITE` lists them, with --drop it removes them; or run their commands again; an unfinished transfer is forgotten after seven days";
    IntoItself = "RK-MOVE-13", Invalid, Never, "source and destination overlap",
        "choose a destination outside the source; with --delete, one that the source is not in";

    UnfinishedUnknown = "RK-MOVE-14", NotFound, Never, "no unfinished copy has that id",
        "`renkei unfinished SITE` lists yours; a copy that has since been completed is no longer listed";
    UnfinishedRuns = "RK-MOVE-15", Invalid, Never, "the copy is running",
        "`renkei cancel ID` stops a queued copy and frees its space; stop any other copy with Ctrl-C first";

    // NET: reaching the other side.
    PeerDown = "RK-NET-1", Unavailable, Later, "the host does not answer",
        "`renkei doctor SITE` tests each step of the connection; if the address changed, `renkei login` learns the new one";
    PortClosed = "RK-NET-2", Unavailable, Later, "nothing listens on the port",
        "the administrator of the PoP at that address should start it, or open the port in the firewall";
    ConnectionLost = "RK-NET-3", Unavailable, Later, "the connection was lost",
        "run the same command again: it resumes";
    Stalled = "RK-NET-4", Unavailable, Later, "the other side stopped answering",
        "run the same command again: it resumes; `stall_timeout_s` sets how long a peer may be silent";
    NameUnresolved = "RK-NET-5", Unavailable, Later, "the host name cannot be resolved",
        "check the endpoint (`renkei trust list`) and DNS; if the site has a new one, `renkei login` learns it";
    AddressInUse = "RK-NET-6", Unavailable, Never, "the address to listen on is in use",
        "stop the other program, or set `listen` in config.toml";
    SiteUnreachable = "RK-NET-7", Unavailable, Later, "no endpoint of the site could be reached",
        "`renkei doctor SITE` tests each endpoint";
    PopStopping = "RK-NET-8", Unavailable, Later, "the PoP is stopping",
        "run the same command again when the PoP is up: it resumes";

    // ROUTE: connections by way of others.
    NoRoute = "RK-ROUTE-1", Unavailable, Later, "there is no route to the site",
        "`renkei route SITE` shows the routes and why each fails; a private site needs its line to one of the PoPs named there";
    NoLine = "RK-ROUTE-2", Unavailable, Later, "the site has no line to this PoP",
        "start the PoP of that site, or check there whether it can connect to this one: `renkei status`, `renkei doctor SITE`";
    CallUnanswered = "RK-ROUTE-3", Unavailable, Later, "the site was called over its line and did not connect back",
        "check at the called site that its firewall allows outgoing connections to this PoP's port";
    RelayRefused = "RK-ROUTE-4", Permission, Never, "the PoP does not relay for this principal",
        "ask its administrator; `relay` in config.toml names the principals it relays for";
    CircuitLimit = "RK-ROUTE-5", Limit, Later, "the PoP relays as many circuits as it allows",
        "wait for other transfers to end, or ask the administrator to raise `limits.max_circuits`";
    ChangedOnTheWay = "RK-ROUTE-6", Integrity, Later, "data was altered on the way through another PoP",
        "the altered data was not stored; check memory and network of the named PoP, or exclude that PoP in `route`";
    RouteForbidden = "RK-ROUTE-7", Permission, Never, "the administrator excludes every route to the site",
        "see `route` in config.toml";
    WithAgent = "RK-ROUTE-8", Unavailable, Never, "the storage is served by its agent",
        "upgrade the side that asked: it does not support storages of agents";
    AgentAbsent = "RK-ROUTE-9", Unavailable, Later, "the agent that serves the storage is not connected",
        "start `renkei agent` in the network where the storage is; `renkei status SITE` shows whether it is connected";
    TargetUnproven = "RK-ROUTE-10", Identity, Never, "the target of the circuit did not prove to be a PoP of the site",
        "the endpoints in the site's card are wrong, or another service listens there: ask the site's administrator for a new card";
    InsideAddress = "RK-ROUTE-11", Permission, Never, "the PoP does not relay to a private or local address",
        "if the site really has this address, the administrator of the PoP allows it: `renkei trust allow-private SITE`";

    // WIRE: the renkei/1 protocol.
    ProtocolViolation = "RK-WIRE-1", Invalid, Never, "the peer violated the protocol",
        "check that both sides run the same version of renkei; report it if they do";
    VersionMismatch = "RK-WIRE-2", Invalid, Never, "the two sides have no protocol version in common",
        "update renkei at the side that the cause names; two neighbouring versions of the protocol work together";
    FrameTooLarge = "RK-WIRE-3", Limit, Never, "the peer sent a frame larger than allowed",
        "check that both sides run the same version of renkei; report it if they do";
    TicketRefused = "RK-WIRE-4", Identity, Never, "the ticket is unknown, used or expired",
        "run the command again";
    NotRenkei = "RK-WIRE-5", Invalid, Never, "the other side does not speak renkei",
        "check the endpoint's address and port; another service answers there";
    TooManySessions = "RK-WIRE-6", Limit, Later, "the PoP has reached its limit of sessions",
        "try again later, or ask the administrator to raise `limits.max_sessions`";
    TooManyEntries = "RK-WIRE-7", Limit, Never, "the request is larger than the PoP allows",
        "split the request";

    // AUTH: certificates, trust, mapping.
    CertificateExpired = "RK-AUTH-1", Identity, Never, "the certificate has expired",
        "users: `renkei login`; administrators: `renkei renew`, or a restart of the PoP, which renews it where pki/ca.key is";
    CertificateNotYetValid = "RK-AUTH-2", Identity, Never, "the certificate is not valid yet",
        "one of the two clocks is wrong; synchronise them with NTP";
    UnknownAuthority = "RK-AUTH-3", Identity, Never, "the certificate's site is not trusted here",
        "administrators: `renkei invite` at that site, `renkei join` at this one; users: then `renkei login`";
    WrongSite = "RK-AUTH-4", Identity, Never, "the peer belongs to another site than expected",
        "the endpoint belongs to another site: check the site card (`renkei trust list`)";
    CertificateRevoked = "RK-AUTH-5", Identity, Never, "the certificate was revoked",
        "log in again, or ask the administrator of the named site why";
    BadCertificate = "RK-AUTH-6", Identity, Never, "the certificate is not valid for this use",
        "see the cause; log in again or renew the host certificate";
    NotMapped = "RK-AUTH-7", Permission, Never, "you are not mapped to an account at the site",
        "ask the site's administrator for `renkei map add PRINCIPAL ACCOUNT`";
    AccountUnknown = "RK-AUTH-8", Permission, Never, "the mapped account does not exist on this machine",
        "the administrator should correct the rule shown by `renkei map list`";
    AccountNotServed = "RK-AUTH-9", Permission, Never, "an unprivileged PoP serves its own account only",
        "map the principal to the account the PoP runs as, or run the PoP as root";
    TlsFailed = "RK-AUTH-10", Identity, Never, "the TLS handshake failed",
        "see the cause; both sides need TLS 1.3 and renkei/1";
    ClockSkew = "RK-AUTH-11", Identity, Never, "the two clocks differ too much",
        "synchronise both clocks with NTP, then try again";
    SecretExposed = "RK-AUTH-12", Identity, Never, "a secret file is readable by other accounts",
        "`chmod 600` on the file, as its owner; replace the key if another user may have read it";
    NotLoggedIn = "RK-AUTH-13", Identity, Never, "there is no valid credential",
        "`renkei login` on the PoP's machine, `renkei login --ssh USER@HOST` from another";
    NotAllowed = "RK-AUTH-14", Permission, Never, "the principal is not allowed to do this",
        "ask the site's administrator";
    ForeignName = "RK-AUTH-15", Identity, Never, "a site's authority certified a name of another site",
        "do not trust this site until its administrator explains the certificate";
    SshFailed = "RK-AUTH-16", Unavailable, Later, "the connection through ssh to the PoP's machine failed",
        "try `ssh USER@HOST renkei --version` by hand; the variable RENKEI_SSH names a program to use instead of ssh";
    OutOfScope = "RK-AUTH-17", Permission, Never, "the restricted credential does not allow this",
        "a transfer's credential covers only the places and operations of that transfer, submit another transfer for \
         other files; `renkei map test --scope WORDS` shows what the words of another credential allow";
    BadScope = "RK-AUTH-18", Identity, Never, "the scope of a delegated certificate cannot be used",
        "see the cause; upgrade the older side, or submit the transfer again";
    DelegationExpired = "RK-AUTH-19", Identity, Never, "the transfer's delegated credential has expired",
        "`renkei renew ID` issues a new one; `delegation_days` is the lifetime of a credential";
    AgentRefused = "RK-AUTH-20", Permission, Never, "the site does not allow this agent to serve the storage",
        "the site's administrator allows it with `renkei storage add STORAGE --agent ACCOUNT`, with your account there";
    NotAgentsAccount = "RK-AUTH-21", Permission, Never, "the storage's agent serves another account",
        "`renkei whoami SITE` shows the account you are mapped to; the files are those of the account that runs the agent";
    RootAccount = "RK-AUTH-22", Permission, Never, "the operation would run as root without explicit permission",
        "name an account without privileges: `--account ACCOUNT`, or `volumes.account` in config.toml for all new volumes; \
         `--account root` if it must be root";
    ShutOut = "RK-AUTH-26", Permission, Never, "the site's administrator denied access to the user",
        "ask the site's administrator: `renkei map remove PRINCIPAL` there removes the rule";
    MountNotGranted = "RK-AUTH-25", Permission, Never, "the site has revoked this mount's credential",
        "the site's administrator grants a new one: `renkei mount-credential grant MOUNT --user USER`, on the machine of the mount \
         with `--ssh ADMINISTRATOR@HOST`; or `renkei login`";

    AuthorityReplaced = "RK-AUTH-27", Identity, Never, "the site has replaced its authority, and the new one is not trusted here",
        "exchange site cards again: `renkei trust export > SITE.site` at that site, `renkei trust add SITE.site` at the PoP that reports \
         this, and compare the fingerprint by telephone; users: `renkei login`";
    AuthorityKeyAway = "RK-AUTH-29", Identity, Never, "the key of the site's authority is not on this machine",
        "bring pki/ca.key back from where it is kept, and give the same command again; a restart of the PoP renews its certificate then, too";
    AuthorityRotating = "RK-AUTH-28", Identity, Never, "an authority rotation is in progress",
        "no action is needed while partners take over the new authority; `renkei site rotate-authority --finish` ends the overlap";

    TokenInvalid = "RK-AUTH-30", Identity, Never, "the token cannot be used",
        "see the cause; `renkei token inspect TOKEN` shows what a token says";
    TokenExpired = "RK-AUTH-31", Identity, Never, "the token has expired",
        "get a new token; if it should still be good, synchronise the clocks with NTP";
    TokenElsewhere = "RK-AUTH-32", Identity, Never, "the token is not good for this client's address",
        "use the token from an address that it names, or get one without `--ip`";
    TokenNotYetValid = "RK-AUTH-33", Identity, Never, "the token is not valid yet",
        "one of the two clocks is wrong; synchronise them with NTP";
    TokenAudience = "RK-AUTH-34", Identity, Never, "the token is for another service",
        "get a token whose audience is this PoP: https://HOST:PORT as it announces itself, or what `renkei issuer list` shows";
    IssuerUnknown = "RK-AUTH-35", Identity, Never, "the token's issuer is not trusted here",
        "administrators: `renkei issuer add NAME URL`";
    TokenSignature = "RK-AUTH-36", Identity, Never, "the signature of the token is not one of its issuer",
        "get a new token; if all of an issuer's tokens are refused so, compare its keys with its administrator";
    IssuerUnreachable = "RK-AUTH-37", Unavailable, Later, "the keys of the token's issuer cannot be fetched",
        "try again later; see the cause: the PoP fetches URL/.well-known/openid-configuration and the keys that it names";

    GridCertificateExpired = "RK-AUTH-38", Identity, Never, "the grid certificate or proxy has expired",
        "make a new proxy (`voms-proxy-init`, `grid-proxy-init`), or renew the certificate at its authority";
    GridCertificateNotYetValid = "RK-AUTH-39", Identity, Never, "the grid certificate or proxy is not valid yet",
        "one of the two clocks is wrong; synchronise them with NTP";
    GridAuthorityUnknown = "RK-AUTH-40", Identity, Never, "the grid certificate's authority is not trusted here",
        "administrators: install the authority in the folder of authorities, or `renkei trust ca add DIR`";
    GridSignature = "RK-AUTH-41", Identity, Never, "a signature in the chain of the grid certificate is wrong",
        "make a new proxy; if that is refused too, the chain was altered or the authority has another key than the one installed";
    RevocationListMissing = "RK-AUTH-42", Identity, Never, "there is no revocation list of the grid certificate's authority",
        "administrators: run `fetch-crl`, or set `grid.revocation` to if-present";
    RevocationListExpired = "RK-AUTH-43", Identity, Never, "the revocation list of the grid certificate's authority cannot be used",
        "administrators: run `fetch-crl`, and see that it runs every few hours";
    GridCertificateRevoked = "RK-AUTH-44", Identity, Never, "the grid certificate was revoked by its authority",
        "get a new certificate from the authority";
    SigningPolicy = "RK-AUTH-45", Identity, Never, "the signing policy does not let the authority issue this name",
        "administrators: install the .signing_policy file of the authority, or tell the authority about the name";
    ProxyRefused = "RK-AUTH-46", Identity, Never, "the proxy certificate is not one that is accepted",
        "make one by RFC 3820 that inherits all rights or is limited: `voms-proxy-init -rfc`, `grid-proxy-init`";
    WeakDigest = "RK-AUTH-47", Identity, Never, "the grid certificate is signed with a digest that is no longer safe",
        "get a certificate or revocation list that is signed with SHA-256 or better; `grid.weak_digests` accepts SHA-1, too";
    TooManyLogins = "RK-AUTH-50", Limit, Later, "too many certificates were asked for in a short time",
        "wait a minute; programs keep a certificate until its end, and ask for no new one each time";
    LoginDenied = "RK-AUTH-51", Identity, Never, "the login at the provider was denied",
        "`renkei login --oidc URL` again, and confirm the code that it shows";
    LoginLapsed = "RK-AUTH-52", Identity, Never, "nobody confirmed the login at the provider in time",
        "`renkei login --oidc URL` again; open the address that it shows, and confirm the code there";
    ProviderUnusable = "RK-AUTH-53", Unavailable, Later, "the provider of identities cannot be used",
        "see the cause: the provider answers at URL/.well-known/openid-configuration over https and offers logins of devices (RFC 8628) to the client that `--client` names";
    EndpointNotTrusted = "RK-AUTH-54", Identity, Never, "the PoP that shall get the token did not prove to be that of the site",
        "name it as its certificate does: `renkei login --token FILE --at HOST:PORT`, or take the site's card first: `renkei trust add CARD`; SSL_CERT_FILE names further authorities";
    NoSuchIdentity = "RK-AUTH-55", Identity, Never, "there is no identity of the kind that was asked for",
        "see the cause; `renkei login` gets a certificate of the site, and RENKEI_CREDENTIAL names the kind to look for";
    KerberosOff = "RK-AUTH-56", Identity, Never, "the PoP accepts no Kerberos tickets",
        "show another identity; administrators: see the cause, install libgssapi-krb5-2, and put the keys of HTTP/HOST into the keytab that `kerberos.keytab` names";
    TicketInvalid = "RK-AUTH-57", Identity, Never, "the Kerberos token cannot be used",
        "see the cause; `kinit` again, and have the client send Negotiate with Kerberos, not NTLM";
    TicketExpired = "RK-AUTH-58", Identity, Never, "the Kerberos ticket has expired",
        "`kinit` again; if it should still be good, synchronise the clocks with NTP";
    TicketReplayed = "RK-AUTH-59", Identity, Never, "the Kerberos token was shown before",
        "ask again: a client makes a new token for each request; one that somebody else sends again is refused so, too";
    TicketClock = "RK-AUTH-60", Identity, Never, "the clocks of client and PoP differ too much for Kerberos",
        "synchronise the clocks of client, PoP and KDC with NTP";
    TicketElsewhere = "RK-AUTH-61", Identity, Never, "the Kerberos ticket is for a service that is not this PoP",
        "use the name of the PoP that its keytab has; after a change of the keys `kinit` again; administrators: `klist -k` shows them";
    NoServiceTicket = "RK-AUTH-62", Identity, Never, "the KDC gave no ticket for the PoP",
        "see the cause: `kinit` if the ticket has expired; the realm has HTTP/HOST for the name by which the PoP is reached";

    // CONF: configuration and command line.
    ConfigInvalid = "RK-CONF-1", Invalid, Never, "the configuration is not valid",
        "correct the named line; docs/config.md has every field";
    NotInitialised = "RK-CONF-2", NotFound, Never, "there is no PoP in this directory",
        "name the PoP's directory with --dir, or work as its account; `renkei init --site NAME` makes a new PoP";
    AlreadyInitialised = "RK-CONF-3", Exists, Never, "this directory already has a PoP",
        "use the existing PoP, or choose another directory with --dir";
    CardInvalid = "RK-CONF-4", Invalid, Never, "the site card cannot be read",
        "ask the site for the output of `renkei trust export`, unchanged";
    SiteUnknown = "RK-CONF-5", NotFound, Never, "no site of that name is known here",
        "`renkei trust list` shows the known sites; the user's own site is asked for others; administrators: `renkei trust add CARD`";
    UsageInvalid = "RK-CONF-6", Invalid, Never, "invalid command line",
        "see `renkei help COMMAND`";
    PopNotRunning = "RK-CONF-7", Unavailable, Later, "no PoP runs on this directory",
        "start it: `renkei serve`; from another machine: `renkei login --ssh USER@HOST`";
    CardConflict = "RK-CONF-8", Exists, Never, "the site is already known here with another authority",
        "compare both fingerprints with the site's administrator; if the new one is right, `renkei trust remove SITE` first";
    InvitationRefused = "RK-CONF-9", Identity, Never, "the invitation is not valid",
        "ask the site's administrator for a new line of `renkei invite`; an invitation is valid for one site until it expires";
    NotConfirmed = "RK-CONF-11", Invalid, Never, "confirmation is required",
        "read the cause; to confirm, run the same command with --yes";
    SiteRenamed = "RK-CONF-13", Invalid, Never, "the configuration names another site than the authority",
        "restore the old name at `site` in config.toml; `renkei site rename NAME` renames a site, and another PoP of it takes the name over \
         when it starts";
    RuleCycle = "RK-CONF-10", Invalid, Never, "the rule would forward files in a circle",
        "choose another folder: the output of a rule must not reach a folder that a rule of the chain watches";
    ListenPending = "RK-CONF-14", Invalid, Never, "the PoP does not listen where its configuration says",
        "restart the PoP, which takes up the new `listen`, or restore the old one; partners are told a new address after that";
    BackupInvalid = "RK-CONF-12", Integrity, Never, "the folder is not a complete backup of renkei",
        "name the folder that `renkei backup FOLDER` made; if it was copied since, copy it again completely, or use \
         an earlier backup";

    // LAB: an emulated federation on one machine.
    TopologyInvalid = "RK-LAB-1", Invalid, Never, "the topology file is not valid",
        "correct the named line; docs/lab.md has every field";
    LabNeedsRoot = "RK-LAB-2", Permission, Never, "a lab needs root",
        "run the command as root (sudo): only root can create namespaces and devices";
    TunMissing = "RK-LAB-3", Unavailable, Never, "there are no TAP devices on this machine",
        "`modprobe tun`; in a container, start it with --device /dev/net/tun and the capability NET_ADMIN";
    LabUnknown = "RK-LAB-4", NotFound, Never, "no such lab",
        "`renkei lab list` shows the labs of this machine; `renkei lab up TOPOLOGY` starts one";
    LabRunning = "RK-LAB-5", Exists, Never, "a lab of that name is already running",
        "`renkei lab down` stops it; or name the new lab with --lab";
    LabDied = "RK-LAB-6", Unavailable, Never, "the lab's process has ended",
        "`renkei lab down` removes what it left; `renkei lab up TOPOLOGY` does the same and starts it again";
    LabSetupFailed = "RK-LAB-7", Unavailable, Never, "the lab's network could not be set up",
        "see the cause; a lab needs `ip` (iproute2), for private sites `nft` (nftables), and for the kernel engine `tc`, \
         `bridge`, sch_netem and sch_htb; `--engine wire` needs none of these four";
    LabNameUnknown = "RK-LAB-8", NotFound, Never, "the lab has no such site or link",
        "`renkei lab show` lists both; a link is written SITE..SITE, SITE->SITE or SITE..SITE/PATH";

    // QUE: the queue of durable transfers.
    TransferUnknown = "RK-QUE-1", NotFound, Never, "no such transfer",
        "`renkei transfers --ended` lists yours; transfers that have ended are forgotten after `queue.keep_days`";
    SubmissionConflict = "RK-QUE-2", Exists, Never, "another transfer has that id",
        "omit --id; the same id means the same transfer, submitted again";
    DependencyCycle = "RK-QUE-3", Invalid, Never, "transfers wait for each other in a cycle",
        "omit one --after";
    DeadlinePassed = "RK-QUE-4", Limit, Never, "the deadline passed before the transfer was done",
        "`renkei why ID` shows what it waited for; `renkei retry ID` tries again and resumes";
    DependencyFailed = "RK-QUE-5", Interrupted, Never, "a transfer that it depends on failed or was cancelled",
        "correct that one, then `renkei retry` both";
    ChangeRefused = "RK-QUE-6", Invalid, Never, "the transfer is in a state that does not allow this change",
        "`renkei status ID` shows its state; a transfer that is done cannot be changed, one that is running need not be retried";
    CatalogueFailed = "RK-QUE-7", Unavailable, Later, "the catalogue database cannot be used",
        "see the cause; the administrator should check the disk of the PoP or the server that `catalogue` names";
    QueueFull = "RK-QUE-8", Limit, Never, "the user has too many transfers in the queue",
        "wait until some have ended, or ask the administrator to raise `queue.max_queued_user`";
    NotQueueable = "RK-QUE-9", Invalid, Never, "this transfer cannot be queued",
        "see the cause; a queued copy ends at a site: to copy to this machine, omit --detach";
    IdAmbiguous = "RK-QUE-10", Invalid, Never, "several transfers begin with that id",
        "give more digits of the id; the cause has some that begin so";
    DestinationBusy = "RK-QUE-11", Limit, Later, "another transfer writes to the same destination",
        "no action is needed: it starts when the other one has ended; `renkei transfers` shows both";
    NotifyRefused = "RK-QUE-12", Permission, Never, "the PoP does not notify this address",
        "omit --notify, or ask the administrator to add the address to `notify` in config.toml";

    // TPC: copies between this PoP and another web server.
    ServerNotAllowed = "RK-TPC-1", Permission, Never, "the PoP does not connect to this server",
        "ask the administrator to add the server to `tpc.hosts` in config.toml";
    ServerRefused = "RK-TPC-2", Permission, Never, "the other server refused the request",
        "check the URL and the token for the other server (TransferHeaderAuthorization)";
    ServerFailed = "RK-TPC-3", Unavailable, Later, "the other server could not answer the request",
        "copy again later; if it stays so, tell the administrator of the other server";
    ServerAnswerWrong = "RK-TPC-4", Invalid, Never, "the other server answered against the protocol",
        "copy through the client, and tell the administrator of the other server";
    ServerTooSlow = "RK-TPC-5", Unavailable, Later, "the other server sends too slowly",
        "copy again later, or ask the administrator to lower `tpc.min_bytes_per_s`";

    // NS: the tree of a volume.
    RenamedIntoItself = "RK-NS-1", Invalid, Never, "a directory cannot be moved into itself",
        "choose a destination that is not below it";
    ContentConflict = "RK-NS-2", Exists, Never, "the file has changed since it was read",
        "read the new version, then write again";
    VolumeUnknown = "RK-NS-3", NotFound, Never, "there is no volume of that name",
        "`renkei volume list` shows the volumes of a PoP";
    RecordsForgotten = "RK-NS-4", NotFound, Never, "the home of the volume no longer has these log records",
        "no action is needed: the follower receives the current tree instead";
    OnlyCopy = "RK-NS-5", Exists, Never, "no other site is known to have a replica of the file",
        "wait until the home has fetched it (`renkei where FILE` shows that), then try again";
    TreeNotHere = "RK-NS-6", Unavailable, Later, "the tree of the volume has not been received yet",
        "wait: `renkei volume show VOLUME` shows the progress";
    HistoryDiffers = "RK-NS-7", Changed, Later, "the home's log differs from the log that was followed here",
        "no action is needed if the home was restored from a backup: the follower compares its copy with the home's tree, \
         keeps files that only it has, and `renkei volume show VOLUME` there shows the result";
    ChangesWait = "RK-NS-8", Exists, Never, "local changes have not reached the home yet",
        "wait until the home has them (`renkei volume show VOLUME`), then try again; or abandon them: `renkei volume \
         unsubscribe VOLUME --abandon` lists them and leaves the contents as plain files";
    VolumeChanged = "RK-NS-10", Unavailable, Later, "the volume's directory has been replaced",
        "mount the right file system, or move the directory back; if the files were copied to this one: `renkei volume check VOLUME --accept` \
         compares and accepts them";

    ReplicaWrong = "RK-NS-9", Integrity, Never, "a replica at this site is missing or corrupt",
        "`renkei verify --repair PLACE` fetches it again from another site, as happens automatically where a policy or \
         `hold` requires it; then check the disk there (`dmesg`, `smartctl -a`)";
    ContentLost = "RK-NS-14", Integrity, Never, "no site that was asked gave the content of the file",
        "a site that the cause names as not reached may have it: once it is reached, give the command again; else restore the file from a \
         backup under its name, or remove the name: `renkei rm PLACE`";
    BothStay = "RK-NS-12", Exists, Never, "another site wrote the file at the same time; both versions were kept",
        "compare the two files, keep one under the file's name, and remove the other";
    SiteLost = "RK-NS-13", Unavailable, Later, "a site whose changes must be seen first is not reached",
        "see to the way to the named site (`renkei doctor SITE`); files are as far as they came here until it is back";

    // MNT: mounts.
    MountFailed = "RK-MNT-1", Unavailable, Never, "the system refused to mount or unmount",
        "see the cause; a mount needs /dev/fuse, and for users who are not root the package fuse3";
    MountBusy = "RK-MNT-2", Exists, Never, "the mount is in use",
        "leave the directory and end the programs that use it (`fuser -vm MOUNTPOINT`), or `renkei umount --lazy`";
    NotMounted = "RK-MNT-3", NotFound, Never, "nothing is mounted there",
        "`findmnt -t fuse` shows what is mounted";
    LockHeld = "RK-MNT-4", Limit, Later, "the file is locked by another program",
        "wait until that program has ended; the cause has its process number on its own machine";
    LocksAway = "RK-MNT-5", Unavailable, Never, "the lock server of the volume, its home, cannot be reached",
        "try again when the home of the volume can be reached, or mount with `--locks local`";
    LockLost = "RK-MNT-6", Unavailable, Never, "a lock was lost",
        "close the file and open it again: another program may have locked it since";
    MountWaits = "RK-MNT-7", Identity, Later, "the mount waits for a credential",
        "`renkei login` as the user who mounted, with the same --dir: the mount then resumes; for a permanent \
         mount, `renkei mount-credential grant`";

    // SYS: the machine and defects.
    Internal = "RK-SYS-1", Internal, Never, "a defect in renkei",
        "report it with the logs of both sides";
    SystemCall = "RK-SYS-2", Internal, Never, "a system call failed",
        "see the cause";
    OutOfMemory = "RK-SYS-3", Limit, Later, "a memory limit was met",
        "wait for other transfers to end, or raise the limit";
    Unrecognised = "RK-SYS-4", Internal, Never, "the other side reported an error code that this version does not know",
        "upgrade this side; the cause is that of the other side";
    CertificateEnds = "RK-SYS-5", Identity, Never, "a certificate ends soon",
        "administrators: `renkei renew` for the host's certificate; users: `renkei login`";
    RoomLow = "RK-SYS-6", NoSpace, Later, "free space is low",
        "free space there, or transfers will fail with RK-STORE-6";
    NoProgress = "RK-SYS-7", Unavailable, Later, "the queue makes no progress",
        "see the cause; `renkei doctor` at the PoP shows what the transfers wait for";
    FormatNewer = "RK-SYS-8", Internal, Never, "the stored state is of a newer version of renkei",
        "run the newer version again, or restore a backup that was made before the update; nothing was changed";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique_and_well_formed() {
        let ids: HashSet<_> = Code::ALL.iter().map(|code| code.row().id).collect();
        assert_eq!(ids.len(), Code::ALL.len());
        for id in ids {
            let parts: Vec<_> = id.split('-').collect();
            assert_eq!((parts.len(), parts[0]), (3, "RK"), "{id}");
            assert!(parts[2].parse::<u32>().is_ok(), "{id}");
        }
    }

    #[test]
    fn text_round_trips() {
        for &code in Code::ALL {
            assert_eq!(Code::parse(&code.to_string()), Some(code));
        }
    }

    #[test]
    fn a_redundant_cause_is_not_shown() {
        let shown = |code, cause| Error::new(code, "open", "f", cause).at("kek").to_string();
        let not_found = shown(Code::PathNotFound, "No such file or directory (os error 2)");
        assert_eq!(not_found, "RK-STORE-1: no such file or directory: f (at kek, open)");
        assert!(shown(Code::PathNotFound, "gone since").ends_with("(at kek, open): gone since"));
    }

    #[test]
    fn the_side_nearest_to_the_cause_stays() {
        let error = Error::new(Code::NoSpace, "write", "a", "ENOSPC").at("kek").at("client");
        assert_eq!(error.side, "kek");
    }
}
