//! The man pages: the definition of the command line, with examples, exit statuses, files, environment, and
//! references.

use super::command;
use super::docs::EXIT_STATUSES;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Paths that a page lists, for root and for a user.
const FILES: [(&str, &str); 6] = [
    ("/etc/renkei/config.toml", "settings of the PoP; of a user: ~/.config/renkei/config.toml"),
    ("/etc/renkei/trust", "cards of the sites that are trusted; /etc/renkei/pki has the keys"),
    ("/etc/renkei/map", "which principals become which accounts"),
    ("/var/lib/renkei", "state: the catalogue, journals; of a user: ~/.local/state/renkei"),
    ("/run/renkei", "the PoP's socket; of a user: $XDG_RUNTIME_DIR/renkei"),
    ("/usr/share/doc/renkei/docs", "operations, semantics, settings and errors as pages"),
];

/// Environment variables that are read.
const ENVIRONMENT: [(&str, &str); 8] = [
    ("RENKEI_DIR", "directory of the PoP or user, as --dir"),
    ("XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR", "where a user's directories are"),
    ("RENKEI_SSH", "the program that `renkei login --ssh` starts; ssh by default"),
    (
        "RENKEI_CREDENTIAL",
        "which identity verbs look for: any (the default), login, token, proxy or kerberos",
    ),
    ("BEARER_TOKEN, BEARER_TOKEN_FILE, X509_USER_PROXY", "an identity that is used before that of the login"),
    ("KRB5CCNAME", "the cache with the Kerberos ticket that is used without a login"),
    ("RENKEI_LAB, RENKEI_LAB_DIR", "which lab is meant, and where labs are kept"),
    ("SSL_CERT_FILE", "authorities for web servers that are told of transfers' ends"),
];

/// Groups of related verbs, for references.
const RELATED: [&[&str]; 8] = [
    &["cp", "sync", "mv", "checksum"],
    &["transfers", "why", "wait", "cancel", "pause", "resume", "retry", "cp"],
    &["ls", "stat", "find", "du", "df"],
    &["mkdir", "rmdir", "rm", "ln", "chmod"],
    &["volume", "replicate", "evict", "verify", "where"],
    &["mount", "umount", "cat", "put"],
    &["init", "serve", "storage", "trust", "map", "invite", "join", "doctor", "status"],
    &["login", "logout", "whoami", "revoke", "renew"],
];

/// Writes all pages into a directory.
pub(super) fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(command(), dir)?;
    for page in fs::read_dir(dir)? {
        let page = page?.path();
        let name = page.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&page)?;
        fs::write(&page, completed(&name, &text))?;
    }
    Ok(())
}

/// A page with its further sections; the text behind the options is examples, whose line breaks are kept.
fn completed(name: &str, text: &str) -> String {
    let (before, rest) = match text.split_once(".SH EXTRA\nExamples:\n") {
        Some((before, after)) => {
            let (examples, rest) = after.split_once(".SH").unwrap_or((after, ""));
            (format!("{before}.SH EXAMPLES\n.nf\n{examples}.fi\n"), format!(".SH{rest}"))
        }
        None => text
            .find(".SH VERSION")
            .map_or((text.to_owned(), String::new()), |at| (text[..at].to_owned(), text[at..].to_owned())),
    };
    let statuses = EXIT_STATUSES.iter().map(|(kind, meaning)| (kind.exit_status().to_string(), *meaning));
    let statuses = std::iter::once(("0".to_owned(), "all is done")).chain(statuses);
    let mut page = before;
    add_list(&mut page, "EXIT STATUS", statuses);
    add_list(&mut page, "FILES", FILES.iter().map(|(path, what)| ((*path).to_owned(), *what)));
    add_list(&mut page, "ENVIRONMENT", ENVIRONMENT.iter().map(|(name, what)| ((*name).to_owned(), *what)));
    writeln!(page, ".SH \"SEE ALSO\"\n{}", see_also(name)).expect("writing to a string cannot fail");
    page + &rest
}

fn add_list<'a>(page: &mut String, title: &str, rows: impl Iterator<Item = (String, &'a str)>) {
    writeln!(page, ".SH \"{title}\"").expect("writing to a string cannot fail");
    for (term, meaning) in rows {
        let term = term.replace('-', "\\-");
        writeln!(page, ".TP\n\\fB{term}\\fR\n{meaning}").expect("writing to a string cannot fail");
    }
}

/// The references of a page.
fn see_also(name: &str) -> String {
    let verb = name.strip_prefix("renkei-").unwrap_or_default();
    let verb = verb.split('-').next().unwrap_or_default();
    let mut pages: Vec<String> = if name == "renkei" { Vec::new() } else { vec!["renkei(1)".into()] };
    let groups = RELATED.iter().filter(|group| name == "renkei" || group.contains(&verb));
    for other in groups.flat_map(|group| group.iter()) {
        let page = format!("renkei\\-{other}(1)");
        if *other != verb && !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages
        .iter()
        .map(|page| format!("\\fB{}\\fR({})", &page[..page.len() - 3], 1))
        .collect::<Vec<_>>()
        .join(",\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_its_sections_and_valid_references() {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path().join("not/there/yet");
        write_pages(&dir).unwrap();
        for page in fs::read_dir(&dir).unwrap() {
            let text = fs::read_to_string(page.unwrap().path()).unwrap();
            for section in ["EXIT STATUS", "FILES", "ENVIRONMENT", "SEE ALSO"] {
                assert_eq!(text.matches(&format!(".SH \"{section}\"")).count(), 1, "{text}");
            }
        }
        for other in RELATED.iter().flat_map(|group| group.iter()) {
            assert!(dir.join(format!("renkei-{other}.1")).exists(), "{other}");
        }
        let page = fs::read_to_string(dir.join("renkei-cp.1")).unwrap();
        assert!(page.contains(".SH EXAMPLES\n.nf\n  renkei cp ") && !page.contains("EXTRA"), "{page}");
        assert!(page.contains("\\fBrenkei\\-sync\\fR(1)"), "{page}");
    }
}
