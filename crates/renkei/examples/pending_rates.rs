//! What a site that follows a volume does with many changes that its home does not have yet: makes files, lists their
//! directory, starts anew, hands all in and takes the records back. Prints one line of JSON.
//!
//! `pending_rates FILES [--dirs N] [--others N] [--clash] [--in FOLDER]`: so many files of 10 bytes in one directory, or in N of
//! them, each its own content; catalogues in SQLite, the home's in the same process and without a network. `--others N`:
//! while the changes go in, another site makes N files, a batch of both in turn. `--clash`: the other site made the directories and
//! every tenth file before. A name is made durable with 99 others. Rates in wall time, of one thread.

use renkei_catalogue::{Trees, VolumeTree};
use renkei_config::home::Home;
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{
    Attributes, Change, Content, Dentry, Name, NewKind, NodeId, Origin, ROOT, Record, SequencedChange,
};
use renkei_core::path::RelPath;
use renkei_store::leases::LeaseTable;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::temp::temp_name;
use renkei_store::{Dir, ReadFile, Space, Store};
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::plain_file::Writer;
use renkei_volume::follower::view::{Fetch, FollowedStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const HERE: Origin = Origin(1);
const OTHER: Origin = Origin(2);
const BATCH: usize = 1000;
const DURABLE: u64 = 100;

struct Wanted {
    files: u64,
    dirs: u64,
    others: u64,
    clash: bool,
    folder: Option<PathBuf>,
}

impl Wanted {
    fn parse() -> Wanted {
        let mut wanted = Wanted { files: 1000, dirs: 1, others: 0, clash: false, folder: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value follows");
            match word.as_str() {
                "--dirs" => wanted.dirs = value().parse().expect("a number"),
                "--others" => wanted.others = value().parse().expect("a number"),
                "--clash" => wanted.clash = true,
                "--in" => wanted.folder = Some(value().into()),
                number => wanted.files = number.parse().expect("a number of files"),
            }
        }
        wanted
    }

    fn dir(&self, index: u64) -> String {
        format!("run-{:05}", index % self.dirs)
    }
}

/// Nobody else has content here.
struct Nobody;

impl Fetch for Nobody {
    fn open(
        &self,
        path: &RelPath,
        _id: NodeId,
        _content: &Content,
        _stamp: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error> {
        Err(Error::new(Code::PathNotFound, "open", path, "nobody has it"))
    }

    fn space(&self) -> Space {
        Space::default()
    }
}

fn file_name(index: u64) -> String {
    format!("sample-{index:08}.fastq.gz")
}

fn store(pending: &Arc<Outbox>, plain: &Path) -> FollowedStore {
    let plain = Arc::new(LocalStore::open(plain, AccessMode::ReadWrite).expect("a folder"));
    let writer = Writer { plain, owner: "alice".into(), group: "genomics".into() };
    FollowedStore::new(pending.clone(), &[7; 16], Arc::new(Nobody), "home".into(), Some(writer))
}

fn write(dir: &Arc<dyn Dir>, name: &str) {
    let temp = temp_name(7, &RelPath::parse(name.as_bytes()).expect("a name"));
    let file = dir.create_temp(&temp, false).expect("a file");
    file.write_at(b"ten bytes.", 0).expect("room");
    drop(file);
    dir.rename(&temp, &**dir, name.as_bytes()).expect("a name");
}

/// What another site makes.
fn make(number: u64, dir: NodeId, name: String, kind: NewKind) -> SequencedChange {
    let attributes = Attributes {
        mode: 0o755,
        owner: "bob".into(),
        group: "genomics".into(),
        mtime: FileTime { secs: 1_700_000_000, nanos: 1 },
    };
    let at = Dentry { dir, name: Name(name.into_bytes()) };
    let change = Change::Make { id: OTHER.id(number), at, kind, attributes, keep_both: true };
    SequencedChange { origin: OTHER, number, change }
}

fn all_names(store: &FollowedStore) -> u64 {
    let (mut count, mut dirs) = (0, vec![store.root().expect("it is there")]);
    while let Some(dir) = dirs.pop() {
        for listed in dir.list().expect("it is there") {
            let listed = listed.expect("it is there");
            let (entry, _) = dir.entry(&listed.name, renkei_store::Detail::Basic).expect("it is there");
            if entry.kind == renkei_core::entry::EntryKind::Dir {
                dirs.push(dir.child(&listed.name).expect("it is there"));
            }
            count += 1;
        }
    }
    count
}

fn status_mb(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

struct Bench {
    wanted: Wanted,
    home: Arc<VolumeTree>,
    found: Vec<(&'static str, f64)>,
    /// What the other site made last.
    made: u64,
}

impl Bench {
    fn note(&mut self, what: &'static str, start: Instant) {
        self.found.push((what, start.elapsed().as_secs_f64()));
    }

    /// The other site makes directories of the same names, and every tenth file.
    fn clash(&mut self) -> Vec<Record> {
        let mut changes = Vec::new();
        for index in 0..self.wanted.dirs {
            changes.push(make(index + 1, ROOT, self.wanted.dir(index), NewKind::Dir));
        }
        self.made = self.wanted.dirs;
        for index in (0..self.wanted.files).step_by(10) {
            self.made += 1;
            let dir = OTHER.id(index % self.wanted.dirs + 1);
            let kind = NewKind::Content { size: 10, digest: None };
            changes.push(make(self.made, dir, file_name(index), kind));
        }
        let batches = changes.chunks(BATCH);
        batches.flat_map(|batch| self.home.decide(batch).expect("the database works")).collect()
    }

    fn write_all(&mut self, pending: &Arc<Outbox>, store: &FollowedStore) {
        let (root, start) = (store.root().expect("it is there"), Instant::now());
        let dirs: Vec<Arc<dyn Dir>> = (0..self.wanted.dirs)
            .map(|index| {
                let name = self.wanted.dir(index);
                root.mkdir(name.as_bytes(), 0o755).expect("a directory");
                root.child(name.as_bytes()).expect("it is there")
            })
            .collect();
        let mut tenth = start;
        for index in 0..self.wanted.files {
            if index == self.wanted.files - self.wanted.files / 10 {
                tenth = Instant::now();
            }
            write(&dirs[(index % self.wanted.dirs) as usize], &file_name(index));
            if (index + 1) % DURABLE == 0 {
                pending.flush().expect("the database works");
            }
        }
        pending.flush().expect("the database works");
        self.note("write_s", start);
        self.note("write_last_tenth_s", tenth);
    }

    /// Hands in a batch and takes the records back, with those of the other site among them, until nothing is left.
    fn hand_in(&mut self, pending: &Outbox) {
        let (mut sent, mut deciding, mut taking) = (0, 0.0, 0.0);
        let mut others = self.wanted.others;
        loop {
            let changes = pending.next_kept(sent, BATCH).expect("the database works");
            let Some(last) = changes.last() else { break };
            sent = last.number;
            let start = Instant::now();
            let mut records = Vec::new();
            let count = others.min(BATCH as u64);
            let theirs: Vec<SequencedChange> = (0..count)
                .map(|index| {
                    make(self.made + index + 1, ROOT, format!("other-{}", others - index), NewKind::File)
                })
                .collect();
            (others, self.made) = (others - count, self.made + count);
            records.extend(self.home.decide(&theirs).expect("the database works"));
            records.extend(self.home.decide(&changes).expect("the database works"));
            deciding += start.elapsed().as_secs_f64();
            let start = Instant::now();
            for run in records.chunk_by(|a, b| a.origin == b.origin) {
                pending.turn().follow(run, &[]).expect("the database works");
            }
            taking += start.elapsed().as_secs_f64();
        }
        self.found.push(("home_decides_s", deciding));
        self.found.push(("take_records_s", taking));
        assert_eq!(pending.count(), 0);
    }
}

fn main() {
    let wanted = Wanted::parse();
    let own = std::env::temp_dir().join(format!("pending-rates-{}", std::process::id()));
    let folder = wanted.folder.clone().unwrap_or(own);
    let plain = folder.join("plain");
    std::fs::create_dir_all(&plain).expect("a folder");
    let open = |name: &str| Trees::open("", &Home::at(&folder.join(name))).expect("the database opens");
    let (home, here) = (open("home"), open("here"));
    let (home, journal) = (home.tree([7; 16]).expect("it opens"), folder.join("unkept"));
    let begin = || {
        let tree = here.tree([7; 16]).expect("it opens");
        Outbox::open("bench", tree, &journal, LeaseTable::default()).expect("it opens")
    };
    let mut bench = Bench { wanted, home, found: Vec::new(), made: 0 };
    let before = status_mb("VmRSS");
    let pending = begin();
    pending.enlist(HERE, true).expect("the database works");
    let seen = store(&pending, &plain);
    bench.write_all(&pending, &seen);
    bench.found.push(("mb_of_memory", status_mb("VmRSS") - before));
    let start = Instant::now();
    let count = all_names(&seen);
    bench.note("list_s", start);
    assert_eq!(count, bench.wanted.files + bench.wanted.dirs);
    pending.stop();
    drop((pending, seen));
    let start = Instant::now();
    let pending = begin();
    bench.note("restart_s", start);
    if bench.wanted.clash {
        let records = bench.clash();
        let start = Instant::now();
        pending.turn().follow(&records, &[]).expect("the database works");
        bench.note("take_clash_s", start);
    }
    bench.hand_in(&pending);
    let found: Vec<String> =
        bench.found.iter().map(|(what, value)| format!("\"{what}\": {value:.3}")).collect();
    println!("{{\"files\": {}, \"dirs\": {}, {}}}", bench.wanted.files, bench.wanted.dirs, found.join(", "));
    pending.stop();
    if bench.wanted.folder.is_none() {
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
