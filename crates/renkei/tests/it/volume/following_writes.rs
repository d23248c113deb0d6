//! Changes that start at followers: their visibility, their durability through cuts and kills, and conflicts of one file
//! changed at two sites.

use crate::federation::{Federation, Site, account};
use crate::mount::can_mount;
use crate::tree;
use renkei_core::error::Code;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);

/// The volume `genome` of kek, which titech follows and may change.
pub fn with_writer() -> Federation {
    let federation = Federation::two();
    federation.kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    fs::create_dir(federation.kek.root().join("genome/2026")).unwrap();
    fs::write(federation.kek.root().join("genome/2026/x.bam"), "from home").unwrap();
    federation.kek.ok(&["volume", "check", "genome"]);
    follow(&federation.titech, &federation.kek);
    federation
}

/// Has a site follow the volume, with the right to change it, and its users change it.
fn follow(site: &Site, home: &Site) {
    let (account, name) = (account(), site.name.as_str());
    home.ok(&["volume", "grant", "genome", name, "write"]);
    let with = ["--from", &home.name, "--storage", "data", "--account", &account];
    site.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    site.ok(&["volume", "grant", "genome", &format!("*@{name}"), "write"]);
    await_that(|| {
        followed(site)["writes"] == true && site.renkei(&["mkdir", "/genome/2026"]).status.code() == Some(4)
    });
}

fn await_that(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < WITHIN, "it has not come to that");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How following stands at a site.
pub fn followed(site: &Site) -> serde_json::Value {
    site.json(&["volume", "show", "genome"]).1["standing"]["followed"].clone()
}

fn pending(site: &Site) -> u64 {
    followed(site)["pending"].as_u64().unwrap()
}

/// The names of the volume as a site shows them.
fn names(site: &Site) -> Vec<String> {
    let found = site.ok(&["find", "/genome"]);
    let mut names: Vec<String> = found.lines().map(str::to_owned).collect();
    names.sort();
    names
}

/// Waits until all sites show the same names and no outbox has an entry.
pub fn await_same(home: &Site, followers: &[&Site]) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let all = names(home);
        if followers.iter().all(|site| pending(site) == 0 && names(site) == all) {
            return all;
        }
        let here: Vec<_> = followers.iter().map(|site| (followed(site), names(site))).collect();
        assert!(begun.elapsed() < WITHIN, "{all:?}\n{here:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the home has all content.
pub fn await_content(home: &Site) {
    let away = || home.json(&["volume", "show", "genome"]).1["standing"]["away"].clone();
    let begun = Instant::now();
    while !away().is_null() {
        assert!(begun.elapsed() < WITHIN, "it does not come: {}", away());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The contents of files, by path, as a site serves them.
fn contents(site: &Site, to: &Path) -> BTreeMap<String, Vec<u8>> {
    let _ = fs::remove_dir_all(to);
    site.ok(&["cp", "-r", "/genome/", to.to_str().unwrap()]);
    let (mut found, mut dirs) = (BTreeMap::new(), vec![to.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for item in fs::read_dir(dir).unwrap() {
            let path = item.unwrap().path();
            let data = fs::symlink_metadata(&path).unwrap();
            if data.is_dir() {
                dirs.push(path);
            } else if data.is_file() {
                let name = path.strip_prefix(to).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn locating_a_new_file_waits_for_the_home() {
    let mut federation = with_writer();
    let source = federation.scratch().join("source");
    fs::write(&source, "made").unwrap();
    let make = |federation: &Federation, name: &str| {
        federation.titech.ok(&["cp", source.to_str().unwrap(), &format!("/genome/2026/{name}")]);
    };
    for number in 0..5 {
        make(&federation, &number.to_string());
        let (status, told) = federation.titech.json(&["where", &format!("/genome/2026/{number}")]);
        assert_eq!(status, 0, "{told}");
        federation.titech.ok(&["verify", &format!("/genome/2026/{number}")]);
    }
    assert_eq!(federation.titech.json(&["where", "/genome/none"]).0, 3);
    federation.kek.stop();
    make(&federation, "waits");
    let (_, told) = federation.titech.json(&["where", "/genome/2026/waits"]);
    assert_eq!(told["error"]["code"], Code::Stalled.to_string(), "{told}");
}

#[test]
fn writes_at_a_follower_are_local_at_once_and_everywhere_soon() {
    let federation = with_writer();
    let Federation { titech, kek, .. } = &federation;
    let mut osaka = Site::start(&federation.scratch(), "osaka");
    kek.befriend(&osaka);
    osaka.befriend(kek);
    follow(&osaka, kek);
    let run = federation.scratch().join("run7");
    fs::create_dir_all(run.join("sub")).unwrap();
    for (name, content) in [("a", &b"aaa"[..]), ("empty", b""), ("sub/c", &[7; 300_000])] {
        fs::write(run.join(name), content).unwrap();
    }
    fs::hard_link(run.join("a"), run.join("sub/again")).unwrap();
    std::os::unix::fs::symlink("a", run.join("link")).unwrap();
    titech.ok(&["cp", "-r", run.to_str().unwrap(), "/genome/2026/"]);
    assert_eq!(titech.ok(&["ls", "/genome/2026/run7"]), "a\nempty\nlink\nsub\n");
    let back = federation.scratch().join("back");
    titech.ok(&["cp", "-r", "/genome/2026/run7", back.to_str().unwrap()]);
    tree::assert_same(&tree::read(&run), &tree::read(&back));
    // Plain files, as they are, also here.
    assert_eq!(fs::read(titech.root().join("genome/2026/run7/sub/c")).unwrap(), vec![7; 300_000]);
    titech.ok(&["mkdir", "/genome/new"]);
    titech.ok(&["mv", "/genome/2026/run7/empty", "/genome/new/e"]);
    titech.ok(&["rm", "/genome/2026/run7/link"]);
    titech.ok(&["cp", run.join("a").to_str().unwrap(), "/genome/2026/x.bam"]);
    let all = await_same(kek, &[titech, &osaka]);
    assert!(
        all.contains(&"/genome/new/e".into()) && !all.contains(&"/genome/2026/run7/link".into()),
        "{all:?}"
    );
    let expected = contents(titech, &federation.scratch().join("t"));
    assert_eq!(expected["2026/x.bam"], b"aaa");
    // The home has it all by itself before long.
    await_that(|| kek.root().join("genome/2026/run7/sub/c").exists());
    await_that(|| contents(kek, &federation.scratch().join("k")) == expected);
    assert_eq!(contents(&osaka, &federation.scratch().join("o")), expected);
    await_that(|| fs::read(kek.root().join("genome/2026/x.bam")).unwrap() == b"aaa");
    osaka.stop();
}

#[test]
fn writes_acknowledged_without_the_home_survive_a_kill() {
    let mut federation = with_writer();
    let many = federation.scratch().join("many");
    fs::create_dir(&many).unwrap();
    (0..600).for_each(|n| fs::write(many.join(n.to_string()), format!("content {n}")).unwrap());
    federation.kek.stop();
    let titech = &mut federation.titech;
    titech.ok(&["cp", "-r", many.to_str().unwrap(), "/genome/"]);
    titech.ok(&["mv", "/genome/many/7", "/genome/many/seven"]);
    titech.ok(&["mv", "/genome/2026", "/genome/2027"]);
    titech.ok(&["cp", many.join("9").to_str().unwrap(), "/genome/many/8"]);
    await_that(|| pending(titech) > 1200);
    let shown = titech.ok(&["volume", "show", "genome"]);
    assert!(shown.contains("wait for the home"), "{shown}");
    let before = names(titech);
    titech.kill9();
    titech.restart();
    assert_eq!(names(titech), before);
    let mine = federation.scratch().join("mine");
    federation.titech.ok(&["cp", "-r", "/genome/many", mine.to_str().unwrap()]);
    assert_eq!(fs::read(mine.join("8")).unwrap(), b"content 9");
    assert_eq!(fs::read(mine.join("seven")).unwrap(), b"content 7");
    federation.kek.restart();
    let all = await_same(&federation.kek, &[&federation.titech]);
    assert_eq!(all, before);
    let expected = contents(&federation.titech, &federation.scratch().join("t"));
    assert_eq!(expected.len(), 601);
    await_that(|| contents(&federation.kek, &federation.scratch().join("k")) == expected);
    await_that(|| federation.kek.root().join("genome/many/599").exists());
    // More than one question names.
    await_that(|| federation.titech.renkei(&["evict", "/genome/many"]).status.success());
    assert!(!federation.titech.root().join("genome/many/599").exists());
}

#[test]
fn the_only_copy_is_not_evicted() {
    let mut federation = with_writer();
    let file = federation.scratch().join("f");
    fs::write(&file, "mine alone").unwrap();
    federation.titech.ok(&["cp", file.to_str().unwrap(), "/genome/2026/f"]);
    await_that(|| federation.kek.root().join("genome/2026/f").exists());
    await_same(&federation.kek, &[&federation.titech]);
    // The home cannot be asked.
    federation.kek.stop();
    let (status, told) = federation.titech.json(&["evict", "/genome/2026/f"]);
    assert_ne!(status, 0, "{told}");
    assert_eq!(told["failures"][0]["code"], Code::OnlyCopy.to_string(), "{told}");
    assert!(federation.titech.root().join("genome/2026/f").exists());
    federation.kek.restart();
    await_that(|| federation.titech.renkei(&["evict", "/genome/2026/f"]).status.success());
    assert!(!federation.titech.root().join("genome/2026/f").exists());
    let back = federation.scratch().join("back");
    federation.titech.ok(&["cp", "/genome/2026/f", back.to_str().unwrap()]);
    assert_eq!(fs::read(back).unwrap(), b"mine alone");
}

#[test]
fn concurrent_writes_of_two_sites_are_both_kept() {
    let mut federation = with_writer();
    let (mine, theirs) = (federation.scratch().join("mine"), federation.scratch().join("theirs"));
    fs::write(&mine, "of titech, longer").unwrap();
    fs::write(&theirs, "of kek").unwrap();
    // Both have the same version, and do not hear of each other.
    federation.kek.stop();
    for to in ["/genome/2026/x.bam", "/genome/2026/new"] {
        federation.titech.ok(&["cp", mine.to_str().unwrap(), to]);
    }
    federation.titech.stop();
    federation.kek.restart();
    for to in ["/genome/2026/x.bam", "/genome/2026/new"] {
        federation.kek.ok(&["cp", theirs.to_str().unwrap(), to]);
    }
    federation.titech.restart();
    let all = await_same(&federation.kek, &[&federation.titech]);
    let beside: Vec<&String> = all.iter().filter(|name| name.contains(".conflict-")).collect();
    assert_eq!(beside.len(), 2, "{all:?}");
    let here = contents(&federation.titech, &federation.scratch().join("t"));
    await_that(|| contents(&federation.kek, &federation.scratch().join("k")) == here);
    for (name, content) in &here {
        let expected: &[u8] = if name.contains(".conflict-") { b"of titech, longer" } else { b"of kek" };
        assert_eq!(content, expected, "{name}");
    }
    // The plain files went with the names.
    let plain = tree::read(&federation.titech.root().join("genome"));
    let paths: Vec<_> = plain.keys().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    assert!(paths.iter().any(|path| path.contains("x.bam.conflict-")), "{paths:?}");
}

#[test]
fn a_directory_made_at_three_sites_is_merged() {
    let mut federation = with_writer();
    let mut osaka = Site::start(&federation.scratch(), "osaka");
    federation.kek.befriend(&osaka);
    osaka.befriend(&federation.kek);
    follow(&osaka, &federation.kek);
    // A run of each site: a file of its own, in a folder that all have, and one that all have.
    let scratch = federation.scratch().to_path_buf();
    let make = |site: &Site| {
        let run = scratch.join(&site.name).join("run");
        fs::create_dir_all(run.join("raw")).unwrap();
        fs::write(run.join("log"), format!("by {}", site.name)).unwrap();
        fs::write(run.join("raw").join(&site.name), &site.name).unwrap();
        site.ok(&["cp", "-r", run.to_str().unwrap(), "/genome/"]);
    };
    federation.kek.stop();
    make(&federation.titech);
    make(&osaka);
    federation.titech.stop();
    osaka.stop();
    federation.kek.restart();
    make(&federation.kek);
    federation.titech.restart();
    osaka.restart();
    let all = await_same(&federation.kek, &[&federation.titech, &osaka]);
    let in_run: Vec<&str> = all.iter().filter_map(|name| name.strip_prefix("/genome/run/")).collect();
    let (beside, others): (Vec<&str>, Vec<&str>) =
        in_run.iter().partition(|name| name.contains(".conflict-"));
    assert_eq!(others, ["log", "raw", "raw/kek", "raw/osaka", "raw/titech"]);
    assert!(beside.len() == 2 && beside.iter().all(|name| name.starts_with("log.conflict-")), "{all:?}");
    assert!(all.iter().filter(|name| name.contains(".conflict-")).count() == 2, "{all:?}");
    let home = || contents(&federation.kek, &federation.scratch().join("k"));
    await_content(&federation.kek);
    let expected = home();
    assert_eq!(expected["run/log"], b"by kek");
    for (site, to) in [(&federation.titech, "t"), (&osaka, "o")] {
        assert_eq!(contents(site, &federation.scratch().join(to)), expected);
        // Its plain files are where they were written, and the one that lost its name is beside it.
        let plain = site.root().join("genome/run");
        assert_eq!(fs::read_to_string(plain.join("raw").join(&site.name)).unwrap(), site.name);
        let beside = beside.iter().map(|name| fs::read_to_string(site.root().join("genome/run").join(name)));
        assert!(beside.flatten().any(|read| read == format!("by {}", site.name)));
        assert!(!plain.join("log").exists());
    }
    assert_eq!(fs::read_to_string(federation.kek.root().join("genome/run/raw/osaka")).unwrap(), "osaka");
}

#[test]
fn quotas_hold_at_the_writing_follower() {
    let mut federation = with_writer();
    let (titech, scratch) = (&federation.titech, federation.scratch().to_path_buf());
    let handed = |site: &Site| {
        let rows = site.json(&["volume", "quota", "genome"]).1["used"].clone();
        (rows[0]["bytes"].as_u64().unwrap(), rows[0]["handed"]["bytes"].as_u64())
    };
    let put = |site: &Site, name: &str, size: u64| {
        let file = scratch.join(name);
        fs::write(&file, vec![b'x'; size as usize]).unwrap();
        site.json(&["cp", file.to_str().unwrap(), &format!("/genome/{name}")])
    };
    federation.kek.ok(&["volume", "quota", "genome", "--bytes", "1000000"]);
    await_that(|| handed(titech).1.is_some() && handed(&federation.kek).1 == handed(titech).1);
    let (used, share) = handed(titech);
    assert_eq!(share, Some((1_000_000 - used) / 2), "half of the rest");
    // A follower does not get more access than the home gives.
    let refused = put(&federation.kek, "home", 600_000);
    assert_eq!(refused.1["error"]["code"], Code::QuotaExceeded.to_string(), "{refused:?}");
    assert!(refused.1.to_string().contains("may still add"), "{refused:?}");
    // The site asks for more than its share, and has it.
    assert_eq!(put(titech, "asked", 700_000).0, 0);
    await_same(&federation.kek, &[titech]);
    await_that(|| handed(titech) == (used + 700_000, Some((300_000 - used) / 2)));
    federation.kek.stop();
    let (_, share) = handed(&federation.titech);
    let share = share.unwrap();
    // Cut off, it uses its share and no more, also after a kill.
    assert_eq!(put(&federation.titech, "first", share - 1000).0, 0);
    federation.titech.kill9();
    federation.titech.restart();
    let refused = put(&federation.titech, "second", 1001);
    assert_eq!(refused.1["error"]["code"], Code::QuotaExceeded.to_string(), "{refused:?}");
    assert!(!federation.titech.root().join("genome/second").exists());
    if can_mount() {
        let point = scratch.join("mnt");
        fs::create_dir(&point).unwrap();
        federation.titech.ok(&["mount", "/genome", point.to_str().unwrap()]);
        let written = fs::File::create(point.join("third")).and_then(|mut file| {
            std::io::Write::write_all(&mut file, &[b'x'; 1001])?;
            file.sync_all()
        });
        federation.titech.ok(&["umount", point.to_str().unwrap()]);
        assert_eq!(written.unwrap_err().raw_os_error(), Some(rustix::io::Errno::DQUOT.raw_os_error()));
    }
    assert_eq!(put(&federation.titech, "third", 1000).0, 0);
    // Less is never refused.
    assert_eq!(put(&federation.titech, "first", 10).0, 0);
    federation.kek.restart();
    await_same(&federation.kek, &[&federation.titech]);
    assert!(handed(&federation.kek).0 <= 1_000_000);
}

#[test]
fn changes_refused_by_the_home_are_undone_and_reported() {
    let mut federation = with_writer();
    federation.kek.stop();
    federation.titech.ok(&["mv", "/genome/2026/x.bam", "/genome/moved"]);
    federation.titech.stop();
    federation.kek.restart();
    federation.kek.ok(&["mv", "/genome/2026/x.bam", "/genome/elsewhere"]);
    federation.titech.restart();
    let all = await_same(&federation.kek, &[&federation.titech]);
    assert!(all.contains(&"/genome/elsewhere".into()) && !all.contains(&"/genome/moved".into()), "{all:?}");
    let told = followed(&federation.titech)["refused"].clone();
    assert_eq!(told[0]["error"]["code"], Code::PathNotFound.to_string(), "{told}");
    assert!(federation.titech.ok(&["volume", "show", "genome"]).contains("refused"));
}

#[test]
fn a_mount_writes_at_a_follower() {
    if !can_mount() {
        return;
    }
    let federation = with_writer();
    let Federation { titech, kek, .. } = &federation;
    let point = federation.scratch().join("mnt");
    fs::create_dir(&point).unwrap();
    titech.ok(&["mount", "/genome", point.to_str().unwrap()]);
    let work = || -> std::io::Result<()> {
        fs::create_dir(point.join("in"))?;
        for n in 0..20 {
            fs::write(point.join(format!("in/{n}")), format!("from the mount {n}"))?;
        }
        fs::rename(point.join("in/3"), point.join("in/three"))?;
        fs::remove_file(point.join("in/4"))?;
        fs::write(point.join("2026/x.bam"), "anew")?;
        let mut file = fs::File::options().append(true).open(point.join("in/5"))?;
        std::io::Write::write_all(&mut file, b", and more")?;
        file.sync_all()
    };
    let done = work();
    let read = fs::read(point.join("in/5"));
    let second = federation.scratch().join("second");
    fs::create_dir(&second).unwrap();
    titech.ok(&["mount", "/genome", second.to_str().unwrap()]);
    // Changes in one mount are seen in the other at once, even if cached.
    let shown = (1..=5).map(|n| {
        let (mine, other) = (point.join("in/6"), second.join("in/6"));
        let before = fs::metadata(&other)?.permissions().mode() & 0o777;
        fs::set_permissions(&mine, fs::Permissions::from_mode(0o600 + n))?;
        fs::write(&mine, vec![b'x'; n as usize])?;
        let now = fs::metadata(&other)?;
        Ok((n, before, now.permissions().mode() & 0o777, now.len()))
    });
    let shown: std::io::Result<Vec<_>> = shown.collect();
    titech.ok(&["umount", second.to_str().unwrap()]);
    titech.ok(&["umount", point.to_str().unwrap()]);
    done.unwrap();
    for (n, before, mode, size) in shown.unwrap() {
        assert_eq!((mode, size), (0o600 + n, u64::from(n)), "after {before:o}");
    }
    assert_eq!(read.unwrap(), b"from the mount 5, and more");
    let all = await_same(kek, &[titech]);
    assert_eq!(all.iter().filter(|name| name.starts_with("/genome/in/")).count(), 19, "{all:?}");
    await_that(|| {
        fs::read(kek.root().join("genome/in/5")).is_ok_and(|read| read == b"from the mount 5, and more")
    });
    await_that(|| fs::read(kek.root().join("genome/2026/x.bam")).is_ok_and(|read| read == b"anew"));
}

/// A few numbers that look random and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Removed files that a follower keeps until the home knows of the removal.
fn aside(site: &Site) -> usize {
    let folder = site.root().join("genome/.rk~0000006173696465-0000000000000000");
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn a_file_renamed_before_another_site_removes_it_keeps_its_content() {
    let mut federation = with_writer();
    let mut osaka = Site::start(&federation.scratch(), "osaka");
    federation.kek.befriend(&osaka);
    osaka.befriend(&federation.kek);
    follow(&osaka, &federation.kek);
    // The home has the names alone.
    federation.kek.ok(&["volume", "pause", "genome"]);
    let file = federation.scratch().join("f");
    let write = |site: &Site, name: &str| {
        fs::write(&file, format!("content of {name}")).unwrap();
        site.ok(&["cp", file.to_str().unwrap(), &format!("/genome/{name}")]);
    };
    ["a", "b", "c", "d", "e"].iter().for_each(|name| write(&osaka, name));
    await_same(&federation.kek, &[&federation.titech, &osaka]);
    federation.kek.stop();
    // Both write it; one of them removes its version, and has not seen the other one's.
    fs::write(&file, "content of titech").unwrap();
    federation.titech.ok(&["cp", file.to_str().unwrap(), "/genome/e"]);
    write(&osaka, "e");
    for name in ["a", "b", "c"] {
        federation.titech.ok(&["mv", &format!("/genome/{name}"), &format!("/genome/{name}.new")]);
    }
    write(&osaka, "other");
    osaka.ok(&["mv", "/genome/other", "/genome/b"]);
    ["a", "c", "d", "e"].iter().for_each(|name| drop(osaka.ok(&["rm", &format!("/genome/{name}")])));
    assert_eq!(aside(&osaka), 5);
    osaka.kill9();
    federation.kek.restart();
    await_that(|| pending(&federation.titech) == 0);
    osaka.restart();
    let all = await_same(&federation.kek, &[&federation.titech, &osaka]);
    let expected =
        ["2026", "2026/x.bam", "a.new", "b", "b.new", "c.new"].map(|name| format!("/genome/{name}"));
    assert!(expected.iter().all(|name| all.contains(name)), "{all:?}");
    let mut at_top = all.iter().filter_map(|name| name.strip_prefix("/genome/"));
    let beside = at_top.find(|name| name.starts_with("e.conflict"));
    assert!(beside.is_some() && all.len() == expected.len() + 3, "{all:?}");
    federation.kek.ok(&["volume", "resume", "genome"]);
    await_content(&federation.kek);
    let found = contents(&federation.kek, &federation.scratch().join("k"));
    let expected = [("a.new", "a"), ("b.new", "b"), ("c.new", "c"), ("b", "other"), ("e", "titech")];
    for (name, content) in expected.into_iter().chain(beside.map(|name| (name, "e"))) {
        assert_eq!(found[name], format!("content of {content}").as_bytes(), "{name}");
    }
    assert_eq!(contents(&osaka, &federation.scratch().join("o")), found);
    await_that(|| aside(&osaka) == 0);
    // Now no site wants it.
    osaka.ok(&["rm", "/genome/a.new"]);
    await_same(&federation.kek, &[&federation.titech, &osaka]);
    await_that(|| aside(&osaka) == 0 && !federation.kek.root().join("genome/a.new").exists());
}

#[test]
fn three_sites_converge_after_kills_and_partitions() {
    let mut federation = with_writer();
    let mut osaka = Site::start(&federation.scratch(), "osaka");
    federation.kek.befriend(&osaka);
    osaka.befriend(&federation.kek);
    follow(&osaka, &federation.kek);
    let (file, mut chance, mut written) = (federation.scratch().join("f"), Chance(2026), Vec::new());
    for step in 0..40 {
        let Federation { titech, kek, .. } = &mut federation;
        let site: &Site = if chance.below(2) == 0 { titech } else { &osaka };
        let name = |chance: &mut Chance| format!("/genome/2026/{}", chance.below(6));
        match chance.below(6) {
            0..3 => {
                let content = format!("{} {step}", site.name);
                fs::write(&file, &content).unwrap();
                let to = name(&mut chance);
                if site.renkei(&["cp", file.to_str().unwrap(), &to]).status.success() {
                    written.push(content);
                }
            }
            3 => drop(site.renkei(&["mv", &name(&mut chance), &name(&mut chance)])),
            4 => drop(site.renkei(&["mkdir", &format!("{}.d", name(&mut chance))])),
            _ => match chance.below(3) {
                0 => titech.restart(),
                1 => osaka.restart(),
                _ => kek.restart(),
            },
        }
    }
    let all = await_same(&federation.kek, &[&federation.titech, &osaka]);
    assert!(all.len() > 5, "{all:?}");
    let home = || contents(&federation.kek, &federation.scratch().join("k"));
    await_content(&federation.kek);
    let expected = home();
    for (site, to) in [(&federation.titech, "t"), (&osaka, "o")] {
        await_that(|| contents(site, &federation.scratch().join(to)) == expected);
    }
    // Every remaining file is complete and was written by a site.
    let known = |content: &Vec<u8>| {
        content == b"from home" || written.iter().any(|known| known.as_bytes() == &content[..])
    };
    assert!(expected.values().all(known), "{expected:?}");
}

#[test]
fn plain_directories_grant_no_more_access_than_the_volume() {
    let federation = with_writer();
    let Federation { titech, kek, .. } = &federation;
    let mode = |site: &Site, path: &str| {
        fs::metadata(site.root().join("genome").join(path)).map(|data| data.permissions().mode() & 0o777)
    };
    let closed = kek.root().join("genome/closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("key"), "secret").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    kek.ok(&["volume", "check", "genome"]);
    await_that(|| titech.renkei(&["replicate", "/genome/closed"]).status.success());
    await_that(|| titech.root().join("genome/closed/key").exists());
    assert_eq!(mode(titech, "closed").unwrap(), 0o700, "of a replica");
    for changed in [0o755, 0o750] {
        fs::set_permissions(&closed, fs::Permissions::from_mode(changed)).unwrap();
        kek.ok(&["volume", "check", "genome"]);
        await_that(|| mode(titech, "closed").unwrap() == changed);
    }
    titech.ok(&["mkdir", "/genome/own"]);
    titech.ok(&["chmod", "750", "/genome/own"]);
    let file = titech.dir().join("file");
    fs::write(&file, "content").unwrap();
    titech.ok(&["cp", file.to_str().unwrap(), "/genome/own/file"]);
    assert_eq!(mode(titech, "own").unwrap(), 0o750, "made before its first file");
    titech.ok(&["chmod", "700", "/genome/own"]);
    assert_eq!(mode(titech, "own").unwrap(), 0o700, "changed after it");
    let tree = titech.dir().join("tree");
    fs::create_dir_all(tree.join("open")).unwrap();
    fs::write(tree.join("open/f"), "content").unwrap();
    fs::set_permissions(tree.join("open"), fs::Permissions::from_mode(0o755)).unwrap();
    titech.ok(&["cp", "-r", tree.to_str().unwrap(), "/genome/tree"]);
    assert_eq!(mode(titech, "tree/open").unwrap(), 0o755, "copied with its mode");
}
