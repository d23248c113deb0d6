//! `mount.renkei`: translates calls of mount(8) for file systems of the type `renkei` to `renkei mount`.
//!
//! mount(8) passes the source, the mount point and one list of options, many of which are its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names under which this program is the helper.
const NAMES: [&str; 2] = ["mount.renkei", "mount.fuse.renkei"];
/// Options with a value: their names for mount(8), and those of the verb.
const WITH_VALUE: [(&str, &str); 7] = [
    ("when_lost", "--when-lost"),
    ("attr_ttl", "--attr-ttl"),
    ("locks", "--locks"),
    ("consistency", "--consistency"),
    ("close", "--close"),
    ("dir", "--dir"),
    ("identity", "--identity"),
];

/// The words of `renkei mount` for those of mount(8), if this program was called as its helper.
pub(crate) fn translated(words: &[OsString]) -> Option<Vec<OsString>> {
    let (program, rest) = words.split_first()?;
    let name = Path::new(program).file_name()?;
    NAMES.iter().any(|own| name == *own).then(|| verb(rest))
}

fn verb(words: &[OsString]) -> Vec<OsString> {
    let (mut flags, mut places): (Vec<OsString>, Vec<OsString>) =
        (vec!["--quiet".into(), "--non-empty".into()], Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => words.next().into_iter().for_each(|list| flags.extend(options(list))),
            // The type, and a namespace that mount(8) has entered already.
            b"-t" | b"-N" => drop(words.next()),
            b"-r" => flags.push("--read-only".into()),
            // Sloppy, no mtab, verbose, fake.
            [b'-', ..] => {}
            _ => places.push(word.clone()),
        }
    }
    [vec!["renkei".into(), "mount".into()], flags, vec!["--".into()], places].concat()
}

/// The verb's options; the others are those of mount(8) and systemd, or defaults.
fn options(list: &OsStr) -> Vec<OsString> {
    list.to_string_lossy().split(',').flat_map(option).collect()
}

fn option(text: &str) -> Vec<OsString> {
    match text {
        "ro" => vec!["--read-only".into()],
        "allow_other" => vec!["--allow-other".into()],
        _ => {
            let (name, value) = text.split_once('=').unwrap_or((text, ""));
            let known = WITH_VALUE.iter().find(|(own, _)| *own == name);
            known.map_or(Vec::new(), |(_, flag)| vec![flag.into(), value.into()])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(words: &str) -> Option<String> {
        let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        let translated = translated(&words)?;
        Some(translated.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn an_fstab_line_becomes_the_verb() {
        let line = "/sbin/mount.renkei kek:/data /mnt/kek -n -o ro,_netdev,allow_other,when_lost=fail,x-systemd.automount";
        assert_eq!(
            lines(line).unwrap(),
            "renkei mount --quiet --non-empty --read-only --allow-other --when-lost fail -- kek:/data /mnt/kek"
        );
        assert_eq!(
            lines("mount.renkei a:/b /c -t renkei").unwrap(),
            "renkei mount --quiet --non-empty -- a:/b /c"
        );
        assert_eq!(
            lines("mount.renkei a:/b /c -o rw,dir=/srv/r").unwrap(),
            "renkei mount --quiet --non-empty --dir /srv/r -- a:/b /c"
        );
        assert_eq!(lines("/usr/bin/renkei mount a:/b /c"), None);
    }
}
