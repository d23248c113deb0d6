//! Rights of restricted credentials, and the words by which tokens of the grid name them.
//!
//! A word such as `storage.read:/data` (WLCG Common JWT Profile, capability scopes) gives rights to a path prefix. The
//! prefix covers its own path and all below it, by whole components: `/data` covers `/data/x`, not `/database`.

use crate::error::{Code, Error};
use crate::path::{Place, RelPath, SiteName};
use crate::wire::copy::CopySender;
use crate::wire::file::{Op, Precondition, Start};
use crate::wire::message::{OpenSend, Request};
use crate::wire::uploads::UploadOp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::BitOr;

/// A set of rights to a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Rights(u8);

/// The single rights with their names.
const NAMES: [(Rights, &str); 6] = [
    (Rights::READ, "read"),
    (Rights::CREATE, "create"),
    (Rights::MODIFY, "modify"),
    (Rights::DELETE, "delete"),
    (Rights::LIST, "list"),
    (Rights::STAGE, "stage"),
];

/// The words of the profile, and their rights. `storage.read` includes the list of a directory: the profile has no word
/// for it, and no tree is read without. `storage.modify` includes `storage.create`, and removal.
const WORDS: [(&str, Rights); 6] = [
    ("storage.read", Rights::READ.and(Rights::LIST)),
    ("storage.create", Rights::CREATE),
    ("storage.modify", Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE)),
    ("storage.stage", Rights::STAGE),
    // Of SciTokens.
    ("read", Rights::READ.and(Rights::LIST)),
    ("write", Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE)),
];

impl Rights {
    /// No right: the metadata of the place itself may be read, and nothing below it.
    pub const NONE: Rights = Rights(0);
    /// Read content.
    pub const READ: Rights = Rights(1);
    /// Make new files, directories and links.
    pub const CREATE: Rights = Rights(2);
    /// Overwrite and rename what exists, and change its attributes.
    pub const MODIFY: Rights = Rights(4);
    /// Remove.
    pub const DELETE: Rights = Rights(8);
    /// List directories.
    pub const LIST: Rights = Rights(16);
    /// Bring files from tape, and release them.
    pub const STAGE: Rights = Rights(32);

    /// All rights.
    pub const ALL: Rights = Rights(63);

    /// All of both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Those in both.
    pub const fn common(self, other: Rights) -> Rights {
        Rights(self.0 & other.0)
    }

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// The right with a name, such as `read`.
    pub fn parse(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(right, _)| *right)
    }

    /// The names of the single rights.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(right, _)| self.contains(*right)).map(|(_, name)| *name)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Rights {
    type Output = Rights;
    fn bitor(self, other: Rights) -> Rights {
        self.and(other)
    }
}

impl TryFrom<u8> for Rights {
    type Error = &'static str;
    fn try_from(bits: u8) -> Result<Self, &'static str> {
        match Rights::ALL.contains(Rights(bits)) {
            true => Ok(Rights(bits)),
            false => Err("a right of a younger version"),
        }
    }
}

impl From<Rights> for u8 {
    fn from(rights: Rights) -> u8 {
        rights.0
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.write_str(if names.is_empty() { "look at" } else { "" })?;
        f.write_str(&names.join("+"))
    }
}

/// Rights to a path prefix, as one word of a token gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The rights.
    pub rights: Rights,
    /// The prefix; none for all storages.
    pub prefix: Option<Place>,
}

impl Capability {
    /// Whether a word of a scope is about storage.
    pub fn is_word(text: &str) -> bool {
        let name = text.split(':').next().unwrap_or_default();
        WORDS.iter().any(|(known, _)| *known == name)
    }

    /// Parses one word, such as `storage.read:/data`.
    ///
    /// # Errors
    /// `UsageInvalid` for an unknown word or a word without a path, `BadPath` for a path that is not absolute and normal.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |cause: String| Error::new(Code::UsageInvalid, "read scope", text, cause);
        let (word, path) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, rights)) = WORDS.iter().find(|(known, _)| *known == word) else {
            return Err(bad(format!("unknown word; known are {}", WORDS.map(|(known, _)| known).join(", "))));
        };
        if path.is_empty() {
            return Err(bad(format!("it names no path; write {word}:/STORAGE/PATH")));
        }
        Ok(Capability { rights: *rights, prefix: prefix(path)? })
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.prefix {
            Some(place) => write!(f, "{} {place}", self.rights),
            None => write!(f, "{} /", self.rights),
        }
    }
}

/// The place of an absolute path in its normal form, none for all storages; a slash at its end is allowed.
///
/// # Errors
/// `BadPath` for a path that is not absolute, or has empty parts, `.` or `..`.
pub fn prefix(path: &str) -> Result<Option<Place>, Error> {
    let refused = |cause: &str| Err(Error::new(Code::BadPath, "read scope", path, cause));
    let Some(inner) = path.strip_prefix('/') else { return refused("the path of a scope begins with /") };
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if !inner.is_empty() && inner.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refused("the path of a scope has no empty parts, no `.` and no `..`");
    }
    Place::parse(path.as_bytes())
}

/// The rights that an operation of a file session needs, each with its path. Operations on handles need none: their
/// rights were checked when the handle was opened.
pub fn rights_of(op: &Op) -> Vec<(Rights, &RelPath)> {
    const WRITE: Rights = Rights::CREATE.and(Rights::MODIFY);
    match op {
        Op::Look(path) | Op::LookFull(path) | Op::FindLock { path, .. } => vec![(Rights::NONE, path)],
        Op::FileHandle(path) | Op::Locality(path) => vec![(Rights::NONE, path)],
        Op::Stage(path) | Op::Release(path) => vec![(Rights::STAGE, path)],
        Op::OpenDir(path) => vec![(Rights::LIST, path)],
        Op::Open(path) | Op::Peek { path, .. } => vec![(Rights::READ, path)],
        Op::Draft { path, start: Start::New | Start::OnlyNew, .. } => vec![(Rights::CREATE, path)],
        Op::Draft { path, start: Start::Empty, .. } => vec![(WRITE, path)],
        Op::Upload { path, op: UploadOp::Complete { condition, .. } } => match condition {
            Precondition::Absent => vec![(Rights::CREATE, path)],
            Precondition::None | Precondition::Version(_) => vec![(WRITE, path)],
        },
        // Parts are seen by none before they are completed.
        Op::Upload { path, .. } => vec![(Rights::CREATE, path)],
        // A draft with the present content can be read.
        Op::Draft { path, start: Start::Content, .. } | Op::Resume { path, .. } => {
            vec![(WRITE | Rights::READ, path)]
        }
        Op::Alter { path, .. } | Op::SetXattr { path, .. } | Op::Lock { path, .. } => {
            vec![(Rights::MODIFY, path)]
        }
        Op::MakeDir { path, .. } | Op::MakeSymlink { path, .. } => vec![(Rights::CREATE, path)],
        // By a further name the file can be read and changed with the rights to that name.
        Op::MakeLink { from, to } => vec![(Rights::READ | Rights::MODIFY, from), (Rights::CREATE, to)],
        Op::Remove(path) | Op::RemoveDir(path) => vec![(Rights::DELETE, path)],
        Op::Rename { from, to, replace } => {
            let there = if *replace { WRITE } else { Rights::CREATE };
            vec![(Rights::MODIFY, from), (there, to)]
        }
        Op::ReadDir(_)
        | Op::Read { .. }
        | Op::Write { .. }
        | Op::SetLen { .. }
        | Op::Publish { .. }
        | Op::PublishIf { .. }
        | Op::PublishWith { .. } => Vec::new(),
        // The path of a handle is checked once it is found.
        Op::Close(_) | Op::Space | Op::Await { .. } | Op::Checksum { .. } | Op::ByHandle(_) => Vec::new(),
    }
}

/// The same operation on new files alone, which needs no right to modify; none if it has no such form.
pub fn only_new(op: &Op) -> Option<Op> {
    match op {
        Op::Draft { path, start: Start::Empty, mode } => {
            Some(Op::Draft { path: path.clone(), start: Start::OnlyNew, mode: *mode })
        }
        Op::Upload { path, op } => match op.clone() {
            UploadOp::Complete { upload, parts, condition: Precondition::None, mtime, attributes } => {
                let condition = Precondition::Absent;
                let op = UploadOp::Complete { upload, parts, condition, mtime, attributes };
                Some(Op::Upload { path: path.clone(), op })
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether an operation is refused where files are opened for reading alone. Locks are not: readers lock what they read.
/// Operations on drafts have no path, and no draft is begun there.
pub fn is_change(op: &Op) -> bool {
    const CHANGES: Rights = Rights::CREATE.and(Rights::MODIFY).and(Rights::DELETE);
    !matches!(op, Op::Lock { .. })
        && rights_of(op).iter().any(|(rights, _)| !rights.common(CHANGES).is_empty())
}

/// What a request needs of a restricted credential.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Needed<'a> {
    /// Places of the asked site; for each, one of these sets of rights.
    pub places: Vec<(&'static [Rights], &'a Place)>,
    /// The destination of a transfer: rights to it, or to names directly in it.
    pub target: Option<(Rights, &'a Place)>,
    /// Another site, with one of these sets of rights to any of its places.
    pub partner: Option<(&'static [Rights], &'a SiteName)>,
}

const LOOK: &[Rights] = &[Rights::NONE];
const LIST: &[Rights] = &[Rights::LIST];
const READ: &[Rights] = &[Rights::READ];
const CREATE: &[Rights] = &[Rights::CREATE];
const MODIFY: &[Rights] = &[Rights::MODIFY];
const DELETE: &[Rights] = &[Rights::DELETE];
const DELETE_TREE: &[Rights] = &[Rights::DELETE.and(Rights::LIST)];
/// The digest of content is for those who can read it, and for those who wrote it.
const DIGEST: &[Rights] = &[Rights::READ, Rights::MODIFY];
const SEND: &[Rights] = &[Rights::READ.and(Rights::LIST)];
const RECEIVE: Rights = Rights::CREATE.and(Rights::MODIFY);
const RECEIVES: &[Rights] = &[RECEIVE];
/// A circuit carries a session of the credential to any site that it is for.
const PASS: &[Rights] = &[Rights::READ, Rights::CREATE, Rights::MODIFY];

/// The rights that a request needs, for each kind; none for a kind that no restricted credential may make.
pub fn rights_for(request: &Request) -> Option<Needed<'_>> {
    let place = |any_of, place| Some(Needed { places: vec![(any_of, place)], ..Needed::default() });
    let target = |place, delete: bool| {
        let rights = if delete { RECEIVE | Rights::DELETE } else { RECEIVE };
        Needed { target: Some((rights, place)), ..Needed::default() }
    };
    let to_site = |partner| Needed { partner: Some(partner), ..Needed::default() };
    let sources = |send| Needed { places: sources(send), ..Needed::default() };
    match request {
        // The credential of a queued transfer is narrowed to the scope by which the transfer is submitted.
        Request::Whoami | Request::SubmitCopies(_) => Some(Needed::default()),
        Request::Stat(Some(at)) | Request::StatDir(Some(at)) | Request::Space(at) => place(LOOK, at),
        Request::List(Some(at)) | Request::Usage(at) => place(LIST, at),
        Request::Mkdir { place: at, .. } => place(CREATE, at),
        Request::Remove { place: at, recursive: false } => place(DELETE, at),
        Request::Remove { place: at, recursive: true } => place(DELETE_TREE, at),
        Request::Rename { from, to } => {
            Some(Needed { places: vec![(MODIFY, from), (RECEIVES, to)], ..Needed::default() })
        }
        Request::Checksum { place: at, .. } | Request::KnownChecksum { place: at, .. } => place(DIGEST, at),
        Request::OpenReceive(open) => Some(target(&open.to, open.options.delete)),
        Request::Grant { open, peer } => {
            Some(Needed { partner: Some((SEND, peer)), ..target(&open.to, open.options.delete) })
        }
        // The layout is resolved, and the place that is written checked, by the destination.
        Request::OpenCopy { copy, by: CopySender::Asker } => place(LOOK, &copy.to),
        Request::OpenCopy { copy, by: CopySender::Site(peer) } => {
            Some(Needed { places: vec![(LOOK, &copy.to)], ..to_site((SEND, peer)) })
        }
        Request::OpenSend(send) => Some(sources(send)),
        Request::Push { send, to, .. } | Request::PushCopy { send, to, .. } => {
            Some(Needed { partner: Some((RECEIVES, to)), ..sources(send) })
        }
        Request::Through { site, .. } => Some(to_site((PASS, site))),
        // Operations are checked one by one. The session opens where the scope is for the place, or for one below it.
        Request::OpenFiles(_) => Some(Needed::default()),
        _ => None,
    }
}

fn sources(send: &OpenSend) -> Vec<(&'static [Rights], &Place)> {
    let rights = if send.recursive { SEND } else { READ };
    send.sources.iter().map(|source| (rights, &source.from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Stamp;
    use crate::lease::locks::{Hold, Span};

    fn parsed(text: &str) -> Result<String, Code> {
        Capability::parse(text).map(|found| found.to_string()).map_err(|error| error.code)
    }

    #[test]
    fn words_give_rights_to_a_prefix() {
        for (text, meant) in [
            ("storage.read:/data", "read+list /data"),
            ("storage.create:/data/in/", "create /data/in"),
            ("storage.modify:/data", "create+modify+delete /data"),
            ("storage.stage:/", "stage /"),
        ] {
            assert_eq!(parsed(text).unwrap(), meant, "{text}");
        }
    }

    #[test]
    fn unknown_words_and_paths_that_are_not_normal_are_refused() {
        for bad in ["storage.poll:/a", "compute.read", "STORAGE.READ:/a", "storage.read", "storage.read:", ""]
        {
            assert_eq!(parsed(bad), Err(Code::UsageInvalid), "{bad}");
        }
        for path in ["data", "/data/../x", "/data/./x", "/data//x", "//data", "/..", "/data/..", "/data//"] {
            assert_eq!(parsed(&format!("storage.read:{path}")), Err(Code::BadPath), "{path}");
        }
    }

    #[test]
    fn a_right_of_a_younger_version_is_not_read() {
        assert!(Rights::try_from(64).is_err() && Rights::try_from(63).is_ok());
    }

    #[test]
    fn operations_name_their_rights() {
        let path = || RelPath::parse(b"a").unwrap();
        let other = || RelPath::parse(b"b").unwrap();
        let shown = |op: Op| {
            let needed = rights_of(&op).into_iter().map(|(rights, path)| format!("{rights} {path}"));
            needed.collect::<Vec<_>>().join(", ")
        };
        let draft = |start| Op::Draft { path: path(), start, mode: 0o644 };
        assert_eq!(shown(draft(Start::New)), "create a");
        assert_eq!(shown(draft(Start::Empty)), "create+modify a");
        assert_eq!(shown(draft(Start::Content)), "read+create+modify a");
        assert_eq!(shown(draft(Start::OnlyNew)), "create a");
        let complete = |condition| Op::Upload {
            path: path(),
            op: UploadOp::Complete {
                upload: 7,
                parts: vec![1],
                condition,
                mtime: None,
                attributes: Vec::new(),
            },
        };
        assert_eq!(shown(Op::Upload { path: path(), op: UploadOp::Begin }), "create a");
        assert_eq!(shown(complete(Precondition::None)), "create+modify a");
        for op in [draft(Start::Empty), complete(Precondition::None)] {
            assert_eq!(shown(only_new(&op).unwrap()), "create a");
        }
        assert_eq!(only_new(&draft(Start::Content)), None);
        assert_eq!(only_new(&complete(Precondition::Version(Stamp::default()))), None);
        assert_eq!(shown(Op::OpenDir(path())), "list a");
        assert_eq!(shown(Op::Remove(path())), "delete a");
        assert_eq!(shown(Op::Stage(path())), "stage a");
        let rename = |replace| Op::Rename { from: path(), to: other(), replace };
        assert_eq!(shown(rename(false)), "modify a, create b");
        assert_eq!(shown(rename(true)), "modify a, create+modify b");
        assert_eq!(shown(Op::MakeLink { from: path(), to: other() }), "read+modify a, create b");
        assert_eq!(shown(Op::Close(1)), "");
    }

    #[test]
    fn changes_are_told_from_reads_and_locks() {
        let path = || RelPath::parse(b"a").unwrap();
        let span = Span { start: 0, end: 1, hold: Hold::Exclusive, pid: 1 };
        let reads = [Op::Look(path()), Op::Open(path()), Op::OpenDir(path()), Op::Space];
        let lock = Op::Lock { path: path(), owner: 1, span };
        assert!(reads.iter().chain([&lock]).all(|op| !is_change(op)));
        let link = Op::MakeLink { from: path(), to: path() };
        let xattr = Op::SetXattr { path: path(), name: b"user.a".to_vec(), value: None };
        let draft = Op::Draft { path: path(), start: Start::Content, mode: 0o644 };
        assert!([Op::Remove(path()), link, xattr, draft].iter().all(is_change));
    }

    #[test]
    fn what_is_not_in_the_table_is_refused() {
        for request in [Request::Status, Request::List(None), Request::Line, Request::Buffer] {
            assert_eq!(rights_for(&request), None, "{request:?}");
        }
        let place = Place::parse(b"/data/a").unwrap().unwrap();
        let remove = |recursive| Request::Remove { place: place.clone(), recursive };
        assert_eq!(rights_for(&remove(false)).unwrap().places, [(DELETE, &place)]);
        assert_eq!(rights_for(&remove(true)).unwrap().places, [(DELETE_TREE, &place)]);
    }
}
