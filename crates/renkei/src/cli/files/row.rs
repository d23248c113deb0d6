//! An entry in the form of `ls` and `stat`.

use crate::cli::quantity::Sizes;
use crate::cli::time::{local, utc};
use renkei_core::entry::{Entry, EntryKind, FileTime};
use renkei_core::path::printable;
use serde::Serialize;
use std::io::{self, Write};

/// One entry; the schema is in docs/json.md.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// Its name, or the path of the request; printable.
    pub(crate) name: String,
    /// The name's bytes, if `name` is not exactly them.
    name_hex: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Permission bits, octal.
    mode: String,
    pub(crate) size: u64,
    mtime: String,
    mtime_unix: i64,
    mtime_nanos: u32,
    owner: String,
    group: String,
    target: Option<String>,
    target_hex: Option<String>,
    #[serde(skip)]
    pub(crate) raw_name: Vec<u8>,
    #[serde(skip)]
    bits: u32,
    #[serde(skip)]
    pub(crate) time: FileTime,
}

impl Row {
    /// The row of an entry under a name.
    pub(crate) fn new(entry: &Entry, name: &[u8]) -> Self {
        let target = match &entry.kind {
            EntryKind::Symlink { target } => Some(target.as_slice()),
            EntryKind::HardLink { to } => Some(to.as_bytes()),
            _ => None,
        };
        Row {
            name: printable(name),
            name_hex: hex_unless_plain(name),
            kind: kind(&entry.kind),
            mode: format!("{:04o}", entry.meta.mode),
            size: entry.size(),
            mtime: utc(entry.meta.mtime),
            mtime_unix: entry.meta.mtime.secs,
            mtime_nanos: entry.meta.mtime.nanos,
            owner: entry.meta.owner.clone(),
            group: entry.meta.group.clone(),
            target: target.map(printable),
            target_hex: target.and_then(hex_unless_plain),
            raw_name: name.to_vec(),
            bits: entry.meta.mode,
            time: entry.meta.mtime,
        }
    }

    /// Type and permissions as `ls -l` writes them.
    pub(crate) fn mode_text(&self) -> String {
        let letter = match self.kind {
            "file" => '-',
            "directory" => 'd',
            "symlink" => 'l',
            _ => '?',
        };
        format!("{letter}{}", permissions(self.bits))
    }

    /// Octal permissions.
    pub(crate) fn mode(&self) -> &str {
        &self.mode
    }

    /// Owner and group, `?` where the site does not report them.
    pub(crate) fn owners(&self) -> (&str, &str) {
        let (owner, group) = (shown(&self.owner), shown(&self.group));
        (owner, group)
    }

    /// ` -> target` for a link.
    pub(crate) fn arrow(&self) -> String {
        self.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default()
    }
}

fn shown(name: &str) -> &str {
    if name.is_empty() { "?" } else { name }
}

/// Writes rows as `ls -l` does, with columns as wide as these rows need.
pub(crate) fn write_long(rows: &[Row], sizes: Sizes, out: &mut dyn Write) -> io::Result<()> {
    let width = |text: &dyn Fn(&Row) -> usize| rows.iter().map(text).max().unwrap_or(0);
    let owner = width(&|row| row.owners().0.chars().count());
    let group = width(&|row| row.owners().1.chars().count());
    let size = width(&|row| sizes.text(row.size).len());
    for row in rows {
        let ((user, team), bytes) = (row.owners(), sizes.text(row.size));
        let (mode, time) = (row.mode_text(), local(row.time, "%Y-%m-%d %H:%M"));
        writeln!(
            out,
            "{mode} {user:<owner$} {team:<group$} {bytes:>size$} {time} {}{}",
            row.name,
            row.arrow()
        )?;
    }
    Ok(())
}

/// Hexadecimal form of bytes that differ from their printable form.
pub(crate) fn hex_unless_plain(bytes: &[u8]) -> Option<String> {
    (printable(bytes).as_bytes() != bytes).then(|| renkei_mover::hex(bytes))
}

fn kind(kind: &EntryKind) -> &'static str {
    match kind {
        EntryKind::File { .. } => "file",
        EntryKind::Dir => "directory",
        EntryKind::Symlink { .. } => "symlink",
        EntryKind::HardLink { .. } => "hardlink",
        EntryKind::Special => "special",
    }
}

/// `rwxr-xr-x`, with set-id and sticky bits.
fn permissions(mode: u32) -> String {
    let mut text: Vec<char> =
        (0..9).map(|i| if mode & (0o400 >> i) == 0 { '-' } else { ['r', 'w', 'x'][i % 3] }).collect();
    for (bit, at, letter) in [(0o4000, 2, 's'), (0o2000, 5, 's'), (0o1000, 8, 't')] {
        if mode & bit != 0 {
            text[at] = if text[at] == 'x' { letter } else { letter.to_ascii_uppercase() };
        }
    }
    text.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{Meta, Stamp};
    use renkei_core::path::RelPath;

    fn file(mode: u32, size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        let meta = Meta { mode, owner: "alice".into(), ..Meta::default() };
        Entry { path: RelPath::root(), meta, kind: EntryKind::File { stamp, sparse: false } }
    }

    #[test]
    fn permissions_read_as_in_ls() {
        assert_eq!(permissions(0o755), "rwxr-xr-x");
        assert_eq!(permissions(0o4711), "rws--x--x");
        assert_eq!(permissions(0o2644), "rw-r-Sr--");
        assert_eq!(permissions(0o1777), "rwxrwxrwt");
    }

    #[test]
    fn odd_names_are_quoted_reversibly() {
        let row = Row::new(&file(0o600, 1), b"a\xff\n");
        assert_eq!(row.name, "a\\xff\\n");
        assert_eq!(row.name_hex.as_deref(), Some("61ff0a"));
        assert_eq!(Row::new(&file(0o600, 1), "é".as_bytes()).name_hex, None);
    }

    #[test]
    fn columns_are_as_wide_as_needed() {
        let rows = [Row::new(&file(0o644, 5), b"a"), Row::new(&file(0o600, 12345), b"b")];
        let mut text = Vec::new();
        write_long(&rows, Sizes::default(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("-rw-r--r-- alice ?     5 "), "{text}");
        assert!(lines[1].starts_with("-rw------- alice ? 12345 "), "{text}");
    }
}
