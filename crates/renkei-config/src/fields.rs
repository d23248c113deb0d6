//! The table of all fields, for docs/config.md, the environment variables, and suggestions for typos.

use super::Config;
use renkei_core::error::{Code, Error};
use std::fmt::Write;

/// The type of a field, which parses its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Text.
    Text,
    /// One text or a list; in the environment separated by commas.
    List,
    /// Yes or no.
    Bool,
    /// A whole number in some unit.
    Number(&'static str),
}

/// One line of docs/config.md.
#[derive(Debug)]
pub struct Field {
    /// The key with its table, as `limits.max_sessions`.
    pub key: &'static str,
    /// Type and unit.
    pub kind: Type,
    /// The default as written in the file; empty if there is none.
    pub default: &'static str,
    /// The variable that overrides the file; empty where there is none.
    pub env: &'static str,
    /// Its effect.
    pub effect: &'static str,
}

/// Every field of config.toml.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    Field { key: "site", kind: Type::Text, default: "", env: "RENKEI_SITE",
        effect: "The site's name: 1 to 63 of a-z, 0-9 and -, starting with a letter. Set once by `renkei init`." },
    Field { key: "listen", kind: Type::List, default: "0.0.0.0:7512", env: "RENKEI_LISTEN",
        effect: "Addresses and ports to listen on. Port 0 takes a free one. Read when the PoP starts." },
    Field { key: "endpoints", kind: Type::List, default: "[]", env: "RENKEI_ENDPOINTS",
        effect: "`HOST:PORT` under which other sites reach the PoP, as the site card announces them. Empty: the listen \
                 address if it is one address, else the machine's name and the port. A change goes into the PoP's certificate, and partners \
                 that can be reached are told; private addresses, and names that resolve to one, they take by `renkei trust add` only." },
    Field { key: "reverse", kind: Type::List, default: "[]", env: "RENKEI_REVERSE",
        effect: "Sites whose PoPs this one keeps a line to, because it cannot be dialled from outside: its site card names them \
                 in place of `endpoints`, which then only users of this site are told. Partners that can be reached are told \
                 a change." },
    Field { key: "relay", kind: Type::Text, default: "trusted", env: "RENKEI_RELAY",
        effect: "For whom connections to other sites pass through this PoP: `trusted` (users and PoPs of all trusted sites), \
                 `own` (users of this site), `none`. They lead to trusted sites alone, and are encrypted from end to end." },
    Field { key: "relay_private", kind: Type::List, default: "[]", env: "RENKEI_RELAY_PRIVATE",
        effect: "Sites to whose PoPs connections of others pass through this PoP also where the endpoint is an address inside: of this \
                 machine, the local link or a private network. `*`: all. `renkei trust allow-private SITE` adds one." },
    Field { key: "map_own_users", kind: Type::Bool, default: "true", env: "RENKEI_MAP_OWN_USERS",
        effect: "Users of this site become the account of the same name when no rule of the map says otherwise." },
    Field { key: "map_min_uid", kind: Type::Number("user id"), default: "1000", env: "RENKEI_MAP_MIN_UID",
        effect: "The lowest user id to which a rule as `*@titech *` leads: system accounts (daemon, www-data) and `nobody` are reached only by rules that name their user." },
    Field { key: "stall_timeout_s", kind: Type::Number("seconds"), default: "60", env: "RENKEI_STALL_TIMEOUT_S",
        effect: "How long a peer may be silent before the connection is closed." },
    Field { key: "delegation_days", kind: Type::Number("days"), default: "7", env: "RENKEI_DELEGATION_DAYS",
        effect: "Lifetime of the credential that a queued transfer works with, 1 to 90. When it has expired the \
                 transfer waits (RK-AUTH-19)." },
    Field { key: "borrowed_hours", kind: Type::Number("hours"), default: "12", env: "RENKEI_BORROWED_HOURS",
        effect: "Longest lifetime of the certificate that a user gets for a token, a proxy or a Kerberos ticket, 0 to 168; it never \
                 outlives those. 0: none is given." },
    Field { key: "borrowed_queue_hours", kind: Type::Number("hours"), default: "12", env: "RENKEI_BORROWED_QUEUE_HOURS",
        effect: "How long a transfer that was queued with such a certificate may go on after the certificate's end, 0 to 2160, and \
                 never longer than `delegation_days`." },
    Field { key: "notify", kind: Type::List, default: "[]", env: "RENKEI_NOTIFY",
        effect: "Addresses below which the end of a queued transfer may be told (`--notify`), as `https://hooks.example.org/renkei`: \
                 the PoP connects to no others for its users. Empty: to none." },
    Field { key: "checksums", kind: Type::List, default: "[]", env: "RENKEI_CHECKSUMS",
        effect: "Checksums that are computed of files that come into storages, as `[\"adler32\", \"md5\"]`: blake3, sha256, md5, \
                 adler32, crc32c. They are remembered in the attribute user.renkei.checksums of the file as long as its content is that, and \
                 `renkei checksum --known` shows them. Of files above 256 MiB only what is written in order by a mount or `put`." },
    Field { key: "limits.max_sessions", kind: Type::Number("sessions"), default: "256", env: "RENKEI_LIMITS_MAX_SESSIONS",
        effect: "Sessions open at a time, at most three quarters of them of one other site and half of one principal; one more is refused with RK-WIRE-6." },
    Field { key: "limits.max_streams", kind: Type::Number("streams"), default: "32", env: "RENKEI_LIMITS_MAX_STREAMS",
        effect: "Data streams of one session." },
    Field { key: "limits.max_memory_mib", kind: Type::Number("MiB"), default: "1024", env: "RENKEI_LIMITS_MAX_MEMORY_MIB",
        effect: "Memory for data in flight and for what transfers keep until their end (about 40 bytes for a name with `--delete`, \
                 300 for a directory or hard link), over all sessions; one principal may have half of it. A transfer that \
                 alone needs more is refused with RK-WIRE-7, one that must wait for others with RK-SYS-3." },
    Field { key: "limits.max_entries", kind: Type::Number("entries"), default: "10000000", env: "RENKEI_LIMITS_MAX_ENTRIES",
        effect: "Entries in one request or listing; more are refused with RK-WIRE-7." },
    Field { key: "catalogue", kind: Type::Text, default: "", env: "RENKEI_CATALOGUE",
        effect: "The database of queued transfers: empty for SQLite in the PoP's directory, or `postgres://USER@HOST/DATABASE` \
                 (a socket: `postgres:///DATABASE?host=/run/postgresql&user=USER`; passwords: `~/.pgpass`). Read when the PoP starts." },
    Field { key: "queue.max_running", kind: Type::Number("transfers"), default: "16", env: "RENKEI_QUEUE_MAX_RUNNING",
        effect: "Queued transfers that run at a time." },
    Field { key: "queue.max_running_user", kind: Type::Number("transfers"), default: "8", env: "RENKEI_QUEUE_MAX_RUNNING_USER",
        effect: "Of these, one user's." },
    Field { key: "queue.max_running_link", kind: Type::Number("transfers"), default: "4", env: "RENKEI_QUEUE_MAX_RUNNING_LINK",
        effect: "Of these, those from one site to one other." },
    Field { key: "queue.max_queued_user", kind: Type::Number("transfers"), default: "1000000", env: "RENKEI_QUEUE_MAX_QUEUED_USER",
        effect: "Transfers of one user that have not ended; more are refused with RK-QUE-8." },
    Field { key: "queue.deadline_days", kind: Type::Number("days"), default: "30", env: "RENKEI_QUEUE_DEADLINE_DAYS",
        effect: "After so many days a transfer without `--deadline` fails." },
    Field { key: "queue.keep_days", kind: Type::Number("days"), default: "30", env: "RENKEI_QUEUE_KEEP_DAYS",
        effect: "For so many days a transfer that ended is remembered." },
    Field { key: "buffer.size_mib", kind: Type::Number("MiB"), default: "0", env: "RENKEI_BUFFER_SIZE_MIB",
        effect: "Room for files of queued transfers on their way: those of `cp --detach` from a user's own machine, and those whose \
                 destination cannot be reached. 0: none. It is never more than this, but the file system must have it." },
    Field { key: "buffer.path", kind: Type::Text, default: "", env: "RENKEI_BUFFER_PATH",
        effect: "The folder for them, an absolute path that nothing else uses; empty for `buffer` in the PoP's state directory. Read \
                 when the PoP starts." },
    Field { key: "buffer.per_user_mib", kind: Type::Number("MiB"), default: "0", env: "RENKEI_BUFFER_PER_USER_MIB",
        effect: "Of `buffer.size_mib`, what one user may have. 0: half." },
    Field { key: "buffer.keep_days", kind: Type::Number("days"), default: "7", env: "RENKEI_BUFFER_KEEP_DAYS",
        effect: "For so many days files wait there to be forwarded; then they are removed (RK-STORE-22)." },
    Field { key: "buffer.spill_after_s", kind: Type::Number("seconds"), default: "600", env: "RENKEI_BUFFER_SPILL_AFTER_S",
        effect: "When the destination of a queued copy between two other sites cannot be reached for so long, its files are \
                 brought here and forwarded later. 0: never." },
    Field { key: "volumes.account", kind: Type::Text, default: "", env: "RENKEI_VOLUMES_ACCOUNT",
        effect: "The account of volumes that are made, or subscribed to, by root in a directory of root's without --account. Without it \
                 one must be named: root works for others only where that is said." },
    Field { key: "volumes.create", kind: Type::List, default: "[]", env: "RENKEI_VOLUMES_CREATE",
        effect: "Who may make volumes in storages that they may write, as `alice@kek`, or `*@kek` for all users of a site; each \
                 manages what it made. Empty: the administrator alone." },
    Field { key: "web.certificate", kind: Type::Text, default: "", env: "RENKEI_WEB_CERTIFICATE",
        effect: "A certificate for the console, `/healthz` and `/metrics` that browsers know: a PEM file with the chain, the certificate \
                 itself first, as an absolute path. Shown to HTTP clients that ask for a host in it; all others, and renkei itself, see the \
                 site's own. Read again when it changes." },
    Field { key: "web.key", kind: Type::Text, default: "", env: "RENKEI_WEB_KEY",
        effect: "Its private key: a PEM file of mode 600, as an absolute path." },
    Field { key: "web.public_space_report", kind: Type::Bool, default: "false", env: "RENKEI_WEB_PUBLIC_SPACE_REPORT",
        effect: "Show the space report (`/srr.json`: names and sizes of storages and volumes) to everybody, and not to users alone." },
    Field { key: "grid.directory", kind: Type::Text, default: "/etc/grid-security", env: "RENKEI_GRID_DIRECTORY",
        effect: "The directory with the files of grid services. Those of its files that exist are used: certificates/ (authorities), grid-mapfile, \
                 voms-mapfile, vomsdir/, hostcert.pem with hostkey.pem. Empty: none but those that other fields name." },
    Field { key: "grid.authorities", kind: Type::List, default: "[]", env: "RENKEI_GRID_AUTHORITIES",
        effect: "More folders with grid authorities, in the form of /etc/grid-security/certificates. `renkei trust ca add DIR` adds one." },
    Field { key: "grid.mapfile", kind: Type::Text, default: "", env: "RENKEI_GRID_MAPFILE",
        effect: "The grid-mapfile, from names to accounts, in place of the one in `grid.directory`: an absolute path." },
    Field { key: "grid.voms_mapfile", kind: Type::Text, default: "", env: "RENKEI_GRID_VOMS_MAPFILE",
        effect: "The voms-mapfile, from attributes to accounts, in place of the one in `grid.directory`: an absolute path." },
    Field { key: "grid.vomsdir", kind: Type::Text, default: "", env: "RENKEI_GRID_VOMSDIR",
        effect: "The directory with VO/HOST.lsc, in place of the one in `grid.directory`: an absolute path." },
    Field { key: "grid.host_certificate", kind: Type::Text, default: "", env: "RENKEI_GRID_HOST_CERTIFICATE",
        effect: "The host certificate that HTTP clients without HTTP/2 see, in place of hostcert.pem in `grid.directory`: a PEM file, an absolute path. Browsers \
                 see `web.certificate` first. Read again when it changes." },
    Field { key: "grid.host_key", kind: Type::Text, default: "", env: "RENKEI_GRID_HOST_KEY",
        effect: "Its private key: a PEM file of mode 600 or 400, as an absolute path." },
    Field { key: "grid.revocation", kind: Type::Text, default: "if-present", env: "RENKEI_GRID_REVOCATION",
        effect: "Whether an authority needs a revocation list (.r0): `require`, or `if-present`. An expired list refuses in both." },
    Field { key: "grid.signing_policy", kind: Type::Text, default: "require", env: "RENKEI_GRID_SIGNING_POLICY",
        effect: "Whether an authority needs a .signing_policy file: `require`, or `if-present`. One that is there is enforced in both." },
    Field { key: "grid.weak_digests", kind: Type::Bool, default: "false", env: "RENKEI_GRID_WEAK_DIGESTS",
        effect: "Accept RSA signatures with SHA-1 in grid certificates and revocation lists, too." },
    Field { key: "kerberos.keytab", kind: Type::Text, default: "/etc/krb5.keytab", env: "RENKEI_KERBEROS_KEYTAB",
        effect: "The keytab with the keys of the service HTTP of this machine (`HTTP/HOST@REALM`): an absolute path, readable by the PoP's account and \
                 not by all. Where it has such keys, HTTP clients may show Kerberos tickets (`Negotiate`). Read again when it changes. Empty: none are accepted." },
    Field { key: "tpc.hosts", kind: Type::List, default: "*", env: "RENKEI_TPC_HOSTS",
        effect: "Servers that files are copied from and to by third-party copy: `*` for all at public addresses, `HOST`, `HOST:PORT`, \
                 `*.DOMAIN`, an address, or a network as `10.1.0.0/16`. Addresses of this machine, the local link and private networks are \
                 reached only if the host, address or network is listed by itself, or is an endpoint of a trusted site. Empty: none \
                 but trusted sites." },
    Field { key: "tpc.authorities", kind: Type::Text, default: "", env: "RENKEI_TPC_AUTHORITIES",
        effect: "A folder of certificates (PEM, `*.pem`, `*.crt` and `*.0`) of authorities that certify such servers, beside those of \
                 this machine, as `/etc/grid-security/certificates`. An absolute path." },
    Field { key: "tpc.token_hosts", kind: Type::List, default: "[]", env: "RENKEI_TPC_TOKEN_HOSTS",
        effect: "Servers, written as in `tpc.hosts`, that get the user's token for the other server, too, when that one redirects to \
                 them. Empty: the token goes to the server that the user named alone." },
    Field { key: "tpc.max_running", kind: Type::Number("copies"), default: "32", env: "RENKEI_TPC_MAX_RUNNING",
        effect: "Third-party copies that run at a time; others wait." },
    Field { key: "tpc.max_running_user", kind: Type::Number("copies"), default: "16", env: "RENKEI_TPC_MAX_RUNNING_USER",
        effect: "Of these, one user's." },
    Field { key: "tpc.first_byte_timeout_s", kind: Type::Number("seconds"), default: "300", env: "RENKEI_TPC_FIRST_BYTE_TIMEOUT_S",
        effect: "How long the other server may take to begin its answer: it may bring the file from tape or compute a digest. \
                 `stall_timeout_s` holds between two pieces of the content." },
    Field { key: "tpc.min_bytes_per_s", kind: Type::Number("bytes a second"), default: "10240", env: "RENKEI_TPC_MIN_BYTES_PER_S",
        effect: "Least rate at which another server sends the content of a copy on a connection; a slower one ends the copy (RK-TPC-5), so \
                 that it does not keep its place. 0: no such limit." },
    Field { key: "tpc.slow_window_s", kind: Type::Number("seconds"), default: "120", env: "RENKEI_TPC_SLOW_WINDOW_S",
        effect: "The time over which that rate is measured; the wait for the first byte does not count." },
    Field { key: "tpc.firefly", kind: Type::Text, default: "", env: "RENKEI_TPC_FIREFLY",
        effect: "`HOST:PORT` to which a UDP packet is sent at the start and end of each copy that has a SciTag (scitags.org). Empty: none." },
    Field { key: "s3.domains", kind: Type::List, default: "[]", env: "RENKEI_S3_DOMAINS",
        effect: "Names of the PoP below which buckets are hosts, as `s3.kek.jp` for `data.s3.kek.jp`; the certificate must name them. \
                 Buckets in paths work without." },
    Field { key: "s3.buckets", kind: Type::List, default: "[]", env: "RENKEI_S3_BUCKETS",
        effect: "Folders that are buckets, beside storages and volumes, as `run7=/data/run7`." },
    Field { key: "limits.max_circuits", kind: Type::Number("connections"), default: "256", env: "RENKEI_LIMITS_MAX_CIRCUITS",
        effect: "Connections passed on at a time, at most half of them for one principal; more are refused with RK-ROUTE-5." },
    Field { key: "log.filter", kind: Type::Text, default: "info", env: "RENKEI_LOG_FILTER",
        effect: "Which events are logged, as `info` or `renkei_mover=debug,info`." },
    Field { key: "log.format", kind: Type::Text, default: "text", env: "RENKEI_LOG_FORMAT",
        effect: "`text` for people, `json` for collectors." },
    Field { key: "storage.NAME.path", kind: Type::Text, default: "", env: "",
        effect: "The root directory of storage NAME: an absolute path. Nothing outside it can be reached. Left out where `agent` \
                 is set." },
    Field { key: "storage.NAME.read_only", kind: Type::Bool, default: "false", env: "",
        effect: "Refuse every change in this storage." },
    Field { key: "storage.NAME.require_mount", kind: Type::Bool, default: "false", env: "",
        effect: "Stop the storage with RK-STORE-28 while nothing is mounted at its root directory. `renkei storage add` sets it where \
                 something is." },
    Field { key: "storage.NAME.account", kind: Type::Text, default: "", env: "",
        effect: "Do all I/O on this storage as this account. Without it, as the account the principal is mapped to." },
    Field { key: "storage.NAME.agent", kind: Type::Text, default: "", env: "",
        effect: "The storage is where this PoP cannot mount it: an agent that this account runs there (`renkei agent`) serves \
                 it, to those who are mapped to the account." },
    Field { key: "storage.NAME.checksums", kind: Type::List, default: "", env: "",
        effect: "As `checksums`, for this storage alone." },
    Field { key: "rule.NAME.from", kind: Type::Text, default: "", env: "",
        effect: "The drop folder of rule NAME, `SITE:/STORAGE/PATH` at this site: what ordinary tools put there is forwarded." },
    Field { key: "rule.NAME.to", kind: Type::Text, default: "", env: "",
        effect: "Where it is forwarded to, `SITE:/STORAGE/PATH`: the same tree of folders, made as needed." },
    Field { key: "rule.NAME.settle_s", kind: Type::Number("seconds"), default: "10", env: "",
        effect: "How long a file must stay unchanged, with no process writing to it, to count as complete." },
    Field { key: "rule.NAME.then", kind: Type::Text, default: "keep", env: "",
        effect: "`keep`: a file that arrived stays in the drop folder. `remove`: it is removed there if it did not change." },
    Field { key: "rule.NAME.class", kind: Type::Text, default: "normal", env: "",
        effect: "How much of the path the rule's transfers take: `normal`, or `background` for what others leave." },
    Field { key: "route.NAME.pin", kind: Type::Text, default: "", env: "",
        effect: "The only way to take to site NAME: `direct`, `line` (it is called over its line to this PoP), or the name of a \
                 site whose PoP passes the connection on." },
    Field { key: "route.NAME.forbid", kind: Type::List, default: "[]", env: "",
        effect: "Ways to site NAME that are not taken, named as in `pin`." },
];

/// The field of a key in the code.
pub(super) fn by_key(key: &str) -> &'static Field {
    FIELDS.iter().find(|field| field.key == key).expect("flags name fields of the table")
}

/// Fields set by the environment: field, text and the variable's name.
pub(super) fn from_environment(
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<(&'static Field, String, String)> {
    FIELDS
        .iter()
        .filter(|field| !field.env.is_empty())
        .filter_map(|field| variable(field.env).map(|text| (field, text, field.env.to_owned())))
        .collect()
}

/// Parses texts into a configuration; an error names the origin of the text.
pub(super) fn apply(
    mut config: Config,
    settings: impl Iterator<Item = (&'static Field, String, String)>,
) -> Result<Config, Error> {
    for (field, text, origin) in settings {
        let bad = |cause: String| Error::new(Code::ConfigInvalid, "read configuration", &origin, cause);
        let value = field.kind.parse(&text).map_err(bad)?;
        let mut tree = toml::Table::try_from(&config).expect("the configuration is plain data");
        *leaf(&mut tree, field.key) = value;
        config = tree.try_into().map_err(|error: toml::de::Error| bad(explain(error.message())))?;
    }
    Ok(config)
}

fn leaf<'a>(tree: &'a mut toml::Table, key: &str) -> &'a mut toml::Value {
    let empty = || toml::Value::Table(toml::Table::new());
    match key.split_once('.') {
        None => tree.entry(key).or_insert_with(empty),
        Some((table, rest)) => match tree.entry(table).or_insert_with(empty) {
            toml::Value::Table(below) => leaf(below, rest),
            _ => unreachable!("a dotted key of the table starts with a table"),
        },
    }
}

impl Type {
    fn parse(self, text: &str) -> Result<toml::Value, String> {
        match self {
            Type::Text => Ok(toml::Value::String(text.into())),
            Type::List => Ok(text
                .split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .into()),
            Type::Bool => {
                text.parse().map(toml::Value::Boolean).map_err(|_| format!("`{text}` is not true or false"))
            }
            Type::Number(unit) => text
                .parse()
                .map(toml::Value::Integer)
                .map_err(|_| format!("`{text}` is not a whole number of {unit}")),
        }
    }

    fn describe(self) -> String {
        match self {
            Type::Text => "text".into(),
            Type::List => "text or list".into(),
            Type::Bool => "true or false".into(),
            Type::Number(unit) => format!("number of {unit}"),
        }
    }
}

/// Adds "did you mean" to the parser's message about an unknown field.
pub(super) fn explain(message: &str) -> String {
    let message = message.trim_end();
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let Some(unknown) = unknown else { return message.into() };
    let known = FIELDS.iter().flat_map(|field| field.key.split('.')).filter(|part| *part != "NAME");
    match nearest(unknown, known) {
        Some(key) if key == unknown => {
            format!("the field `{key}` does not belong in this table; docs/config.md has its place")
        }
        Some(key) => format!("there is no field `{unknown}`; did you mean `{key}`?"),
        None => message.into(),
    }
}

/// The known word nearest to a mistyped one; the word itself, if it is known.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (far, word) = known.map(|word| (distance(unknown, word), word)).min()?;
    // A distance over half of the typed length is no typo any more.
    (far * 2 <= unknown.len().max(2)).then_some(word)
}

/// Levenshtein edit distance, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The text of docs/config.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         One file, `config.toml`, in the PoP's directory (`--dir`, `RENKEI_DIR`; `/etc/renkei` for root,\n\
         `~/.config/renkei` otherwise). Order: default < file < environment < flag. An unknown field is an error.\n\
         This page is printed by `renkei docs config`.\n\n\
         | field | type | default | environment | effect |\n|---|---|---|---|---|\n",
    );
    for field in FIELDS {
        let code = |text: &str| if text.is_empty() { "-".into() } else { format!("`{text}`") };
        writeln!(
            out,
            "| `{}` | {} | {} | {} | {} |",
            field.key,
            field.kind.describe(),
            code(field.default),
            code(field.env),
            field.effect
        )
        .expect("writing to a string cannot fail");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Route, Storage};
    use std::collections::BTreeSet;

    /// A configuration in which every field is set, so that its serialised form shows all keys.
    fn full() -> Config {
        let storage = Storage {
            path: "/x".into(),
            read_only: false,
            require_mount: false,
            account: Some("a".into()),
            agent: Some("b".into()),
            checksums: Some(crate::Checksums::default()),
        };
        let rule = toml::from_str("from = 'kek:/data'\nto = 'titech:/data'").unwrap();
        let route = Route { pin: Some("direct".into()), forbid: Vec::new() };
        Config {
            site: Some(renkei_core::path::SiteName::parse("kek").unwrap()),
            storage: [("NAME".to_owned(), storage)].into(),
            rule: [("NAME".to_owned(), rule)].into(),
            route: [(renkei_core::path::SiteName::parse("name").unwrap(), route)].into(),
            ..Config::default()
        }
    }

    fn keys(prefix: &str, table: &toml::Table, out: &mut BTreeSet<String>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(below) => keys(&format!("{prefix}{name}."), below, out),
                _ => {
                    out.insert(format!("{prefix}{name}"));
                }
            }
        }
    }

    #[test]
    fn the_table_and_the_types_agree() {
        let mut of_types = BTreeSet::new();
        keys("", &toml::Table::try_from(full()).unwrap(), &mut of_types);
        let of_types: BTreeSet<String> =
            of_types.iter().map(|key| key.replace("route.name.", "route.NAME.")).collect();
        let of_table: BTreeSet<String> = FIELDS.iter().map(|field| field.key.to_owned()).collect();
        assert_eq!(of_types, of_table);
    }

    #[test]
    fn the_documented_defaults_are_the_real_ones() {
        let tree = toml::Table::try_from(Config::default()).unwrap();
        for field in FIELDS.iter().filter(|field| !field.key.contains("NAME") && field.key != "site") {
            let mut value = &toml::Value::Table(tree.clone());
            for part in field.key.split('.') {
                value = &value[part];
            }
            let real = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Array(list) if !list.is_empty() => list[0].as_str().unwrap().into(),
                other => other.to_string(),
            };
            assert_eq!(real, field.default, "{}", field.key);
        }
    }

    #[test]
    fn variables_are_named_after_their_field() {
        for field in FIELDS.iter().filter(|field| !field.env.is_empty()) {
            assert_eq!(field.env, format!("RENKEI_{}", field.key.to_uppercase().replace('.', "_")));
        }
    }

    #[test]
    fn suggestions_are_similar() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert!(explain("unknown field `endpoint`, expected one of").contains("did you mean `endpoints`"));
        assert!(
            explain("unknown field `endpoints`, expected one of").contains("does not belong in this table")
        );
        assert!(!explain("unknown field `zzzzzz`, expected one of").contains("did you mean"));
    }

    #[test]
    fn the_page_has_every_field() {
        let page = markdown();
        assert!(FIELDS.iter().all(|field| page.contains(&format!("| `{}` |", field.key))));
    }
}
