//! Simulated histories of two sites that follow a volume and change it, and of their PoPs that are killed: with real
//! databases, journals and plain files, and a home in memory that fetches nothing. Invariant: content that the volume
//! has is at the site that wrote it, under the name that the volume has for it.
//!
//! `RENKEI_SIM_SEEDS=900 cargo test -p renkei apply_tests` runs more of them, `RENKEI_SIM_SEED=7` one, step by step.

use super::apply::{follow, note_moved, runs};
use super::move_plan::find;
use super::outbox::Outbox;
use super::plain_file::Writer;
use super::recovery::recover;
use super::view::{Fetch, FollowedStore};
use renkei_catalogue::{Trees, own_version};
use renkei_config::home::Home as Folder;
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::home::Home;
use renkei_core::namespace::memory::MemoryTree;
use renkei_core::namespace::{Content, Dentry, Kind, Name, NodeId, Origin, ROOT, Record};
use renkei_core::path::RelPath;
use renkei_store::leases::LeaseTable;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::temp::{is_temp_name, temp_name};
use renkei_store::{Detail, Dir, ReadFile, Space, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of directories and files, so few that collisions are frequent.
const DIRS: [&str; 3] = ["d", "e", "g"];
const FILES: [&str; 4] = ["a", "b", "c", "d"];
const STEPS: u32 = 40;
/// Changes that are settled during the reads.
const SETTLED: u64 = 200;
const ID: [u8; 16] = [7; 16];

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len() as u64) as usize]
    }

    /// An existing directory, as a rule.
    fn dir(&mut self, there: &[String]) -> String {
        let dirs: Vec<&String> = there.iter().filter(|path| path.ends_with('/')).collect();
        match self.roll(8) {
            0 => format!("{}/", self.one(&DIRS)),
            1 | 2 => String::new(),
            _ if dirs.is_empty() => String::new(),
            _ => dirs[self.roll(dirs.len() as u64) as usize].clone(),
        }
    }

    fn fresh(&mut self, there: &[String], names: &[&str]) -> String {
        self.dir(there) + self.one(names)
    }

    fn old(&mut self, there: &[String], is_wanted: fn(&String) -> bool) -> String {
        let all: Vec<&String> = there.iter().filter(|path| is_wanted(path)).collect();
        if all.is_empty() || self.roll(8) == 0 {
            return self.fresh(there, &FILES);
        }
        all[self.roll(all.len() as u64) as usize].trim_end_matches('/').into()
    }
}

/// A site without content of other sites.
struct Nobody;

impl Fetch for Nobody {
    fn open(&self, path: &RelPath, _: NodeId, _: &Content, _: Stamp) -> Result<Box<dyn ReadFile>, Error> {
        Err(Error::new(Code::PathNotFound, "open", path, "nobody has it"))
    }

    fn space(&self) -> Space {
        Space::default()
    }
}

type Between = fn(&dyn Dir, &[u8], &dyn Dir, &[u8]) -> Result<(), Error>;

struct Site {
    origin: Origin,
    folder: PathBuf,
    trees: Trees,
    pending: Arc<Outbox>,
    writer: Writer,
    store: FollowedStore,
}

impl Site {
    fn new(folder: PathBuf, origin: Origin) -> Self {
        fs::create_dir_all(folder.join("plain")).unwrap();
        let site = Self::open(folder, origin);
        site.pending.enlist(origin, true).unwrap();
        site.pending.on_whole().unwrap();
        recover(&site.pending, &site.writer).unwrap();
        site
    }

    fn open(folder: PathBuf, origin: Origin) -> Self {
        let trees = Trees::open("", &Folder::at(&folder.join("pop"))).unwrap();
        let tree = trees.tree(ID).unwrap();
        let pending = Outbox::load("v", tree, &folder.join("journal"), LeaseTable::default()).unwrap();
        let plain = Arc::new(LocalStore::open(&folder.join("plain"), AccessMode::ReadWrite).unwrap());
        let writer = Writer { plain, owner: "alice".into(), group: "genomics".into() };
        let store =
            FollowedStore::new(pending.clone(), &ID, Arc::new(Nobody), "home".into(), Some(writer.clone()));
        Site { origin, folder, trees, pending, writer, store }
    }

    /// Kills the PoP and restarts it.
    fn kill(self) -> Self {
        let Site { origin, folder, trees, pending, .. } = self;
        drop((pending, trees));
        let site = Self::open(folder, origin);
        recover(&site.pending, &site.writer).unwrap();
        site
    }

    fn dir(&self, path: &str) -> Result<(Arc<dyn Dir>, Vec<u8>), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.store.dir(&RelPath::parse(parent.as_bytes()).unwrap())?, name.into()))
    }

    fn write(&self, path: &str, size: u64) -> Result<(), Error> {
        let (dir, name) = self.dir(path)?;
        let temp = temp_name(7, &RelPath::parse(&name).unwrap());
        let file = dir.create_temp(&temp, true)?;
        file.write_at(&vec![b'x'; size as usize], 0)?;
        drop(file);
        dir.rename(&temp, &*dir, &name).inspect_err(|_| drop(dir.remove_file(&temp)))
    }

    /// Paths in the view; those of directories end with a slash.
    fn paths(&self) -> Vec<String> {
        let (mut found, mut dirs) = (Vec::new(), vec![String::new()]);
        while let Some(path) = dirs.pop() {
            let dir =
                self.store.dir(&RelPath::parse(path.trim_end_matches('/').as_bytes()).unwrap()).unwrap();
            let names = dir.list().unwrap().map(|listed| listed.unwrap().name);
            for name in names.filter(|name| !is_temp_name(name)) {
                let child = path.clone() + &String::from_utf8_lossy(&name);
                match dir.entry(&name, Detail::Basic).unwrap().0.kind {
                    EntryKind::Dir => {
                        found.push(child.clone() + "/");
                        dirs.push(child + "/");
                    }
                    _ => found.push(child),
                }
            }
        }
        found.sort();
        found
    }

    /// A random operation of a user; returns its description.
    fn act(&self, dice: &mut Dice, size: &mut u64) -> (String, Result<(), Error>) {
        let between = |from: &str, to: &str, act: Between| {
            let ((dir, name), (to_dir, to_name)) = (self.dir(from)?, self.dir(to)?);
            act(&*dir, &name, &*to_dir, &to_name)
        };
        let there = self.paths();
        match dice.roll(16) {
            0..=4 => {
                *size += 1;
                let path = match dice.roll(2) {
                    0 => dice.fresh(&there, &FILES),
                    _ => dice.old(&there, |path| !path.ends_with('/')),
                };
                (format!("write {path} {size}"), self.write(&path, *size))
            }
            5 | 6 => {
                let path = dice.fresh(&there, &DIRS);
                let made = self.dir(&path).and_then(|(dir, name)| dir.mkdir(&name, 0o755));
                (format!("mkdir {path}"), made)
            }
            7 | 8 => {
                let path = dice.old(&there, |path| !path.ends_with('/'));
                let gone = self.dir(&path).and_then(|(dir, name)| dir.remove_file(&name));
                (format!("rm {path}"), gone)
            }
            9 => {
                let path = dice.old(&there, |path| path.ends_with('/'));
                let gone = self.dir(&path).and_then(|(dir, name)| dir.remove_dir(&name));
                (format!("rmdir {path}"), gone)
            }
            10 => {
                let from = dice.old(&there, |path| !path.ends_with('/'));
                let to = dice.fresh(&there, &FILES);
                let made = between(&from, &to, |a, from, b, to| a.hard_link(from, b, to));
                (format!("ln {from} {to}"), made)
            }
            _ => {
                let from = dice.old(&there, |_| true);
                let to = match dice.roll(3) {
                    0 => dice.old(&there, |_| true),
                    1 => dice.fresh(&there, &DIRS),
                    _ => dice.fresh(&there, &FILES),
                };
                let moved = between(&from, &to, |a, from, b, to| a.rename(from, b, to));
                (format!("mv {from} {to}"), moved)
            }
        }
    }

    /// Applies records; with `cut`, the PoP is killed after so many steps of the first run that moves plain files.
    fn take(&self, records: &[Record], cut: Option<usize>, say: &dyn Fn(String)) {
        let mut turn = self.pending.turn();
        for run in runs(self.origin, records) {
            let plain = &self.writer.plain;
            let mut todo = follow(&mut turn, self.origin, run, |items| Ok(find(plain, items))).unwrap();
            if todo.is_empty() {
                continue;
            }
            let upto = run.last().map_or(0, |record| record.seq);
            say(format!("{}: after {upto} {:?} {:?}", self.origin.0, todo.steps, todo.fates));
            if let Some(count) = cut {
                todo.steps.cut(count);
                todo.steps.take(plain);
                return;
            }
            let (moved, back) = (todo.steps.take(plain), todo.fates.take(&**plain, self.origin));
            note_moved(&self.pending, &moved).unwrap();
            turn.hold_again(back).unwrap();
            turn.note_followed().unwrap();
        }
    }
}

#[derive(Default)]
struct All {
    home: Home,
    tree: MemoryTree,
    log: Vec<Record>,
}

impl All {
    /// Pushes changes of a site to the home, at most `most`.
    fn hand_in(&mut self, site: &Site, most: usize) {
        for made in site.pending.next_kept(self.home.taken(site.origin), most).unwrap() {
            let Some(record) = self.home.handle(&self.tree, &made).unwrap() else { continue };
            if let Ok(effects) = &record.outcome {
                self.tree.apply(effects);
            }
            self.log.push(record);
        }
    }

    fn news(&self, site: &Site, most: usize) -> &[Record] {
        let seq = site.pending.tree().position().unwrap().seq as usize;
        &self.log[seq..(seq + most).min(self.log.len())]
    }

    fn paths(&self) -> BTreeMap<String, (NodeId, Kind)> {
        let (mut found, mut dirs) = (BTreeMap::new(), vec![(ROOT, String::new())]);
        while let Some((dir, path)) = dirs.pop() {
            let first = Dentry { dir, name: Name(Vec::new()) };
            for (at, id) in self.tree.names().filter(|(at, _)| at.dir == first.dir) {
                let path = format!("{path}{}", String::from_utf8_lossy(&at.name.0));
                let (_, node) = self.tree.nodes().find(|(node, _)| *node == id).unwrap();
                if node.is_dir() {
                    dirs.push((id, format!("{path}/")));
                }
                found.insert(path, (id, node.kind.clone()));
            }
        }
        found
    }
}

/// Plain files of a site, without temporary ones.
fn plain_files(top: &Path) -> Vec<String> {
    let (mut found, mut dirs) = (Vec::new(), vec![top.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(top).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// Checks that each content is at the site that wrote it.
fn check(all: &All, sites: &[Site]) -> Result<(), String> {
    for (path, (id, kind)) in all.paths() {
        let Kind::File(content) = kind else { continue };
        let Some(site) = sites.iter().find(|site| site.origin == content.by.0 && content.size > 0) else {
            continue;
        };
        let plain = site.folder.join("plain");
        let size = fs::metadata(plain.join(&path)).map(|meta| meta.len()).unwrap_or(0);
        let held = site.pending.held(id).unwrap();
        let is_held = held.as_ref().is_some_and(|held| held.version == own_version(content.by));
        if size != content.size || !is_held {
            return Err(format!(
                "site {} has {size} bytes as {path}, which is {id:?} of {content:?}, held {held:?}; plain files {:?}",
                site.origin.0,
                plain_files(&plain),
            ));
        }
    }
    let names: BTreeSet<String> = all.paths().into_keys().collect();
    for site in sites {
        let seen: BTreeSet<String> =
            site.paths().into_iter().map(|path| path.trim_end_matches('/').to_owned()).collect();
        if seen != names {
            return Err(format!("site {} sees {seen:?}, the volume has {names:?}", site.origin.0));
        }
        let plain = plain_files(&site.folder.join("plain"));
        if let Some(odd) = plain.iter().find(|path| !names.contains(*path)) {
            return Err(format!("site {} has {odd}, the volume has {names:?}", site.origin.0));
        }
    }
    Ok(())
}

/// A summary of the effects of records: each name with its node now.
fn told(records: &[Record]) -> String {
    let each = records.iter().map(|Record { seq, origin, number, outcome }| {
        let done = outcome.as_ref().map_or_else(
            |error| error.code.to_string(),
            |effects| {
                let names = effects.names.iter().map(|(at, id)| {
                    let name = String::from_utf8_lossy(&at.name.0).into_owned();
                    format!(" {:x}/{name}={}", at.dir.0, id.map_or("-".into(), |id| format!("{:x}", id.0)))
                });
                names.collect()
            },
        );
        format!("{seq}({}-{number}){done}", origin.0)
    });
    each.collect::<Vec<_>>().join(", ")
}

fn tell(seed: u64, kills: bool, is_told: bool) -> Result<(), String> {
    let (top, mut dice, mut all, mut size) = (tempfile::tempdir().unwrap(), Dice(seed), All::default(), 0);
    let mut sites: Vec<Site> =
        [1, 2].map(|origin| Site::new(top.path().join(origin.to_string()), Origin(origin))).into();
    let say = |line: String| {
        if is_told {
            eprintln!("{line}");
        }
    };
    for _ in 0..STEPS {
        let index = dice.roll(2) as usize;
        let who = index + 1;
        match dice.roll(if kills { 22 } else { 20 }) {
            0..=11 => {
                let (what, done) = sites[index].act(&mut dice, &mut size);
                say(format!("{who}: {what}: {:?}", done.map_err(|error| error.code)));
            }
            12 | 13 => {
                say(format!("{who}: stores"));
                sites[index].pending.store_all();
            }
            14 | 15 => {
                let most = dice.roll(6) as usize + 1;
                say(format!("{who}: hands in {most}"));
                all.hand_in(&sites[index], most);
            }
            16..=19 => {
                let most = dice.roll(8) as usize + 1;
                say(format!("{who}: takes {}", told(all.news(&sites[index], most))));
                sites[index].take(all.news(&sites[index], most), None, &say);
            }
            kill => {
                let cut = dice.roll(4) as usize;
                if kill == 20 {
                    sites[index].take(all.news(&sites[index], 4), Some(cut), &say);
                }
                say(format!("{who}: is killed, {kill} {cut}"));
                let site = sites.remove(index);
                sites.insert(index, site.kill());
            }
        }
    }
    for _ in 0..3 {
        for site in &sites {
            site.pending.store_all();
            all.hand_in(site, usize::MAX);
        }
        for site in &sites {
            say(format!("{}: takes {}", site.origin.0, told(all.news(site, usize::MAX / 2))));
            site.take(all.news(site, usize::MAX / 2), None, &say);
        }
    }
    check(&all, &sites)
}

fn stories(kills: bool) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    if let Some(seed) = number("RENKEI_SIM_SEED") {
        tell(seed, kills, true).unwrap();
        return;
    }
    let told = (0..number("RENKEI_SIM_SEEDS").unwrap_or(60)).map(|seed| (seed, tell(seed, kills, false)));
    let failed: Vec<String> =
        told.filter_map(|(seed, told)| Some(format!("{seed}: {}", told.err()?))).collect();
    assert!(failed.is_empty(), "{} stories: {}", failed.len(), failed.join("\n"));
}

#[test]
fn local_files_are_kept_while_the_volume_has_them() {
    stories(false);
}

#[test]
fn local_files_survive_kills() {
    stories(true);
}

#[test]
fn a_missing_path_component_is_named_once() {
    let top = tempfile::tempdir().unwrap();
    let site = Site::new(top.path().join("1"), Origin(1));
    site.store.dir(&RelPath::root()).unwrap().mkdir(b"d", 0o755).unwrap();
    site.write("d/f", 1).unwrap();
    for (path, code, subject) in [
        ("nope", Code::PathNotFound, "nope"),
        ("nope/x", Code::PathNotFound, "nope"),
        ("d/nope/x", Code::PathNotFound, "d/nope"),
        ("d/f/x", Code::NotADirectory, "d/f"),
    ] {
        let error = site.store.dir(&RelPath::parse(path.as_bytes()).unwrap()).err().unwrap();
        assert_eq!((error.code, &*error.subject), (code, subject), "{path}: {error}");
    }
}

/// The size of a file, by its name and by the listing of its directory.
fn sizes(site: &Site, name: &str) -> [u64; 2] {
    let dir = site.store.dir(&RelPath::root()).unwrap();
    let size = |dir: &dyn Dir| dir.entry(name.as_bytes(), Detail::Basic).unwrap().0.size();
    let by_name = size(&*dir);
    // The next lookup of a listed name uses the node of the listing.
    assert!(dir.list().unwrap().any(|listed| listed.unwrap().name == name.as_bytes()));
    [by_name, size(&*dir)]
}

#[test]
fn a_change_settled_during_a_lookup_is_seen() {
    let (top, mut all) = (tempfile::tempdir().unwrap(), All::default());
    let site = Site::new(top.path().join("1"), Origin(1));
    site.write("a", 1).unwrap();
    let written = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while written.load(Ordering::Acquire) < SETTLED {
                    let least = written.load(Ordering::Acquire);
                    let seen = sizes(&site, "a");
                    assert!(seen.iter().all(|size| *size >= least), "{seen:?} after {least} was written");
                }
            });
        }
        for size in 2..=SETTLED {
            site.write("a", size).unwrap();
            written.store(size, Ordering::Release);
            site.pending.store_all();
            all.hand_in(&site, usize::MAX);
            site.take(all.news(&site, usize::MAX / 2), None, &|_| {});
        }
    });
}
