//! Drop folders: complete files in a watched folder are submitted to the queue as their owner, and the outcome is
//! recorded.
//!
//! [`DropFolderScan`] decides which files are complete, and which were submitted already; this state is in memory
//! only. After a restart everything in a folder that keeps its files is submitted once more, and found to be at the
//! destination already. A transfer of a rule belongs to the owner of its files and runs with that account's rights,
//! as if the owner had queued it.

use super::Queue;
use crate::Context;
use crate::access::{Access, Caller, Proof, account_name};
use crate::evidence::Evidence;
use crate::snapshot::Snapshot;
use crate::submission::{now_ms, read_spec};
use crate::transfer::Transfers;
use crate::transfer::rule_arrivals::full_name;
use renkei_catalogue::{Listing, hex_id};
use renkei_config::{Rule, Then};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_mover::{BACKGROUND_STREAMS, fresh_id};
use renkei_net::identity::account::Account;
use renkei_net::identity::login::vouch;
use renkei_store::{Detail, Dir};

use renkei_core::drop_folder::{DropFolderScan, Seen, is_unfinished};
use renkei_core::identity::{MAX_SCOPE_BYTES, Principal};
use renkei_core::mover::layout::CopyForm;
use renkei_core::path::{EndpointPath, Place, RelPath};
use renkei_core::queue::State;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::{Class, Existing, OpenSend, ReceiveOptions, Source, TransferId};
use renkei_core::wire::queue::{Listed, Submission, Terms};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Minimum interval between two scans of a folder.
const EVERY: Duration = Duration::from_secs(1);
/// A scan may take 1/20 of the time.
const LOOK_SHARE: u32 = 20;
/// Maximum files of one transfer: as many as its list of failures can name.
const FILES_OF_ONE: usize = 500;
/// Maximum bytes of the names of one transfer: its credential names each place at both sites.
const NAMES_OF_ONE: usize = MAX_SCOPE_BYTES * 3 / 4;
/// Approximate overhead of a place there beside its path.
const PLACE_BYTES: usize = 48;
/// Lifetime of a cached certificate of an owner.
const PROOF_FOR: Duration = Duration::from_secs(1800);
/// Maximum queued transfers of one rule; more files wait for the next scan.
const UNDER_WAY: usize = 64;
/// Maximum entries of one drop folder that are scanned; others are ignored until some are gone.
const MOST_FILES: usize = 1_000_000;
/// Data streams, as the command line asks for.
const STREAMS: u16 = 64;

/// The state of a rule.
#[derive(Clone, Debug, Default)]
pub struct RuleState {
    /// The time of the last scan.
    pub looked: Option<SystemTime>,
    /// Number of files found by it.
    pub files: usize,
    /// Number of running or queued transfers of the rule.
    pub under_way: usize,
    /// The time of the last submission, and its number of files.
    pub queued: Option<(SystemTime, usize)>,
    /// The current error.
    pub trouble: Option<Error>,
}

/// The drop folders of a PoP.
pub struct DropFolders {
    context: Arc<Context>,
    transfers: Arc<Transfers>,
    queue: Arc<Queue>,
    /// The states of the rules, by name.
    states: Mutex<BTreeMap<String, RuleState>>,
}

/// Starts the thread that processes the rules, which runs as long as the PoP lives.
pub fn spawn_rules(room: &Arc<DropFolders>) -> Result<(), Error> {
    let all = Mutex::new(BTreeMap::new());
    room.context.spawn_every(room, "rules", EVERY, move |room| {
        room.follow_rules(&mut all.lock().expect("one thread alone follows the rules"));
    })
}

/// A rule and the state of its folder.
pub(crate) struct Watched {
    rule: Rule,
    inbox: DropFolderScan,
    /// Submitted files, by transfer.
    sent: HashMap<TransferId, Vec<Seen>>,
    /// Transfers from before the PoP started; their files are submitted again when they end.
    adopted: Option<HashMap<TransferId, Vec<Seen>>>,
    look_at: Instant,
    /// Cached proofs of the owners of files, with their age.
    proofs: HashMap<u32, (Proof, Instant)>,
    /// The last error, so that it is logged once.
    trouble: Option<Error>,
    /// The error of the last transfer that did not bring all its files.
    lost: Option<Error>,
    /// The last scan with its number of files, and the last submission.
    looked: Option<(SystemTime, usize)>,
    queued: Option<(SystemTime, usize)>,
}

impl Watched {
    fn new(rule: &Rule) -> Self {
        let inbox = DropFolderScan::new(rule.settle_s.saturating_mul(1000));
        let (sent, look_at) = (HashMap::new(), Instant::now());
        let proofs = HashMap::new();
        Watched {
            rule: rule.clone(),
            inbox,
            sent,
            adopted: None,
            look_at,
            proofs,
            trouble: None,
            lost: None,
            looked: None,
            queued: None,
        }
    }

    fn state(&self) -> RuleState {
        RuleState {
            looked: self.looked.map(|(at, _)| at),
            files: self.looked.map_or(0, |(_, files)| files),
            under_way: self.sent.len() + self.adopted.as_ref().map_or(0, HashMap::len),
            queued: self.queued,
            trouble: self.trouble.clone().or_else(|| self.lost.clone()),
        }
    }

    /// The place of the drop folder.
    fn from(&self) -> &Place {
        self.rule.from.place.as_ref().expect("what is read as a rule names a storage")
    }
}

/// The label of a rule's transfers.
pub(crate) fn label(rule: &str) -> String {
    format!("rule {rule}")
}

impl DropFolders {
    /// The drop folders, before any of them is scanned.
    pub(crate) fn new(context: &Arc<Context>, transfers: &Arc<Transfers>, queue: &Arc<Queue>) -> Self {
        DropFolders {
            context: context.clone(),
            transfers: transfers.clone(),
            queue: queue.clone(),
            states: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, RuleState>> {
        self.states.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// The states of all rules.
    pub(crate) fn states(&self) -> BTreeMap<String, RuleState> {
        self.lock().clone()
    }

    fn follow_rules(&self, all: &mut BTreeMap<String, Watched>) {
        let snapshot = self.context.last_snapshot();
        let rules = &snapshot.config.rule;
        all.retain(|name, watched| rules.get(name) == Some(&watched.rule));
        for (name, rule) in rules {
            let watched = all.entry(name.clone()).or_insert_with(|| Watched::new(rule));
            let trouble = self.follow(name, watched, &snapshot).err();
            if let Some(error) = trouble.as_ref().filter(|error| watched.trouble.as_ref() != Some(error)) {
                tracing::warn!(rule = name, %error, "a drop folder cannot be forwarded as it should");
            }
            watched.trouble = trouble;
        }
        *self.lock() = all.iter().map(|(name, watched)| (name.clone(), watched.state())).collect();
    }

    /// Handles ended transfers and submits new files. The first error is returned; the rest is processed all the
    /// same.
    fn follow(&self, name: &str, watched: &mut Watched, snapshot: &Arc<Snapshot>) -> Result<(), Error> {
        snapshot.config.check_rule(name, &watched.rule)?;
        let heard = self.hear(watched, snapshot);
        if Instant::now() < watched.look_at {
            return heard;
        }
        let began = Instant::now();
        let named = |error| Error { subject: watched.rule.from.to_string(), ..error };
        let folder = snapshot.store(&watched.from().storage)?.dir(&watched.from().path).map_err(named)?;
        let (found, looked) = look_into(&*folder);
        watched.looked = Some((SystemTime::now(), found.len()));
        let ready = watched.inbox.look(now_ms(), found.iter().cloned());
        watched.look_at = began + (began.elapsed() * LOOK_SHARE).max(EVERY);
        self.adopt(name, watched, &found)?;
        let handed_on = self.hand_on(name, watched, snapshot, &folder, ready);
        heard.and(looked).and(handed_on)
    }

    /// Finds the rule's transfers from before the PoP started, so that their files are not submitted a second time.
    fn adopt(&self, name: &str, watched: &mut Watched, found: &[Seen]) -> Result<(), Error> {
        if watched.adopted.is_some() {
            return Ok(());
        }
        let listed = Listed { label: Some(label(name)), ..Listed::default() };
        let listing = Listing { owner: None, listed: &listed, state: None, limit: UNDER_WAY };
        let rows = self.queue.state.catalogue()?.list(&listing)?;
        let by_path: HashMap<&RelPath, &Seen> = found.iter().map(|seen| (&seen.path, seen)).collect();
        let mut adopted = HashMap::new();
        for row in rows {
            let sources = read_spec(&row)?.send.sources;
            let seen = |source: &Source| by_path.get(&source.to).map(|seen| (*seen).clone());
            let files: Vec<Seen> = sources.iter().filter_map(seen).collect();
            watched.inbox.handed_on(&files);
            adopted.insert(row.id, files);
        }
        watched.adopted = Some(adopted);
        Ok(())
    }

    /// Handles transfers that have ended.
    fn hear(&self, watched: &mut Watched, snapshot: &Arc<Snapshot>) -> Result<(), Error> {
        let mut wrong = Ok(());
        for id in self.ended(watched.adopted.iter().flat_map(HashMap::keys))? {
            let files = watched.adopted.as_mut().and_then(|adopted| adopted.remove(&id));
            // The version of a file that such a transfer sent is unknown.
            watched.inbox.again(&files.unwrap_or_default());
        }
        for id in self.ended(watched.sent.keys())? {
            let files = watched.sent.remove(&id).unwrap_or_default();
            let failed = self.failed_of(&id)?;
            let (lost, arrived): (Vec<Seen>, Vec<Seen>) = files
                .into_iter()
                .partition(|file| failed.as_ref().is_none_or(|failed| failed.contains(&file.path)));
            watched.lost = if lost.is_empty() { None } else { self.why_lost(&id) };
            watched.inbox.failed(now_ms(), &lost);
            watched.inbox.done(&arrived);
            if watched.rule.then == Then::Remove {
                wrong = wrong.and(remove_arrived(watched.from(), snapshot, arrived));
            }
        }
        wrong
    }

    /// The transfers among `ids` that have ended.
    fn ended<'a>(&self, ids: impl Iterator<Item = &'a TransferId>) -> Result<Vec<TransferId>, Error> {
        let ids: Vec<TransferId> = ids.copied().collect();
        if ids.is_empty() {
            return Ok(ids);
        }
        let open: BTreeSet<TransferId> = self
            .queue
            .state
            .catalogue()?
            .states(&ids)?
            .into_iter()
            .filter(|(_, state)| !state.is_end())
            .map(|(id, _)| id)
            .collect();
        Ok(ids.into_iter().filter(|id| !open.contains(id)).collect())
    }

    /// The files of an ended transfer that did not arrive; `None` for all of them.
    fn failed_of(&self, id: &TransferId) -> Result<Option<BTreeSet<RelPath>>, Error> {
        let story = match self.queue.transfer(Caller::Administrator, &hex_id(id)) {
            Ok(story) => story,
            Err(error) if error.code == Code::TransferUnknown => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(match story.transfer.state {
            State::Done => Some(BTreeSet::new()),
            // The files of a cancelled transfer are not submitted again.
            State::Cancelled => Some(BTreeSet::new()),
            _ if story.transfer.summary.is_none() => None,
            _ => Some(story.failures.into_iter().filter(|one| !one.kept).map(|one| one.path).collect()),
        })
    }

    /// The error of an ended transfer that did not bring all its files.
    fn why_lost(&self, id: &TransferId) -> Option<Error> {
        let story = self.queue.transfer(Caller::Administrator, &hex_id(id)).ok()?;
        let first = story.failures.into_iter().find(|one| !one.kept).map(|one| one.error);
        first.or(story.transfer.reason)
    }

    /// Submits complete files, separately for each owner.
    fn hand_on(
        &self,
        name: &str,
        watched: &mut Watched,
        snapshot: &Arc<Snapshot>,
        folder: &Arc<dyn Dir>,
        ready: Vec<Seen>,
    ) -> Result<(), Error> {
        let mut wrong = Ok(());
        for (owner, files) in by_owner(ready) {
            let handed_on = owner_of(owner, snapshot).and_then(|account| {
                let complete = without_writer(&account, folder, files)?;
                match complete.is_empty() {
                    true => Ok(()),
                    false => {
                        let access = self.access_of(&account, &mut watched.proofs)?;
                        self.queue_for(name, watched, &access, complete)
                    }
                }
            });
            wrong = wrong.and(handed_on);
        }
        wrong
    }

    /// The access of an owner, proved by a certificate as from a login at this machine; its key is discarded.
    fn access_of(
        &self,
        account: &Account,
        proofs: &mut HashMap<u32, (Proof, Instant)>,
    ) -> Result<Access, Error> {
        proofs.retain(|_, (_, since)| since.elapsed() < PROOF_FOR);
        if let Some((proof, _)) = proofs.get(&account.uid) {
            return self.context.authorise(proof);
        }
        let proof = self
            .context
            .authenticate(Evidence::Chain(vouch(self.context.home(), account, SystemTime::now())?.into()))?;
        let access = self.context.authorise(&proof)?;
        proofs.insert(account.uid, (proof, Instant::now()));
        Ok(access)
    }

    fn queue_for(
        &self,
        name: &str,
        watched: &mut Watched,
        owner: &Access,
        files: Vec<Seen>,
    ) -> Result<(), Error> {
        for part in parts(&watched.rule, &files) {
            if watched.sent.len() >= UNDER_WAY {
                break;
            }
            let mut rules = self.transfers.arrivals.come_into(watched.from());
            rules.insert(full_name(&watched.rule.from.site, name));
            let submission = submission(name, &watched.rule, part, rules)?;
            let id = submission.send.transfer;
            self.queue.submit(owner, vec![submission])?.into_iter().collect::<Result<(), Error>>()?;
            watched.inbox.handed_on(part);
            watched.queued = Some((SystemTime::now(), part.len()));
            watched.sent.insert(id, part.to_vec());
        }
        Ok(())
    }
}

/// All regular files below a folder, without temporary ones of unfinished copies; also the first error.
fn look_into(folder: &dyn Dir) -> (Vec<Seen>, Result<(), Error>) {
    let (mut found, mut looked) = (Vec::new(), Ok(()));
    let mut to_read = vec![RelPath::root()];
    while let Some(path) = to_read.pop() {
        let read = read_one(folder, &path, &mut found, &mut to_read);
        match read {
            // The directory was removed meanwhile.
            Err(error) if error.code == Code::PathNotFound && !path.is_root() => {}
            read => looked = looked.and(read),
        }
        if found.len() + to_read.len() > MOST_FILES {
            let cause = format!("more than {MOST_FILES} files and folders");
            let error = Error::new(Code::TooManyEntries, "look into", folder.path(), cause);
            return (found, Err(error));
        }
    }
    (found, looked)
}

fn read_one(
    folder: &dyn Dir,
    path: &RelPath,
    found: &mut Vec<Seen>,
    to_read: &mut Vec<RelPath>,
) -> Result<(), Error> {
    let dir = folder.descend(path)?;
    for listed in dir.list()? {
        let name = listed?.name;
        if is_unfinished(&name) {
            continue;
        }
        let (entry, raw) = match dir.entry(&name, Detail::Basic) {
            Err(error) if error.code == Code::PathNotFound => continue,
            entry => entry?,
        };
        let path = path.child(&name)?;
        match entry.kind {
            EntryKind::Dir => to_read.push(path),
            EntryKind::File { stamp, .. } => found.push(Seen { path, stamp, owner: raw.uid }),
            _ => {}
        }
    }
    Ok(())
}

/// The account of a file's owner; the user of that name must be mapped to it, or nothing is forwarded.
fn owner_of(uid: u32, snapshot: &Snapshot) -> Result<Account, Error> {
    let account = Account::lookup_uid(uid)?;
    account.check_servable()?;
    let principal = Principal::user(&snapshot.site, &account.name)?;
    let (mapped, _) = account_name(&principal, snapshot)?;
    if mapped != account.name {
        let cause =
            format!("{principal} is mapped to {mapped}, and files of {} are not forwarded", account.name);
        return Err(Error::new(Code::NotMapped, "forward", &account.name, cause));
    }
    Ok(account)
}

/// The files that are unchanged and have no writer; checked as their owner.
fn without_writer(account: &Account, folder: &Arc<dyn Dir>, files: Vec<Seen>) -> Result<Vec<Seen>, Error> {
    let folder = folder.clone();
    let ask = move || files.into_iter().filter(|file| is_complete(&*folder, file)).collect();
    Ok(account.spawn("rule", ask)?.join().expect("a panic aborts the process"))
}

/// Whether a file is unchanged and has no writer; others are left for the next scan. A file that cannot be opened
/// is not held back: its transfer reports the error.
fn is_complete(folder: &dyn Dir, file: &Seen) -> bool {
    let Some(name) = file.path.name() else { return false };
    let dir = folder.descend(&file.path.parent().unwrap_or_default());
    match dir.and_then(|dir| Ok((dir.entry(name, Detail::Basic)?.0.kind, dir))) {
        Ok((EntryKind::File { stamp, .. }, dir)) if stamp == file.stamp => {
            !dir.open_read(name).is_ok_and(|file| file.has_writer())
        }
        Ok(_) => false,
        Err(error) => !matches!(error.code, Code::PathNotFound | Code::NotADirectory),
    }
}

/// Groups files by owner; they are accessed only as their owner.
fn by_owner(files: Vec<Seen>) -> BTreeMap<u32, Vec<Seen>> {
    let mut owners: BTreeMap<u32, Vec<Seen>> = BTreeMap::new();
    files.into_iter().for_each(|seen| owners.entry(seen.owner).or_default().push(seen));
    owners
}

/// Removes unchanged files that have arrived, as their owners.
fn remove_arrived(from: &Place, snapshot: &Snapshot, files: Vec<Seen>) -> Result<(), Error> {
    let folder = snapshot.store(&from.storage)?.dir(&from.path)?;
    let mut wrong = Ok(());
    for (owner, files) in by_owner(files) {
        let folder = folder.clone();
        let remove = move || files.iter().map(|file| remove_one(&*folder, file)).fold(Ok(()), Result::and);
        let removed = Account::lookup_uid(owner).and_then(|account| account.spawn("rule", remove));
        wrong = wrong.and(removed.and_then(|thread| thread.join().expect("a panic aborts the process")));
    }
    wrong
}

fn remove_one(folder: &dyn Dir, file: &Seen) -> Result<(), Error> {
    let Some(name) = file.path.name() else { return Ok(()) };
    let dir = folder.descend(&file.path.parent().unwrap_or_default())?;
    match dir.entry(name, Detail::Basic) {
        Ok((entry, _)) if matches!(entry.kind, EntryKind::File { stamp, .. } if stamp == file.stamp) => {
            dir.remove_file(name)
        }
        // It was replaced or removed meanwhile.
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::PathNotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Splits files into parts for one transfer each.
fn parts<'a>(rule: &Rule, files: &'a [Seen]) -> Vec<&'a [Seen]> {
    let place = |path: &EndpointPath| path.place.as_ref().map_or(0, |place| place.path.as_bytes().len());
    let each = place(&rule.from) + place(&rule.to) + 2 * PLACE_BYTES;
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, file) in files.iter().enumerate() {
        let more = each + 2 * file.path.as_bytes().len();
        if at > start && (bytes + more > NAMES_OF_ONE || at - start == FILES_OF_ONE) {
            parts.push(&files[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += more;
    }
    parts.push(&files[start..]);
    parts
}

/// A transfer of some files, with their parent folders.
fn submission(name: &str, rule: &Rule, files: &[Seen], rules: BTreeSet<String>) -> Result<Submission, Error> {
    let rules = rules.into_iter().collect();
    let id = fresh_id()?;
    let place = |path: &Option<Place>| path.clone().expect("what is read as a rule names a storage");
    let (from, to) = (place(&rule.from.place), place(&rule.to.place));
    let mut sources = Vec::new();
    for (path, alone) in
        folders_of(files).iter().map(|path| (path, true)).chain(files.iter().map(|file| (&file.path, false)))
    {
        let from = Place { storage: from.storage.clone(), path: from.path.join(path)? };
        sources.push(Source { from, to: path.clone(), alone });
    }
    let max_streams = if rule.class == Class::Background { BACKGROUND_STREAMS } else { STREAMS };
    let job = u64::from_le_bytes(*id.first_chunk().expect("16 bytes"));
    Ok(Submission {
        from: rule.from.site.clone(),
        send: OpenSend { offers: true, class: rule.class, max_streams, ..OpenSend::plain(id, sources) },
        to: rule.to.site.clone(),
        copy: OpenCopy {
            transfer: id,
            job,
            to,
            form: CopyForm { directory: true, contents: false, resumed: false },
            beside: Vec::new(),
            options: ReceiveOptions::plain(Existing::SameStamp),
            class: rule.class,
            max_streams,
            rules,
        },
        terms: Terms { label: label(name), ..Terms::default() },
    })
}

/// The parent folders of files, each after its own parent.
fn folders_of(files: &[Seen]) -> BTreeSet<RelPath> {
    let mut folders = BTreeSet::new();
    for file in files {
        let mut next = file.path.parent();
        while let Some(path) = next.filter(|path| !path.is_root()) {
            next = path.parent();
            if !folders.insert(path) {
                break;
            }
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};

    fn seen(path: &str) -> Seen {
        let path = RelPath::parse(path.as_bytes()).unwrap();
        Seen { path, stamp: renkei_core::entry::Stamp::default(), owner: 0 }
    }

    #[test]
    fn a_scan_finds_complete_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", ".a.Xyz", "b.part", "d/c", "d/.e/f"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let store = LocalStore::open(folder.path(), AccessMode::ReadOnly).unwrap();
        let (mut found, looked) = look_into(&*store.root().unwrap());
        looked.unwrap();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(found.iter().map(|seen| seen.path.to_string()).collect::<Vec<_>>(), ["a", "d/c"]);
    }

    #[test]
    fn missing_and_symlinked_files_are_not_forwarded() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for name in ["a", "gone/f", "link/f", "became", "changed"] {
            std::fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
            std::fs::write(top.join(name), "x").unwrap();
        }
        let store = LocalStore::open(top, AccessMode::ReadOnly).unwrap();
        let root = store.root().unwrap();
        let (found, looked) = look_into(&*root);
        looked.unwrap();
        assert_eq!(found.iter().filter(|file| is_complete(&*root, file)).count(), 5);
        std::fs::remove_dir_all(top.join("gone")).unwrap();
        std::fs::rename(top.join("link"), top.join("real")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        std::fs::remove_file(top.join("became")).unwrap();
        std::os::unix::fs::symlink("a", top.join("became")).unwrap();
        std::fs::write(top.join("changed"), "more").unwrap();
        let complete = found.iter().filter(|file| is_complete(&*root, file));
        assert_eq!(complete.map(|seen| seen.path.to_string()).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn no_part_has_more_names_than_a_credential_holds() {
        let rule: Rule = toml::from_str("from = 'kek:/data/drop'\nto = 'titech:/raw'").unwrap();
        let files: Vec<Seen> = (0..3000).map(|index| seen(&format!("some/long/{index:0100}"))).collect();
        let parts = parts(&rule, &files);
        assert_eq!(parts.concat(), files);
        for part in parts {
            let submission = submission("raw", &rule, part, BTreeSet::new()).unwrap();
            renkei_core::identity::Scope::of_transfer(&submission).unwrap();
        }
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let folders = folders_of(&[seen("a/b/c"), seen("a/d"), seen("e"), seen("a/b/f")]);
        assert_eq!(folders.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "a/b"]);
    }
}
