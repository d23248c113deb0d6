//! Reads the sources of both crates and fails on what the style page forbids and no lint finds.
//!
//! Each rule is a function from one [`Source`] to the lines that break it, so that the rules are tested themselves
//! with small bad examples. Text in comments and strings does not count, except where a rule says so.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines a file may have.
const MAX_LINES: usize = 1000;

/// Names that say nothing about what a module is for.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// What each area of crates/renkei/src may use beside itself and renkei-core, from the lowest to the highest.
/// An area that is not here has no place in the architecture yet: give it one.
const MAY_USE: &[(&str, &[&str])] = &[
    ("store", &[]),
    ("home", &["config", "telemetry"]),
    ("config", &["home", "telemetry"]),
    ("telemetry", &["home", "config"]),
    ("identity", SERVICE),
    ("net", SERVICE),
    // Streams run as the mapped account, on links that are measured.
    ("mover", &["store", "home", "config", "telemetry", "identity", "net"]),
    // The database: it knows what is kept, not what it is for.
    ("catalogue", SERVICE),
    ("namespace", SERVICE),
    // Plain files and the catalogue that follows them.
    ("volume", &["store", "home", "config", "telemetry", "catalogue"]),
    ("staging", SERVICE),
    ("hosting", SERVICE),
    // An emulator beside the PoP: it starts PoPs that trust each other, and knows nothing of transfers.
    ("lab", &["home", "config", "telemetry", "identity"]),
    ("site", BELOW_SITE),
    // A door sees the facade and its connections, and nothing else below.
    ("doors", &["site", "net", "home", "config", "telemetry"]),
    // A file system over whoever does operations on files: a store here, or a session with a site.
    ("mount", &["mover", "store", "home", "config", "telemetry"]),
    ("daemon", ALL),
    ("cli", ALL),
    ("main", ALL),
    ("lib", ALL),
];

/// What the services beside one another may use.
const SERVICE: &[&str] = &["store", "home", "config", "telemetry"];

/// Those at the top wire everything; from the lowest to the highest.
const ALL: &[&str] = &[
    "store",
    "home",
    "config",
    "telemetry",
    "identity",
    "net",
    "mover",
    "catalogue",
    "namespace",
    "volume",
    "staging",
    "hosting",
    "site",
    "doors",
    "mount",
    "lab",
    "daemon",
    "cli",
];

/// Everything the facade stands on: all that comes before it.
const BELOW_SITE: &[&str] = ALL.split_at(SITE_AT).0;

/// Where the facade stands in [`ALL`].
const SITE_AT: usize = 12;

/// Clocks and chance, which the core gets as arguments.
const IMPURE: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "thread_rng",
    "rand::",
    "getrandom",
    "fastrand",
    "RandomState",
    "thread::sleep",
];

// ---- sources ---------------------------------------------------------------------------------------------------------

/// One file: where it is, its text, and its code without comments, strings and (in `shipped`) tests.
struct Source {
    /// From the repository's root, with `/`.
    path: String,
    text: String,
    code: String,
    shipped: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let code = blank_comments_and_strings(text);
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
        let shipped = if is_test { String::new() } else { blank_test_modules(&code) };
        Source { path: path.into(), text: text.into(), code, shipped }
    }

    /// The path's components below `src/`, if it is there.
    fn below_src(&self) -> Option<Vec<&str>> {
        self.path.split_once("/src/").map(|(_, rest)| rest.split('/').collect())
    }

    /// The area of crates/renkei/src this file belongs to.
    fn area(&self) -> Option<&str> {
        let rest = self.path.strip_prefix("crates/renkei/src/")?;
        Some(rest.split('/').next()?.trim_end_matches(".rs"))
    }

    /// Lines of `text` that contain `needle`, as messages.
    fn lines_with(&self, text: &str, needle: &str) -> Vec<String> {
        let hits = text.lines().enumerate().filter(|(_, line)| line.contains(needle));
        hits.map(|(number, _)| format!("{}:{}: {needle}", self.path, number + 1)).collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files of the two crates.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(&folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(Source::new(&relative(&path), &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 5, "the sources were not found below {}", root().display());
    mark_test_files(&mut found);
    found
}

/// Files that only `#[cfg(test)] mod NAME;` brings in hold nothing that is shipped.
fn mark_test_files(all: &mut [Source]) {
    let only_tests: Vec<_> =
        all.iter().filter(|source| is_test_module(source, all)).map(|s| s.path.clone()).collect();
    for source in all.iter_mut().filter(|source| only_tests.contains(&source.path)) {
        source.shipped.clear();
    }
}

fn is_test_module(source: &Source, all: &[Source]) -> bool {
    let line = format!("mod {};", stem(&source.path));
    let parents = parent(&source.path);
    let named_in = |text: &str| text.contains(&line);
    all.iter()
        .any(|other| parents.contains(&other.path) && named_in(&other.code) && !named_in(&other.shipped))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
}

/// Fails with everything `rule` finds.
fn enforce(rule: impl Fn(&Source) -> Vec<String>) {
    let broken: Vec<_> = sources().iter().flat_map(rule).collect();
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

// ---- reading Rust, as far as the rules need it -----------------------------------------------------------------------

/// Replaces comments, strings and characters by blanks; line breaks stay.
fn blank_comments_and_strings(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        for byte in &mut out[at..end.unwrap_or(at)] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.unwrap_or(at + 1);
    }
    String::from_utf8(out).expect("whole literals are replaced, so no character is cut")
}

/// The end of the comment, string or character that begins at `at`.
fn literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    match (bytes[at], bytes.get(at + 1)) {
        (b'/', Some(b'/')) => Some(find(bytes, at, b"\n").unwrap_or(bytes.len())),
        (b'/', Some(b'*')) => Some(comment_end(bytes, at)),
        (b'r', Some(b'"' | b'#')) if !in_word(bytes, at) => raw_string_end(bytes, at + 1),
        (b'"', _) => Some(quoted_end(bytes, at + 1, b'"')),
        (b'\'', Some(b'\\')) => Some(quoted_end(bytes, at + 1, b'\'')),
        (b'\'', Some(_)) => character_end(bytes, at),
        _ => None,
    }
}

fn find(bytes: &[u8], from: usize, needle: &[u8]) -> Option<usize> {
    bytes[from..].windows(needle.len()).position(|window| window == needle).map(|offset| from + offset)
}

/// Whether `at` is inside a word; `br"` and `cr"` begin strings all the same.
fn in_word(bytes: &[u8], at: usize) -> bool {
    let word = |index: usize| bytes[index].is_ascii_alphanumeric() || bytes[index] == b'_';
    match at {
        0 => false,
        1 => word(0) && !matches!(bytes[0], b'b' | b'c'),
        _ => word(at - 1) && (word(at - 2) || !matches!(bytes[at - 1], b'b' | b'c')),
    }
}

/// Block comments nest.
fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

/// `at` stands on the first `#` or quote of a raw string; a raw identifier (`r#type`) is none.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().take_while(|&&byte| byte == b'#').count();
    if bytes.get(at + hashes) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    Some(find(bytes, at + hashes + 1, &close).map_or(bytes.len(), |end| end + close.len()))
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

/// A character is closed right after it; else the quote began a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    let length = match bytes[at + 1] {
        byte if byte < 0x80 => 1,
        byte if byte < 0xe0 => 2,
        byte if byte < 0xf0 => 3,
        _ => 4,
    };
    (bytes.get(at + 1 + length) == Some(&b'\'')).then_some(at + 2 + length)
}

/// Blanks what `#[cfg(test)]` stands before: a block in braces, or an item up to its semicolon.
fn blank_test_modules(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(begin) = out.find("#[cfg(test)]") {
        let end = item_end(&out, begin);
        let blank: String = out[begin..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(begin..end, &blank);
    }
    out
}

fn item_end(code: &str, begin: usize) -> usize {
    let mut depth = 0;
    for (offset, byte) in code[begin..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return begin + offset + 1,
            _ => continue,
        }
        if depth == 0 {
            return begin + offset + 1;
        }
    }
    code.len()
}

/// The areas a file names after `crate::`, alone or in a group.
fn used_areas(code: &str) -> BTreeSet<String> {
    let mut areas = BTreeSet::new();
    for (at, found) in code.match_indices("crate::") {
        let is_path = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_path {
            areas.extend(first_words(&code[at + found.len()..]));
        }
    }
    areas
}

/// First word of a path, or the first words of the paths in its group: `{a, b::{c, d}}` gives a and b.
fn first_words(path: &str) -> Vec<String> {
    let word =
        |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut words, mut begin) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                words.push(word(&group[begin..at]));
                begin = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

// ---- the rules -------------------------------------------------------------------------------------------------------

/// Calls go one way: cli, daemon -> doors, mount -> site -> services -> store -> core.
fn against_direction(source: &Source) -> Vec<String> {
    let Some(area) = source.area() else { return Vec::new() };
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == area) else {
        return vec![format!("{}: the area `{area}` has no place in tidy.rs's table", source.path)];
    };
    let is_area = |name: &&String| MAY_USE.iter().any(|(known, _)| known == name);
    let used = used_areas(&source.shipped);
    let wrong = used.iter().filter(is_area).filter(|name| *name != area && !allowed.contains(&name.as_str()));
    wrong.map(|name| format!("{}: {area} must not use {name}", source.path)).collect()
}

fn too_long(source: &Source) -> Vec<String> {
    let lines = source.text.lines().count();
    if lines > MAX_LINES { vec![format!("{}: {lines} lines", source.path)] } else { Vec::new() }
}

/// The core is the same in every run, its tests too.
fn impure_core(source: &Source) -> Vec<String> {
    if !source.path.starts_with("crates/renkei-core/") {
        return Vec::new();
    }
    IMPURE.iter().flat_map(|call| source.lines_with(&source.code, call)).collect()
}

fn empty_name(source: &Source) -> Vec<String> {
    let words = source.path.split('/').map(|part| part.trim_end_matches(".rs"));
    let named =
        words.filter(|word| EMPTY_NAMES.contains(word)).map(|word| format!("{}: {word}", source.path));
    let inline = EMPTY_NAMES.iter().flat_map(|name| source.lines_with(&source.code, &format!("mod {name} ")));
    named.chain(inline).collect()
}

fn getter(source: &Source) -> Vec<String> {
    source.lines_with(&source.code, "fn get_")
}

/// Nothing unfinished; words of comments count here. The words are put together so that this file does not contain them.
fn unfinished(source: &Source) -> Vec<String> {
    let in_text = [["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    let in_code = ["todo!", "unimplemented!", "#[ignore"];
    let text = in_text.iter().flat_map(|word| source.lines_with(&source.text, word));
    text.chain(in_code.iter().flat_map(|word| source.lines_with(&source.code, word))).collect()
}

fn unwrap_outside_tests(source: &Source) -> Vec<String> {
    source.lines_with(&source.shipped, ".unwrap()")
}

/// Below the command line every failure has a code.
fn anyhow_outside_cli(source: &Source) -> Vec<String> {
    let may = matches!(source.area(), Some("cli" | "main"));
    if may { Vec::new() } else { source.lines_with(&source.shipped, "anyhow::") }
}

fn too_deep(source: &Source) -> Vec<String> {
    let Some(parts) = source.below_src() else { return Vec::new() };
    let most = if matches!(parts[0], "doors" | "volume") { 3 } else { 2 };
    if parts.len() > most {
        vec![format!("{}: {} levels below src", source.path, parts.len())]
    } else {
        Vec::new()
    }
}

/// The file whose `mod` line brings this one into the build; none for roots.
fn parent(path: &str) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    // Each file among the examples is a program.
    let is_root =
        (folder.ends_with("/src") && matches!(file, "lib.rs" | "main.rs")) || folder.ends_with("/examples");
    if is_root || path.ends_with("/tests/it/main.rs") {
        return Vec::new();
    }
    let folder = if file == "mod.rs" { folder.rsplit_once('/').map_or("", |(up, _)| up) } else { folder };
    let mut parents: Vec<_> =
        ["mod.rs", "lib.rs", "main.rs"].iter().map(|name| format!("{folder}/{name}")).collect();
    parents.push(format!("{folder}.rs"));
    parents
}

/// The name of the module a file holds.
fn stem(path: &str) -> &str {
    path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or_default()
}

/// Files no `mod` line names: they look like code or tests, and are neither.
fn forgotten(all: &[Source]) -> Vec<String> {
    let is_named = |source: &Source| {
        let parents = parent(&source.path);
        let stem =
            source.path.trim_end_matches("/mod.rs").trim_end_matches(".rs").rsplit('/').next().unwrap_or("");
        let line = format!("mod {stem};");
        parents.is_empty()
            || all.iter().any(|other| {
                parents.contains(&other.path) && other.path != source.path && other.code.contains(&line)
            })
    };
    all.iter()
        .filter(|source| !is_named(source))
        .map(|source| format!("{}: no `mod` names it", source.path))
        .collect()
}

// ---- the sources keep to the rules -----------------------------------------------------------------------------------

#[test]
fn the_facade_stands_above_its_services() {
    assert_eq!(ALL[SITE_AT], "site");
}

#[test]
fn calls_go_one_way() {
    enforce(against_direction);
}

#[test]
fn files_are_short() {
    enforce(too_long);
}

#[test]
fn the_core_has_no_clock_and_no_chance() {
    enforce(impure_core);
}

#[test]
fn modules_have_names() {
    enforce(empty_name);
}

#[test]
fn nothing_is_called_get() {
    enforce(getter);
}

#[test]
fn nothing_is_left_for_later() {
    enforce(unfinished);
}

#[test]
fn nothing_unwraps() {
    enforce(unwrap_outside_tests);
}

#[test]
fn errors_have_codes_below_the_command_line() {
    enforce(anyhow_outside_cli);
}

#[test]
fn folders_are_flat() {
    enforce(too_deep);
}

#[test]
fn no_file_is_forgotten() {
    let broken = forgotten(&sources());
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

// ---- the rules find what they should ---------------------------------------------------------------------------------

#[test]
fn rules_find_bad_examples() {
    type Rule = fn(&Source) -> Vec<String>;
    let core = "crates/renkei-core/src/link/pace.rs";
    let store = "crates/renkei/src/store/local.rs";
    let later = ["// TO", "DO: more"].concat();
    let long = "\n".repeat(MAX_LINES + 1);
    let bad: &[(Rule, &str, &str)] = &[
        (against_direction, store, "use crate::mover::Session;"),
        (
            against_direction,
            "crates/renkei/src/doors/rest/mod.rs",
            "use crate::{site::Site, mover::Session};",
        ),
        (against_direction, "crates/renkei/src/site.rs", "fn f() { crate::cli::run() }"),
        (against_direction, "crates/renkei/src/elsewhere/x.rs", ""),
        (too_long, store, &long),
        (impure_core, core, "fn f() { let now = std::time::Instant::now(); }"),
        (impure_core, core, "#[cfg(test)]\nmod tests { fn f() { SystemTime::now(); } }"),
        (empty_name, "crates/renkei/src/store/util.rs", ""),
        (empty_name, store, "mod helpers {\n}"),
        (getter, store, "pub fn get_size() {}"),
        (unfinished, store, &later),
        (unfinished, store, "fn f() { todo!() }"),
        (unfinished, store, "#[ignore]\nfn f() {}"),
        (unwrap_outside_tests, store, "fn f() { g().unwrap(); }\n#[cfg(test)]\nmod tests {}"),
        (anyhow_outside_cli, store, "use anyhow::Context;"),
        (too_deep, "crates/renkei/src/store/local/open.rs", ""),
    ];
    for (number, (rule, path, text)) in bad.iter().enumerate() {
        assert_eq!(rule(&Source::new(path, text)).len(), 1, "example {number}: {path}");
    }
}

#[test]
fn rules_pass_good_examples() {
    let text = r##"
        //! .unwrap() and crate::mover in a comment
        use crate::{config::Config, store::{Dir, local}};
        fn f<'a>(x: &'a str) -> char { g(".unwrap() \" anyhow::", r#"fn get_ "crate::cli"#, b'\'', 'é'); '"' }
        #[cfg(test)]
        mod tests { fn t() { x("}").unwrap(); crate::cli::run(); } }
    "##;
    let source = Source::new("crates/renkei/src/identity/card.rs", text);
    let rules = [
        against_direction,
        getter,
        unwrap_outside_tests,
        anyhow_outside_cli,
        unfinished,
        too_deep,
        empty_name,
    ];
    let found: Vec<_> = rules.iter().flat_map(|rule| rule(&source)).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn groups_and_macros_are_seen() {
    let used = used_areas("use crate::{\n    a::{b, c},\n    d,\n};\nx!(crate::e::f); use renkei_crate::g;");
    assert_eq!(used.into_iter().collect::<Vec<_>>(), ["a", "d", "e"]);
}

#[test]
fn test_files_may_unwrap() {
    let mut all = [
        Source::new("crates/renkei/src/store/mod.rs", "#[cfg(test)]\nmod conformance;\nmod local;"),
        Source::new("crates/renkei/src/store/conformance.rs", "fn f() { g().unwrap(); }"),
        Source::new("crates/renkei/src/store/local.rs", "fn f() { g().unwrap(); }"),
    ];
    mark_test_files(&mut all);
    let found: Vec<_> = all.iter().flat_map(unwrap_outside_tests).collect();
    assert_eq!(found, ["crates/renkei/src/store/local.rs:1: .unwrap()"]);
}

#[test]
fn forgotten_files_are_found() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let all = [
        file("crates/renkei/tests/it/main.rs", "mod tidy; // mod resume;"),
        file("crates/renkei/tests/it/tidy.rs", ""),
        file("crates/renkei/tests/it/resume.rs", ""),
        file("crates/renkei/src/lib.rs", "pub mod store;"),
        file("crates/renkei/examples/floor.rs", "fn main() {}"),
        file("crates/renkei/src/store/mod.rs", "mod local;"),
        file("crates/renkei/src/store/local.rs", ""),
        file("crates/renkei/src/store/lost.rs", ""),
    ];
    let found = forgotten(&all);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("resume.rs") && found[1].contains("lost.rs"), "{found:?}");
}
