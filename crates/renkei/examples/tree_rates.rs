//! How fast a volume's tree is in its database, and how large: creates, lookups, lists, writes and renames of a tree
//! of so many files. Prints one line of JSON.
//!
//! `tree_rates ENTRIES [--wide] [--in FOLDER] [--server URL] [--within SECONDS] [--keep]`: files by thousands in directories, or
//! `--wide` in a single one; in SQLite files below the folder (a temporary one by default), or on PostgreSQL. Changes go in
//! batches of 512, each durable before the next begins. Rates are of one thread, where it is not said otherwise, in wall time;
//! memory is that of this process, with the database where it is part of it, and beside it what all processes of PostgreSQL on
//! this machine have (shared pages once). With `--within` it ends after about so many seconds of creates and leaves what there
//! is: the same command goes on there. `--keep` leaves the tree at the end.

use renkei_catalogue::{Trees, VolumeTree};
use renkei_config::home::Home;
use renkei_core::entry::FileTime;
use renkei_core::namespace::{
    Attributes, Base, Change, Dentry, Name, NewKind, NodeId, Origin, ROOT, SequencedChange,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

const BATCH: usize = 512;
const FILES_A_DIR: u64 = 1000;
const PAGE: usize = 1000;
const LOOKUPS: u64 = 50_000;
const CHANGES: u64 = 20_480;
const READERS: u64 = 4;
const HERE: Origin = Origin(0);

struct Wanted {
    entries: u64,
    is_wide: bool,
    folder: Option<PathBuf>,
    server: String,
    within: f64,
    keeps: bool,
}

impl Wanted {
    fn parse() -> Wanted {
        let (within, keeps, server) = (f64::INFINITY, false, String::new());
        let mut wanted = Wanted { entries: 10_000, is_wide: false, folder: None, server, within, keeps };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value follows");
            match word.as_str() {
                "--wide" => wanted.is_wide = true,
                "--in" => wanted.folder = Some(value().into()),
                "--server" => wanted.server = value(),
                "--within" => wanted.within = value().parse().expect("a number of seconds"),
                "--keep" => wanted.keeps = true,
                number => wanted.entries = number.parse().expect("a number of entries"),
            }
        }
        wanted
    }
}

/// A tree under measurement, and what was measured.
struct Bench<'a> {
    tree: &'a VolumeTree,
    wanted: &'a Wanted,
    number: u64,
    dice: u64,
    found: Vec<(&'static str, f64)>,
}

fn time(secs: u64) -> FileTime {
    FileTime { secs: 1_700_000_000 + secs as i64, nanos: 123_456_789 }
}

fn attributes(mode: u32, at: u64) -> Attributes {
    Attributes { mode, owner: "alice".into(), group: "genomics".into(), mtime: time(at) }
}

impl Bench<'_> {
    /// Where the file of this index is; files and directories have numbers in the order they are made.
    fn spot(&self, index: u64) -> Dentry {
        let name = Name(format!("sample-{index:08}.fastq.gz").into_bytes());
        Dentry { dir: self.dir(index), name }
    }

    fn dir(&self, index: u64) -> NodeId {
        if self.wanted.is_wide { ROOT } else { HERE.id(index / FILES_A_DIR * (FILES_A_DIR + 1) + 1) }
    }

    fn file(&self, index: u64) -> NodeId {
        if self.wanted.is_wide { HERE.id(index + 1) } else { HERE.id(index + index / FILES_A_DIR + 2) }
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) % sides
    }

    fn numbered(&mut self, change: Change) -> SequencedChange {
        self.number += 1;
        SequencedChange { origin: HERE, number: self.number, change }
    }

    /// Notes a rate: so many since then.
    fn note(&mut self, what: &'static str, count: u64, start: Instant) {
        self.found.push((what, count as f64 / start.elapsed().as_secs_f64()));
    }

    fn make(&mut self, index: u64, batch: &mut Vec<SequencedChange>) {
        if !self.wanted.is_wide && index.is_multiple_of(FILES_A_DIR) {
            let at = Dentry { dir: ROOT, name: Name(format!("run-{:06}", index / FILES_A_DIR).into_bytes()) };
            let attributes = attributes(0o755, index);
            let id = self.dir(index);
            batch.push(self.numbered(Change::Make {
                id,
                at,
                kind: NewKind::Dir,
                attributes,
                keep_both: false,
            }));
        }
        let (id, at, attributes) = (self.file(index), self.spot(index), attributes(0o644, index));
        batch.push(self.numbered(Change::Make { id, at, kind: NewKind::File, attributes, keep_both: false }));
    }

    /// How many files there are, from a run before.
    fn made(&mut self) -> u64 {
        self.number =
            self.tree.position().expect("the database works").taken.get(&HERE).copied().unwrap_or(0);
        if self.wanted.is_wide { self.number } else { self.number - self.number.div_ceil(FILES_A_DIR + 1) }
    }

    /// Creates what is missing; whether all is there then.
    fn create(&mut self) -> bool {
        let (entries, start, first) = (self.wanted.entries, Instant::now(), self.made());
        let (mut batch, mut tenth) = (Vec::new(), (first, Instant::now()));
        for index in first..entries {
            self.make(index, &mut batch);
            let is_last = index + 1 == entries;
            if batch.len() >= BATCH || is_last {
                self.tree.decide(&std::mem::take(&mut batch)).expect("the database works");
            }
            if is_last || (index + 1).is_multiple_of(entries / 10) {
                let rate = (index + 1 - tenth.0) as f64 / tenth.1.elapsed().as_secs_f64();
                eprintln!("{} files, the last {} at {rate:.0} a second", index + 1, index + 1 - tenth.0);
                tenth = (index + 1, Instant::now());
            }
            if batch.is_empty() && start.elapsed().as_secs_f64() > self.wanted.within && !is_last {
                self.note("creates_per_s", index + 1 - first, start);
                return false;
            }
        }
        if first < entries {
            self.note("creates_per_s", entries - first, start);
        }
        true
    }

    fn look_up(&mut self) {
        let start = Instant::now();
        for _ in 0..LOOKUPS {
            let index = self.roll(self.wanted.entries);
            let found = self.tree.child(&self.spot(index)).expect("the database works");
            assert_eq!(found.expect("it was made").0, self.file(index));
        }
        self.note("lookups_per_s", LOOKUPS, start);
        let start = Instant::now();
        let of_thread = |seed: u64| {
            let (tree, wanted) = (self.tree, self.wanted);
            let mut bench = Bench { tree, wanted, number: 0, dice: seed, found: Vec::new() };
            for _ in 0..LOOKUPS / READERS {
                let index = bench.roll(wanted.entries);
                tree.child(&bench.spot(index)).expect("the database works").expect("it was made");
            }
        };
        std::thread::scope(|scope| {
            (1..=READERS).for_each(|seed| drop(scope.spawn(move || of_thread(seed * 77))))
        });
        self.note("lookups_per_s_of_4_threads", LOOKUPS, start);
    }

    fn list(&mut self) {
        let start = Instant::now();
        let (mut count, mut dirs) = (0, vec![ROOT]);
        while let Some(dir) = dirs.pop() {
            let mut after: Option<Name> = None;
            loop {
                let page = self.tree.list(dir, after.as_ref(), PAGE).expect("the database works");
                count += page.len() as u64;
                dirs.extend(page.iter().filter(|(.., node)| node.is_dir()).map(|(_, id, _)| *id));
                let full = page.len() == PAGE;
                after = page.into_iter().next_back().map(|(name, ..)| name);
                if !full {
                    break;
                }
            }
        }
        assert!(count >= self.wanted.entries, "{count} were listed");
        self.note("listed_per_s", count, start);
    }

    /// Changes in batches, made by `one`.
    fn change(&mut self, what: &'static str, one: impl Fn(&mut Self, u64) -> Change) {
        let entries = self.wanted.entries;
        let changes = CHANGES.min(entries / 2);
        // Files far from each other, none twice.
        let stride = entries / changes;
        let mut batches = Vec::new();
        for count in 0..changes {
            if count.is_multiple_of(BATCH as u64) {
                batches.push(Vec::new());
            }
            let change = one(self, count * stride);
            let numbered = self.numbered(change);
            batches.last_mut().expect("the first was pushed").push(numbered);
        }
        let start = Instant::now();
        for batch in &batches {
            let records = self.tree.decide(batch).expect("the database works");
            assert!(records.iter().all(|record| record.outcome.is_ok()), "{:?}", records[0].outcome);
        }
        self.note(what, changes, start);
    }

    fn write(&mut self) {
        self.change("writes_per_s", |bench, index| {
            let id = bench.file(index);
            let node = bench.tree.node(id).expect("the database works").expect("it was made");
            let renkei_core::namespace::Kind::File(content) = node.kind else { panic!("it is a file") };
            let base: Base = content.base();
            let digest = Some(*blake3::hash(&index.to_le_bytes()).as_bytes());
            Change::SetContent { id, base, size: 1 << 30, digest, mtime: time(index), beside: None }
        });
    }

    fn rename(&mut self) {
        self.change("renames_per_s", |bench, index| {
            let from = bench.spot(index);
            let other = bench.dir((index * 7919) % bench.wanted.entries);
            let to = Dentry { dir: other, name: Name([&from.name.0[..], b".old"].concat()) };
            Change::Rename { from, to, replace: false, seen: None, time: time(index) }
        });
    }

    fn one_by_one(&mut self) {
        let start = Instant::now();
        let made = 200;
        for index in 0..made {
            let at = Dentry { dir: ROOT, name: Name(format!("one-{index}").into_bytes()) };
            let (id, attributes) = (HERE.id((1 << 40) + index), attributes(0o600, index));
            let change = Change::Make { id, at, kind: NewKind::File, attributes, keep_both: false };
            let numbered = self.numbered(change);
            self.tree.decide(&[numbered]).expect("the database works");
        }
        self.note("creates_per_s_one_by_one", made, start);
    }
}

/// A line of a process's file in /proc, in MB.
fn proc_mb(process: &str, file: &str, key: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("0");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// What all processes of PostgreSQL have, in MB.
fn server_mb() -> f64 {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = all.map(|process| process.file_name().to_string_lossy().into_owned());
    let comm =
        |process: &String| std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    let servers = names.filter(|process| comm(process).trim() == "postgres");
    servers.map(|process| proc_mb(&process, "smaps_rollup", "Pss")).sum()
}

/// What the tables of trees take on the disk of the server, with their indexes, in MB.
fn tables_mb(server: &str) -> f64 {
    let sizes = "SELECT CAST(SUM(pg_total_relation_size(oid)) AS BIGINT) FROM pg_class \
        WHERE relkind = 'r' AND relname LIKE 'tree%'";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection =
            <sqlx::PgConnection as sqlx::Connection>::connect(server).await.expect("it answers");
        let row = sqlx::query(sizes).fetch_one(&mut connection).await.expect("it answers");
        sqlx::Row::get::<i64, _>(&row, 0) as f64 / 1e6
    })
}

fn folder_mb(folder: &Path) -> f64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum::<u64>() as f64 / 1e6
}

impl Bench<'_> {
    fn measure(&mut self, folder: &Path) -> bool {
        let is_whole = self.create();
        let server = &self.wanted.server;
        let disk =
            if server.is_empty() { folder_mb(&folder.join("state/volumes")) } else { tables_mb(server) };
        self.found.push(("mb_on_disk_after_creates", disk));
        if is_whole {
            self.look_up();
            self.list();
            self.write();
            self.rename();
            self.one_by_one();
        }
        self.found.push(("mb_of_memory", proc_mb("self", "status", "VmRSS")));
        self.found.push(("mb_of_memory_at_most", proc_mb("self", "status", "VmHWM")));
        if !server.is_empty() {
            self.found.push(("mb_of_servers_memory", server_mb()));
        }
        is_whole
    }
}

fn main() {
    let wanted = Wanted::parse();
    let own = std::env::temp_dir().join(format!("tree-rates-{}", std::process::id()));
    let folder = wanted.folder.clone().unwrap_or(own);
    std::fs::create_dir_all(&folder).expect("a folder");
    let trees = Trees::open(&wanted.server, &Home::at(&folder)).expect("the database opens");
    let volume = [7; 16];
    let tree = trees.tree(volume).expect("the database opens");
    let mut bench = Bench { tree: &tree, wanted: &wanted, number: 0, dice: 42, found: Vec::new() };
    let is_whole = bench.measure(&folder);
    let found: Vec<String> =
        bench.found.iter().map(|(what, value)| format!("\"{what}\": {value:.1}")).collect();
    let kind = if wanted.is_wide { "wide" } else { "by thousands" };
    println!("{{\"entries\": {}, \"kind\": \"{kind}\", {}}}", wanted.entries, found.join(", "));
    drop(tree);
    if is_whole && !wanted.keeps {
        trees.remove(volume).expect("it goes");
        if wanted.folder.is_none() {
            std::fs::remove_dir_all(&folder).expect("the folder goes");
        }
    }
}
