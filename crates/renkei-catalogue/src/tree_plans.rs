//! Query plans of SQLite for each statement on the tables of trees: by index, or by a scan of a volume.
//!
//! The statements are extracted from the source of this folder, so that none is forgotten. A new database has no
//! table statistics, as those of users.

use super::Trees;
use super::database::Connection;
use super::tree::VolumeTree;
use super::tree_rows::{BulkStatement, Scope};
use renkei_config::home::Home;

/// Prefixes of statements that may scan a volume, or whose tables have only a few rows.
const MAY_READ_ALL: &[(&str, &str)] = &[
    ("DELETE FROM tree_origins WHERE volume = $1", "as many rows as sites"),
    ("DELETE FROM tree_pending WHERE volume = $1", "removes all: the log is another one"),
    ("DELETE FROM tree_held WHERE volume = $1", "removes all: the log is another one"),
    ("SELECT owner, files, bytes FROM tree_usage", "as many rows as owners"),
    ("DELETE FROM tree_usage WHERE volume = $1", "as many rows as owners"),
    ("SELECT number FROM tree_volumes WHERE (id", "as many rows as volumes"),
    ("SELECT node FROM tree_held WHERE volume = $1 LIMIT 1", "one row"),
    ("DELETE FROM tree_log WHERE volume = $1 AND seq <= $2", "the first row, for its number"),
    ("SELECT origin, COUNT(*), SUM(CAST(size AS DOUBLE PRECISION)) FROM tree_away", "counts all"),
    ("DELETE FROM tree_names WHERE volume = $1 OR", "removes all"),
    ("DELETE FROM tree_names WHERE volume = $1", "removes all that is left"),
];

/// String literals of a source, each with the text before it on its line.
fn strings(code: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(begin) = rest.find('"') {
        let before = rest[..begin].rsplit('\n').next().unwrap_or_default().trim().to_owned();
        let inside = &rest[begin + 1..];
        let end = inside.find('"').unwrap_or(inside.len());
        let lines = inside[..end].split("\\\n").enumerate();
        let text: String = lines.map(|(at, line)| if at == 0 { line } else { line.trim_start() }).collect();
        found.push((before, text));
        rest = inside.get(end + 1..).unwrap_or_default();
    }
    found
}

/// The statements of a source file, as SQLite gets them.
fn statements(code: &str, scope: Scope) -> Vec<String> {
    let shipped = code.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = shipped.lines().filter(|line| !line.trim_start().starts_with("//")).fold(
        String::new(),
        |mut all, line| {
            all.extend([line, "\n"]);
            all
        },
    );
    let (mut found, mut parts): (Vec<String>, Vec<&'static str>) = (Vec::new(), Vec::new());
    for (before, text) in strings(&code) {
        let is_part = ["before:", "row:", "between:", "after:"].contains(&before.as_str());
        if is_part {
            parts.push(text.leak());
        } else if ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "]
            .iter()
            .any(|word| text.starts_with(word))
        {
            let text = text.replace("{table}", "names").replace("{key}", "dir, name");
            found.push(text.replace("{REMOVED_AT_ONCE}", "10"));
        }
        if let [before, row, between, after] = parts[..] {
            let many = BulkStatement { before, row, between, after };
            found.extend([1, 256].map(|rows| many.sql(rows, scope)));
            parts.clear();
        }
    }
    found
}

/// The query plan of a statement.
fn plan(tree: &VolumeTree, statement: &str) -> Vec<String> {
    let explained = tree.write("explain", |connection| {
        let Connection::Sqlite(connection) = connection else { panic!("{statement}") };
        let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}"))?;
        let steps = explained.raw_query().mapped(|row| row.get::<_, String>(3));
        Ok(steps.collect::<Result<Vec<_>, _>>()?)
    });
    explained.unwrap_or_else(|error| panic!("{statement}: {error}"))
}

/// Whether a step of a plan scans a table, or all rows of a volume in it.
fn reads_all(step: &str) -> bool {
    let own_rows = ["CONSTANT ROW", "-ROW VALUES CLAUSE", "SCAN w"];
    let scans = step.starts_with("SCAN ") && !own_rows.iter().any(|own| step.contains(own));
    scans || step.ends_with("(volume=?)")
}

#[test]
fn every_statement_uses_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Trees::open("", &Home::at(folder.path())).unwrap().tree([1; 16]).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let (mut count, mut wrong, mut used) = (0, Vec::new(), vec![false; MAY_READ_ALL.len()]);
    for entry in std::fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("tree") || name == "tree_plans.rs" {
            continue;
        }
        for statement in statements(&std::fs::read_to_string(&path).unwrap(), tree.scope) {
            count += 1;
            let bad: Vec<String> =
                plan(&tree, &statement).into_iter().filter(|step| reads_all(step)).collect();
            let known = MAY_READ_ALL.iter().position(|(begin, _)| statement.starts_with(begin));
            match known {
                _ if bad.is_empty() => {}
                Some(known) => used[known] = true,
                None => wrong
                    .push(format!("{name}: {}: {bad:?}", statement.chars().take(200).collect::<String>())),
            }
        }
    }
    assert!(count > 60, "only {count} statements were found");
    assert!(wrong.is_empty(), "these read all of a volume:\n{}", wrong.join("\n"));
    let unused: Vec<_> = MAY_READ_ALL.iter().zip(used).filter(|(_, used)| !used).collect();
    assert!(unused.is_empty(), "these do not read all, or are not there any more: {unused:?}");
}

#[test]
fn a_statement_without_an_index_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Trees::open("", &Home::at(folder.path())).unwrap().tree([1; 16]).unwrap();
    for bad in ["SELECT dir FROM tree_names WHERE volume = $1 AND name = $2", "SELECT id FROM tree_nodes"] {
        assert!(plan(&tree, bad).iter().any(|step| reads_all(step)), "{bad}");
    }
    let code = "// \"SELECT 0\"\nlet sql = \"SELECT a \\\n    FROM b\";\nconst M: Many = Many {\n before: \"DELETE \
        FROM c WHERE volume = $1 AND d IN (\",\n row: \"?\",\n between: \", \",\n after: \")\",\n};";
    let found = statements(code, Scope { volume: 7, is_sqlite: true });
    assert_eq!(found[..2], ["SELECT a FROM b", "DELETE FROM c WHERE volume = 7 AND d IN (?)"]);
}
