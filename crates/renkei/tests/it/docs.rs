//! The pages of docs/ that describe the program agree with its help and its behaviour.

use crate::federation::{Federation, Site, account};
use crate::identity::tokens::Issuer;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn renkei() -> Command {
    Command::new(crate::federation::binary())
}

#[test]
fn generated_pages_are_up_to_date() {
    for name in ["cli", "config", "errors"] {
        let printed = renkei().args(["docs", name]).output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        let equal = page(&format!("{name}.md")).as_bytes() == printed.stdout;
        assert!(equal, "docs/{name}.md differs from `renkei docs {name}`; `make docs` writes it anew");
    }
}

/// The table of bad cases names tests; each of them is there.
#[test]
fn tests_named_in_docs_exist() {
    let (page, sources) = (page("operations.md"), Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it"));
    let named: Vec<(&str, &str)> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| line.rsplit('`').nth(1)?.rsplit_once("::"))
        .collect();
    assert!(named.len() > 15, "{named:?}");
    for (file, test) in named {
        let path = file.replace("::", "/");
        let read = |name: String| std::fs::read_to_string(sources.join(name));
        let source =
            read(format!("{path}.rs")).or_else(|_| read(format!("{path}/mod.rs"))).unwrap_or_default();
        assert!(source.contains(&format!("#[test]\nfn {test}()")), "{file}::{test}");
    }
}

#[test]
fn every_man_page_can_be_formatted() {
    let dir = tempfile::tempdir().unwrap();
    assert!(renkei().args(["docs", "man"]).arg(dir.path()).status().unwrap().success());
    let pages: Vec<PathBuf> =
        std::fs::read_dir(dir.path()).unwrap().map(|page| page.unwrap().path()).collect();
    for verb in ["ls", "stat", "mkdir", "rm", "mv", "du", "df", "checksum", "status", "doctor", "cp", "sync"]
    {
        assert!(pages.contains(&dir.path().join(format!("renkei-{verb}.1"))), "{verb}");
    }
    if Command::new("man").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: there is no man to format the pages with");
    }
    for page in pages {
        let shown = Command::new("man")
            .arg("--warnings")
            .arg("-l")
            .arg(&page)
            .env("MANPAGER", "cat")
            .env("LC_ALL", "C")
            .output()
            .unwrap();
        let warnings = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        assert!(
            String::from_utf8_lossy(&shown.stdout).to_uppercase().contains("SYNOPSIS"),
            "{}",
            page.display()
        );
    }
}

/// The fields that docs/json.md gives for each verb.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut verbs = BTreeMap::new();
    let mut verb = String::new();
    for line in page("json.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            verb = title.into();
        } else if let Some(field) = line.strip_prefix("| `").and_then(|rest| rest.split('`').next()) {
            verbs.entry(verb.clone()).or_insert_with(BTreeSet::new).insert(field.to_owned());
        }
    }
    verbs
}

/// The paths of all fields in a value, written as the page does.
fn fields(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, below) in object {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                fields(below, &path, found);
            }
        }
        Value::Array(items) => {
            let path = format!("{at}[]");
            found.insert(path.clone());
            items.iter().for_each(|item| fields(item, &path, found));
        }
        _ => {}
    }
    if !at.is_empty() {
        found.insert(at.into());
    }
}

/// The verbs on the page against their output.
struct Pages {
    documented: BTreeMap<String, BTreeSet<String>>,
    seen: BTreeMap<String, BTreeSet<String>>,
}

impl Pages {
    /// Notes the output of a verb: every field of it must be on the page.
    fn see(&mut self, verb: &str, output: &Value) {
        let mut found = BTreeSet::new();
        fields(output, "", &mut found);
        let known = self.documented.get(verb).unwrap_or_else(|| panic!("docs/json.md has no `## {verb}`"));
        // Objects that are described elsewhere on the page.
        let elsewhere = ["trouble.", "reason.", "progress.", "summary.", "error.", "buffered."];
        let inside = |path: &str| elsewhere.iter().any(|part| path.contains(part)) && verb != "failure";
        let opaque = |path: &str| path.starts_with("why") || path.starts_with("refusal") || inside(path);
        let failure = |path: &str| path.starts_with("failures[].");
        for path in found.iter().filter(|path| !opaque(path) && !failure(path)) {
            // A list or an object is on the page itself, or by its fields.
            let holder = path.trim_end_matches("[]");
            let on_page = |field: &String| {
                field == path
                    || field.starts_with(&format!("{holder}[]"))
                    || field.starts_with(&format!("{holder}."))
            };
            assert!(known.iter().any(on_page), "{verb}: docs/json.md does not have `{path}`");
        }
        if !found.iter().any(|path| failure(path)) {
            self.seen.entry(verb.into()).or_default().extend(found);
        } else {
            let failures = found.iter().filter(|path| failure(path)).cloned();
            self.seen.entry("failures".into()).or_default().extend(failures);
            self.seen.entry(verb.into()).or_default().extend(found.clone());
        }
    }

    /// Every field on the page was printed by some run.
    fn check_all_seen(&self) {
        for (verb, known) in &self.documented {
            let seen = self.seen.get(verb).unwrap_or_else(|| panic!("no run of `{verb}` was seen"));
            let missing: Vec<&String> = known.difference(seen).collect();
            assert!(missing.is_empty(), "{verb}: on the page but never printed: {missing:?}");
        }
    }
}

/// Verbs that print no object: they run until they are ended, print a script, or are described in lab.md.
const WITHOUT_JSON: [&str; 5] = ["serve", "agent", "completion", "docs", "lab"];

#[test]
fn each_verb_is_on_the_page_of_json() {
    let page = page("json.md");
    let is_named = |verb: &str| {
        let title = format!("\n## {verb}\n");
        let also = |line: &str| line.starts_with("Also ") && line.contains(&format!("`{verb}`"));
        page.contains(&title) || page.lines().any(also)
    };
    for verb in verbs(&renkei::cli::command()) {
        let (parent, last) = verb.rsplit_once(' ').unwrap_or(("", &verb));
        let of_group = || page.contains(&format!("\n## {parent} ")) && is_named(last);
        assert!(is_named(&verb) || of_group(), "docs/json.md does not name `{verb}`");
    }
}

/// All verbs that print an object: `ls`, `storage add`.
fn verbs(command: &clap::Command) -> Vec<String> {
    let mut all = Vec::new();
    for below in command.get_subcommands().filter(|below| !WITHOUT_JSON.contains(&below.get_name())) {
        match verbs(below) {
            none if none.is_empty() => all.push(below.get_name().to_owned()),
            more => all.extend(more.iter().map(|verb| format!("{} {verb}", below.get_name()))),
        }
    }
    all
}

#[test]
fn json_output_is_as_documented() {
    let mut federation = Federation::two();
    let mut pages = Pages { documented: documented(), seen: BTreeMap::new() };
    prepare(&federation);
    see_pop_verbs(&mut federation, &mut pages);
    see_place_verbs(&federation, &mut pages);
    see_volumes(&federation, &mut pages);
    see_queue_verbs(&federation, &mut pages);
    see_a_running_transfer(&mut federation, &mut pages);
    see_unfinished(&federation, &mut pages);
    see_the_buffer(&mut federation, &mut pages);
    see_a_restored_home(&mut federation, &mut pages);
    see_a_renamed_site(&mut pages);
    pages.check_all_seen();
}

/// A site that is renamed, apart from the sites of the other verbs.
fn see_a_renamed_site(pages: &mut Pages) {
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    let titech = Site::start(dir.path(), "titech");
    kek.take_card(&titech);
    pages.see("site rename", &kek.json(&["site", "rename", "tsukuba", "--yes"]).1);
}

/// A volume that another site follows.
fn see_volumes(federation: &Federation, pages: &mut Pages) {
    let Federation { titech, kek, .. } = federation;
    kek.ok(&["volume", "create", "held", "--storage", "data", "--in-place", "dir"]);
    kek.ok(&["volume", "grant", "held", "titech", "read"]);
    let account = account();
    let with = ["--from", "kek", "--storage", "data", "--hold", "--account", &account];
    let (_, subscribed) = titech.json(&[&["volume", "subscribe", "held"], &with[..]].concat());
    pages.see("volume subscribe", &subscribed);
    while !titech.ok(&["ls", "/held"]).contains("a.dat") {
        std::thread::sleep(Duration::from_millis(50));
    }
    kek.ok(&["volume", "set", "held", "replicas=2", "at=kek,titech"]);
    for (verb, arguments) in [
        ("volume list", &["volume", "list"][..]),
        ("volume show", &["volume", "show", "held"]),
        ("volume quota", &["volume", "quota", "held"]),
        ("where", &["where", "/held"]),
    ] {
        pages.see(verb, &kek.json(arguments).1);
    }
    for (verb, arguments) in [
        ("volume list", &["volume", "list"][..]),
        ("volume show", &["volume", "show", "held"]),
        ("replicate", &["replicate", "/held"]),
        ("where", &["where", "/held"]),
        ("replicate", &["verify", "/held", "/nothing"]),
        ("where", &["where", "/held", "/nothing"]),
    ] {
        pages.see(verb, &titech.json(arguments).1);
    }
    pages.see("volume unsubscribe", &titech.json(&["volume", "unsubscribe", "held"]).1);
}

/// The status of a follower after its home was restored from a backup.
fn see_a_restored_home(federation: &mut Federation, pages: &mut Pages) {
    let folder = federation.scratch().join("saved");
    let folder = folder.to_str().unwrap();
    let account = account();
    let with = ["--from", "kek", "--storage", "data", "--account", &account];
    federation.titech.ok(&[&["volume", "subscribe", "held"], &with[..]].concat());
    pages.see("backup", &federation.kek.json(&["backup", folder]).1);
    federation.kek.ok(&["volume", "check", "held"]);
    std::fs::write(federation.kek.root().join("dir/late"), "after the backup").unwrap();
    let begun = std::time::Instant::now();
    let wait = |what: &str| {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    };
    while !federation.titech.ok(&["ls", "/held"]).contains("late") {
        wait("the change does not come");
    }
    federation.kek.kill9();
    std::fs::remove_dir_all(federation.kek.dir()).unwrap();
    pages.see("restore", &federation.kek.json(&["restore", folder]).1);
    federation.kek.restart();
    loop {
        let shown = federation.titech.json(&["volume", "show", "held"]).1;
        if !shown["standing"]["followed"]["restored"].is_null() {
            return pages.see("volume show", &shown);
        }
        wait("titech does not notice that kek was restored");
    }
}

fn prepare(federation: &Federation) {
    let root = federation.kek.root();
    std::fs::create_dir(root.join("dir")).unwrap();
    std::fs::write(root.join("dir/a.dat"), "hello").unwrap();
    std::os::unix::fs::symlink("a.dat", root.join("dir/link")).unwrap();
    let comment = rustix::fs::setxattr(
        root.join("dir/a.dat"),
        "user.comment",
        b"good",
        rustix::fs::XattrFlags::empty(),
    );
    comment.expect("the temporary folder keeps extended attributes");
}

/// The verbs of tokens; the page calls an issuer NAME.
fn see_tokens(titech: &Site, issuer: &Issuer, see: &mut impl FnMut(&str, &[&str])) {
    let account = &account();
    let add = [
        "issuer",
        "add",
        "NAME",
        &issuer.url,
        "--prefix",
        "/data",
        "--account",
        account,
        "--audience",
        "https://also.example",
    ];
    see("issuer add", &add);
    see("issuer list", &["issuer", "list"]);
    let claims = json!({"scope": "storage.read:/", "wlcg.groups": ["/wlcg"]});
    see("issuer test", &["issuer", "test", &issuer.token(titech, claims)]);
    see("issuer add", &["issuer", "remove", "NAME"]);
    see("token", &["token", "titech:/data"]);
    let token = titech.ok(&["token", "titech:/data", "--may", "read"]);
    see("token inspect", &["token", "inspect", token.trim()]);
}

/// The verbs of a PoP's administrator and user.
fn see_pop_verbs(federation: &mut Federation, pages: &mut Pages) {
    let folder = federation.scratch().join("issuer");
    std::fs::create_dir(&folder).unwrap();
    let issuer = Issuer::start(&folder);
    issuer.trusted_by(&mut federation.titech);
    let titech = &federation.titech;
    let account = crate::federation::account();
    let third = federation.scratch().join("third");
    let made = titech.command_in(&third).args(["--json", "init", "--site", "osaka"]).output().unwrap();
    pages.see("init", &serde_json::from_slice(&made.stdout).unwrap());
    let user = titech.command_in(&federation.scratch().join("user"));
    let got = { user }.args(["--json", "login", "--pop"]).arg(titech.dir()).output().unwrap();
    pages.see("login", &serde_json::from_slice(&got.stdout).unwrap());
    let user = titech.command_in(&federation.scratch().join("user"));
    let got = { user }.args(["--json", "logout"]).output().unwrap();
    pages.see("logout", &serde_json::from_slice(&got.stdout).unwrap());
    let folder = third.to_str().unwrap();
    let mut see = |verb: &str, arguments: &[&str]| pages.see(verb, &titech.json(arguments).1);
    see("storage add", &["storage", "add", "more", folder]);
    see("storage list", &["storage", "list"]);
    see("storage add", &["storage", "remove", "more"]);
    see("volume create", &["volume", "create", "genome", "--storage", "data"]);
    see("volume create", &["volume", "grant", "genome", "*@kek", "read", "--on", "public"]);
    see("volume list", &["volume", "list"]);
    see("volume show", &["volume", "show", "genome"]);
    see("rule add", &["rule", "add", "raw", "titech:/data/drop", "kek:/data/raw"]);
    see("rule list", &["rule", "list"]);
    see("rule add", &["rule", "remove", "raw"]);
    see("trust export", &["trust", "export"]);
    see("trust add", &["trust", "add", "--yes", titech.dir().join("kek.card").to_str().unwrap()]);
    see("trust list", &["trust", "list"]);
    see("invite", &["invite"]);
    let (_, listing) = titech.json(&["invite", "--list"]);
    see("invite", &["invite", "--list"]);
    see("invite", &["invite", "--cancel", listing["invitations"][0]["id"].as_str().unwrap()]);
    let authorities = titech.dir().join("authorities");
    std::fs::create_dir(&authorities).unwrap();
    std::fs::copy(titech.dir().join("pki/ca.pem"), authorities.join("0a1b2c3d.0")).unwrap();
    see("trust ca add", &["trust", "ca", "add", authorities.to_str().unwrap()]);
    see("trust ca list", &["trust", "ca", "list"]);
    see("trust ca add", &["trust", "ca", "remove", authorities.to_str().unwrap()]);
    see("map test DN", &["map", "test", "dn:/C=JP/O=NII/CN=Taro"]);
    see("map test krb:NAME@REALM", &["map", "test", "krb:taro@EXAMPLE.ORG"]);
    let line = federation.kek.ok(&["invite"]);
    see("join", &["join", line.trim()]);
    see("map add", &["map", "add", "--yes", "alice@kek", &account]);
    see("map list", &["map", "list"]);
    see("map test", &["map", "test", &format!("{account}@kek")]);
    see("map test --scope", &["map", "test", "--scope", "storage.read:/data"]);
    see("map test --scope", &["map", "test", "--scope", "storage.poll:/data"]);
    see(
        "map test",
        &["map", "test", &format!("{account}@kek"), "--scope", "storage.read:/data storage.poll:/"],
    );
    see_tokens(titech, &issuer, &mut see);
    see("whoami", &["whoami"]);
    see("whoami SITE", &["whoami", "kek"]);
    see("whoami SITE", &["whoami", "titech"]);
    see("route", &["route", "kek"]);
    see("console", &["console"]);
    see("doctor", &["doctor"]);
    see("doctor", &["doctor", "kek"]);
    see("mount-credential grant", &["mount-credential", "grant", "node17", "--user", &account]);
    see("mount-credential list", &["mount-credential", "list"]);
    see("mount-credential revoke", &["mount-credential", "revoke", "node17"]);
    see("renew", &["renew"]);
    see("site rotate-authority", &["site", "rotate-authority"]);
    see("revoke", &["revoke", "0123456789abcdef"]);
}

/// The verbs that work on places.
fn see_place_verbs(federation: &Federation, pages: &mut Pages) {
    let (titech, place) = (&federation.titech, |path: &str| federation.kek.place(path));
    let (dir, none) = (place("dir"), place("none"));
    let mut see = |verb: &str, arguments: &[&str]| pages.see(verb, &titech.json(arguments).1);
    see("failure", &["ls", &none]);
    see("ls", &["ls", "-l", &dir, &none]);
    see("ls", &["ls", "-U", &dir]);
    see("find", &["find", &dir, &none]);
    see("stat", &["stat", &place("dir/a.dat"), &none]);
    see("mkdir", &["mkdir", &place("new"), &dir]);
    see("mkdir", &["mv", &place("new"), &place("newer")]);
    see("mkdir", &["chmod", "750", &place("newer")]);
    see("mkdir", &["ln", "-s", "a.dat", &place("newer/link")]);
    see("mkdir", &["rm", "-r", &place("newer"), &none]);
    see("mkdir", &["put", &place("put")]);
    see("mkdir", &["mkdir", &place("empty")]);
    see("mkdir", &["rmdir", &place("empty")]);
    see("du", &["du", &dir, &none]);
    see("df", &["df", "kek", "nowhere"]);
    see("checksum", &["checksum", "-r", &dir, &none]);
    let copies = federation.scratch().join("copies");
    std::fs::create_dir(&copies).unwrap();
    see("cp", &["sync", "--dry-run", &dir, copies.to_str().unwrap()]);
    see("cp", &["cp", "-r", &dir, copies.to_str().unwrap()]);
}

/// The verbs of queued transfers.
fn see_queue_verbs(federation: &Federation, pages: &mut Pages) {
    let Federation { titech, kek, .. } = federation;
    let mut see = |verb: &str, arguments: &[&str]| {
        let (_, told) = titech.json(arguments);
        pages.see(verb, &told);
        told["transfer"].as_str().unwrap_or_default().to_owned()
    };
    // A directory that is not empty stands where a file shall go.
    std::fs::create_dir_all(titech.root().join("dir/a.dat/x")).unwrap();
    let first = see("cp --detach", &["cp", "--detach", "-r", &kek.place("dir"), &titech.root_place()]);
    see("transfers", &["wait", &first]);
    let second = ["sync", "--detach", &kek.place("dir"), &titech.place("other")];
    let second = see("cp --detach", &second);
    titech.renkei(&["pause", &second]);
    let third = ["cp", "--detach", "--after", &second, &kek.place("dir/a.dat"), &titech.place("third")];
    let third = see("cp --detach", &third);
    see("why", &["why", &first]);
    see("why", &["why", &third]);
    see("transfers", &["transfers", "--ended"]);
    see("cancel", &["cancel", &third, "0123456789"]);
}

/// A buffer with nothing in it.
fn see_the_buffer(federation: &mut Federation, pages: &mut Pages) {
    let titech = &mut federation.titech;
    let config = titech.dir().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n[buffer]\nsize_mib = 1\n")).unwrap();
    titech.restart();
    pages.see("buffer", &titech.json(&["buffer"]).1);
}

/// `status` while a transfer runs; one that was over too soon is begun again.
fn see_a_running_transfer(federation: &mut Federation, pages: &mut Pages) {
    let big = federation.scratch().join("big");
    std::fs::write(&big, vec![7u8; 256 << 20]).unwrap();
    let titech = &federation.titech;
    let running = (0..20).find_map(|_| {
        let mut copy =
            titech.command().arg("-q").arg("cp").arg(&big).arg(federation.kek.place("big")).spawn().unwrap();
        let seen = status_of_running(federation, &mut copy);
        assert!(copy.wait().unwrap().success());
        seen
    });
    pages.see("status", &running.expect("of 20 transfers, one is seen while it runs"));
    pages.see("status", &titech.json(&["status", "kek"]).1);
    let map = titech.dir().join("map");
    let good = std::fs::read_to_string(&map).unwrap();
    std::fs::write(&map, "nonsense").unwrap();
    crate::console::conditions::comes(titech, "configuration", "");
    pages.see("status", &titech.json(&["status"]).1);
    pages.see("status", &titech.json(&["status", "--workers"]).1);
    std::fs::write(&map, good).unwrap();
}

fn see_unfinished(federation: &Federation, pages: &mut Pages) {
    let Federation { titech, kek, .. } = federation;
    let big = federation.scratch().join("big");
    let mut copy =
        titech.command().args(["-q", "cp", "--limit", "2M"]).arg(big).arg(kek.place("slow")).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let listed = loop {
        let (_, listed) = titech.json(&["unfinished", "kek"]);
        let is_there = listed["unfinished"].as_array().is_some_and(|all| !all.is_empty());
        if is_there || std::time::Instant::now() > deadline {
            break listed;
        }
    };
    copy.kill().unwrap();
    copy.wait().unwrap();
    pages.see("unfinished", &listed);
}

fn status_of_running(federation: &Federation, copy: &mut Child) -> Option<Value> {
    while copy.try_wait().unwrap().is_none() {
        let (_, status) = federation.kek.json(&["status"]);
        if status["transfers"].as_array().is_some_and(|transfers| !transfers.is_empty()) {
            return Some(status);
        }
    }
    None
}
