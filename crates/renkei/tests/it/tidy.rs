//! Rules of the style page that no lint checks, over the sources of all crates.
//!
//! Each rule is a function from one [`Source`] to the lines that break it, so that the rules are tested themselves
//! with small bad examples. Text in comments and strings does not count, except where a rule says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines a file may have.
const MAX_LINES: usize = 1000;

/// Most levels below `src/`, the file counted.
const MAX_LEVELS: usize = 3;

/// Names of modules that do not name a thing.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// Most files in a folder.
const MAX_FILES: usize = 20;

/// Most files that may import one another in a circle.
const MAX_CIRCLE: usize = 4;

/// Clocks and randomness, which the core gets as arguments.
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

    /// The folder it is in.
    fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Its crate, and its module path there; none outside of `src/`.
    fn module(&self) -> Option<(&str, Vec<&str>)> {
        let (name, rest) = self.path.strip_prefix("crates/")?.split_once("/src/")?;
        let mut parts: Vec<_> = rest.trim_end_matches(".rs").split('/').collect();
        parts.pop_if(|last| matches!(*last, "mod" | "lib" | "main"));
        Some((name, parts))
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

/// All Rust files of the crates.
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

/// Files that only `#[cfg(test)] mod NAME;` brings in, and the modules of those, are not shipped.
fn mark_test_files(all: &mut [Source]) {
    loop {
        let unmarked = all.iter().filter(|source| !source.shipped.is_empty());
        let only_tests: Vec<_> =
            unmarked.filter(|source| is_test_module(source, all)).map(|s| s.path.clone()).collect();
        if only_tests.is_empty() {
            return;
        }
        for source in all.iter_mut().filter(|source| only_tests.contains(&source.path)) {
            source.shipped.clear();
        }
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
    while let Some(begin) = ["#[cfg(test)]", "#[cfg(any(test,"].iter().find_map(|gate| out.find(gate)) {
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

/// The paths that a file in a module names from `crate` or `super` on, groups taken apart.
fn named_paths(code: &str, module: &[&str]) -> Vec<Vec<String>> {
    paths_from(code, module, &["crate::".to_owned(), "super::".to_owned()])
}

/// The paths that begin with one of these words.
fn paths_from(code: &str, module: &[&str], words: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for root in words {
        for (at, _) in code.match_indices(root.as_str()) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut base: Vec<String> = match root.as_str() {
                "crate::" => Vec::new(),
                _ => module.iter().map(|&part| part.to_owned()).collect(),
            };
            let mut rest = code[at..].trim_start_matches("crate::");
            while let Some(up) = rest.strip_prefix("super::") {
                base.pop();
                rest = up;
            }
            take_apart(&base, rest, &mut found);
        }
    }
    found
}

/// Adds the paths that `text` begins with below `base`: `a::{b, c::d}` gives two. Returns the text behind it.
fn take_apart<'t>(base: &[String], text: &'t str, found: &mut Vec<Vec<String>>) -> &'t str {
    let mut text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = take_apart(base, rest, found).trim_start();
            match rest.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => rest = next,
                Some(next) => return next.trim_start().strip_prefix('}').unwrap_or(next),
                None => return rest.strip_prefix('}').unwrap_or(rest),
            }
        }
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(text.len());
    let mut path = base.to_vec();
    path.push(text[..end].to_owned());
    text = &text[end..];
    match text.strip_prefix("::") {
        Some(rest) => take_apart(&path, rest, found),
        None => {
            found.push(path);
            match text.trim_start().strip_prefix("as ") {
                Some(alias) => {
                    alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_' || c == ' ')
                }
                None => text,
            }
        }
    }
}

/// The modules that a file declares, as the beginnings of paths into them.
fn declared(code: &str) -> Vec<String> {
    let names = code.match_indices("mod ").filter_map(|(at, _)| {
        let (name, _) = code[at + 4..].split_once(';')?;
        name.chars().all(|c| c.is_alphanumeric() || c == '_').then(|| format!("{name}::"))
    });
    names.collect()
}

/// The code without its re-exports, and those: they are an address of other files, and no use of them.
fn without_re_exports(code: &str) -> (String, String) {
    let (mut code, mut re_exports, mut from) = (code.to_owned(), String::new(), 0);
    while let Some(at) = code[from..].find("pub").map(|at| from + at) {
        from = at + 3;
        let after = code[from..].trim_start_matches(|c: char| c == '(' || c == ')' || c.is_alphanumeric());
        let Some(end) = after.trim_start().strip_prefix("use ").and_then(|_| after.find(';')) else {
            continue;
        };
        let end = code.len() - after.len() + end;
        re_exports.push_str(&code[code.len() - after.len()..=end]);
        code.replace_range(at..=end, &" ".repeat(end + 1 - at));
    }
    (code, re_exports)
}

/// The files of a repository by crate and module, and the re-exports of those that declare modules.
struct Modules<'a> {
    files: BTreeMap<(&'a str, Vec<&'a str>), &'a Source>,
    /// For a file and a name, the path that it is re-exported from; none if that is another crate.
    re_exports: BTreeMap<(&'a str, String), Option<Vec<String>>>,
}

fn is_root(source: &Source) -> bool {
    source.path.ends_with("/mod.rs") || source.path.ends_with("/src/lib.rs")
}

impl<'a> Modules<'a> {
    fn of(all: &'a [Source]) -> Self {
        let shipped = all.iter().filter(|source| !source.shipped.trim().is_empty());
        let files: BTreeMap<_, _> = shipped.filter_map(|source| Some((source.module()?, source))).collect();
        let mut re_exports = BTreeMap::new();
        for ((_, module), source) in files.iter().filter(|(_, source)| is_root(source)) {
            let text = without_re_exports(&source.shipped).1;
            let own = own_paths(&text, module, &declared(&source.shipped));
            for statement in text.split(';') {
                let mut all_of_it = Vec::new();
                take_apart(&[], statement.trim().trim_start_matches("use "), &mut all_of_it);
                for path in all_of_it {
                    let name = path.last().cloned().unwrap_or_default();
                    let from = own.iter().find(|from| from.last() == Some(&name)).cloned();
                    re_exports.insert((source.path.as_str(), name), from);
                }
            }
        }
        Modules { files, re_exports }
    }

    /// The file of the item that a path of a crate names.
    fn find(&self, name: &'a str, path: &[String]) -> Option<&'a Source> {
        let parts: Vec<&str> = path.iter().map(String::as_str).collect();
        let key = |end: usize| (name, parts[..end].to_vec());
        let (end, file) =
            (0..=parts.len()).rev().find_map(|end| self.files.get(&key(end)).map(|file| (end, *file)))?;
        let item = parts.get(end).map(|item| (*item).to_owned());
        match item.and_then(|item| self.re_exports.get(&(file.path.as_str(), item))) {
            Some(Some(from)) => self.find(name, &[&from[..], &path[end + 1..]].concat()),
            Some(None) => None,
            None => Some(file),
        }
    }
}

/// The paths into its own crate that a file names: from `crate` and `super` on, and into modules that it declares.
fn own_paths(code: &str, module: &[&str], declared: &[String]) -> Vec<Vec<String>> {
    let mut found = named_paths(code, module);
    found.extend(paths_from(code, module, declared));
    found
}

/// The imports of each file within its own crate, by paths of files. A file that declares modules counts as far as it has
/// something itself.
fn imports(all: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let modules = Modules::of(all);
    let mut graph = BTreeMap::new();
    for ((name, module), source) in &modules.files {
        let to: &mut BTreeSet<&str> = graph.entry(source.path.as_str()).or_default();
        let children = if is_root(source) { declared(&source.shipped) } else { Vec::new() };
        for path in own_paths(&without_re_exports(&source.shipped).0, module, &children) {
            let file = modules.find(name, &path).filter(|file| file.path != source.path);
            to.extend(file.map(|file| file.path.as_str()));
        }
    }
    graph
}

/// The same without the files that declare modules: how folders use one another.
fn imports_of_folders(all: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut graph = imports(all);
    let is_root = |path: &str| path.ends_with("/mod.rs") || path.ends_with("/src/lib.rs");
    graph.retain(|from, _| !is_root(from));
    graph.values_mut().for_each(|to| to.retain(|to| !is_root(to)));
    graph
}

/// The circles of a graph: its strongly connected components of more than one node.
fn circles<'g>(graph: &BTreeMap<&'g str, BTreeSet<&'g str>>) -> Vec<BTreeSet<&'g str>> {
    let reach = |from: &'g str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(node) = todo.pop() {
            let next = graph.get(node).into_iter().flatten().copied();
            todo.extend(next.filter(|node| seen.insert(*node)));
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph.keys().map(|node| (*node, reach(node))).collect();
    let mut found = BTreeSet::new();
    for (node, from_here) in &reached {
        let is_both_ways = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(node));
        let circle: BTreeSet<&str> = from_here.iter().filter(is_both_ways).copied().chain([*node]).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

// ---- the rules -------------------------------------------------------------------------------------------------------

/// A folder has few files.
fn too_many_files(all: &[Source]) -> Vec<String> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for source in all {
        *folders.entry(source.folder()).or_default() += 1;
    }
    let full = folders.into_iter().filter(|(_, count)| *count > MAX_FILES);
    full.map(|(folder, count)| format!("{folder}: {count} files")).collect()
}

/// Circles of imports are small.
fn large_circles(all: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for circle in circles(&imports(all)) {
        let folder = common_folder(&circle);
        if circle.len() > MAX_CIRCLE {
            found.push(format!("{folder}: {} files import one another: {circle:?}", circle.len()));
        }
    }
    found
}

/// The folder that holds all of these files.
fn common_folder(paths: &BTreeSet<&str>) -> String {
    let mut folder = paths.first().expect("a circle has files").to_string();
    while !paths.iter().all(|path| path.starts_with(&format!("{folder}/"))) {
        folder.truncate(folder.rfind('/').unwrap_or(0));
    }
    folder
}

/// Folders of a crate are used in one direction.
fn circles_of_folders(all: &[Source]) -> Vec<String> {
    let graph = imports_of_folders(all);
    let folder = |path: &'_ str| path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in &graph {
        let others = to.iter().map(|to| folder(to)).filter(|to| *to != folder(from));
        folders.entry(folder(from)).or_default().extend(others);
    }
    let folders: BTreeMap<&str, BTreeSet<&str>> =
        folders.iter().map(|(from, to)| (from.as_str(), to.iter().map(String::as_str).collect())).collect();
    let mut found = Vec::new();
    for circle in circles(&folders) {
        let first = circle.first().expect("a circle has folders");
        let name = first.split('/').nth(1).unwrap_or_default();
        if circle.len() > 1 {
            found.push(format!("{name}: {} folders import one another: {circle:?}", circle.len()));
        }
    }
    found
}

/// Rooms of the site do not know the facade, which holds them: each gets the context and the rooms below it.
fn knows_the_site(source: &Source) -> Vec<String> {
    let Some(("renkei-site", module)) = source.module() else { return Vec::new() };
    match named_paths(&source.shipped, &module).contains(&vec!["Site".to_owned()]) {
        true => vec![format!("{}: it imports the facade", source.path)],
        false => Vec::new(),
    }
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

/// The operations of S3 are named by the trait of s3s, all of them asynchronous.
fn getter(source: &Source) -> Vec<String> {
    match source.path.starts_with("crates/renkei-s3/") {
        true => source.lines_with(&source.code.replace("async fn get_", "async fn "), "fn get_"),
        false => source.lines_with(&source.code, "fn get_"),
    }
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

fn too_deep(source: &Source) -> Vec<String> {
    let Some(parts) = source.below_src() else { return Vec::new() };
    if parts.len() > MAX_LEVELS {
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

/// Fails with the findings of a rule about all files.
fn enforce_together(rule: impl Fn(&[Source]) -> Vec<String>) {
    let broken = rule(&sources());
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn folders_are_small() {
    enforce_together(too_many_files);
}

#[test]
fn few_files_import_one_another() {
    enforce_together(large_circles);
}

#[test]
fn folders_import_in_one_direction() {
    enforce_together(circles_of_folders);
}

#[test]
fn rooms_do_not_import_the_site() {
    enforce(knows_the_site);
}

#[test]
fn files_are_short() {
    enforce(too_long);
}

#[test]
fn the_core_has_no_clock_and_no_randomness() {
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
fn nothing_is_unfinished() {
    enforce(unfinished);
}

#[test]
fn nothing_unwraps() {
    enforce(unwrap_outside_tests);
}

#[test]
fn folders_are_flat() {
    enforce(too_deep);
}

#[test]
fn no_file_is_forgotten() {
    enforce_together(forgotten);
}

// ---- tests of the rules ---------------------------------------------------------------------------------

#[test]
fn rules_find_bad_examples() {
    type Rule = fn(&Source) -> Vec<String>;
    let core = "crates/renkei-core/src/link/pace.rs";
    let store = "crates/renkei/src/store/local.rs";
    let later = ["// TO", "DO: more"].concat();
    let long = "\n".repeat(MAX_LINES + 1);
    let bad: &[(Rule, &str, &str)] = &[
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
        (too_deep, "crates/renkei-store/src/local/open/again/x.rs", ""),
        (knows_the_site, "crates/renkei-site/src/relay/x.rs", "use crate::{Context, Site};"),
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
    let rules = [getter, unwrap_outside_tests, unfinished, too_deep, empty_name];
    let found: Vec<_> = rules.iter().flat_map(|rule| rule(&source)).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn groups_and_macros_are_seen() {
    let code = "use crate::{\n    a::{b, c as d},\n    e,\n};\nx!(crate::f::g()); use renkei_crate::h; use super::i;";
    let found: Vec<_> = named_paths(code, &["room", "file"]).iter().map(|path| path.join("/")).collect();
    assert_eq!(found, ["a/b", "a/c", "e", "f/g", "room/i"]);
}

#[test]
fn circles_are_found() {
    let file = |name: &str, text: &str| Source::new(&format!("crates/renkei-x/src/{name}"), text);
    let five: Vec<_> = ["b", "c", "d", "e", "a"]
        .iter()
        .zip(["a", "b", "c", "d", "e"])
        .map(|(next, name)| file(&format!("room/{name}.rs"), &format!("use super::{next}::T;")))
        .collect();
    assert_eq!(large_circles(&five).len(), 1);
    assert!(large_circles(&five[..4]).is_empty() && circles_of_folders(&five).is_empty());
    let by_root = [
        file(
            "room/mod.rs",
            "mod a; mod b; pub use a::Seen; use a::{b::C, T}; struct Room; const N: u8 = b::N;",
        ),
        file("room/a.rs", "use super::Room;"),
        file("room/b.rs", "use super::Seen; use crate::room::Seen as S;"),
    ];
    let all_three: Vec<&str> =
        circles(&imports(&by_root)).iter().flatten().map(|path| path.rsplit_once('/').unwrap().1).collect();
    assert_eq!(all_three, ["a.rs", "b.rs", "mod.rs"]);
    let folders = [file("a/x.rs", "use crate::b::y::T;"), file("b/y.rs", "use crate::a::x::S;")];
    assert_eq!(circles_of_folders(&folders).len(), 1);
    let many: Vec<_> = (0..=MAX_FILES).map(|number| file(&format!("room/f{number}.rs"), "")).collect();
    assert_eq!((too_many_files(&many).len(), too_many_files(&many[1..]).len()), (1, 0));
}

#[test]
fn test_files_may_unwrap() {
    let mut all = [
        Source::new("crates/renkei/src/store/mod.rs", "#[cfg(test)]\nmod conformance;\nmod local;"),
        Source::new("crates/renkei/src/store/conformance.rs", "mod names;\nfn f() { g().unwrap(); }"),
        Source::new("crates/renkei/src/store/conformance/names.rs", "fn f() { g().unwrap(); }"),
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
