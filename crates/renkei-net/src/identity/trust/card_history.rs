//! The history of added, changed and removed cards of other sites: one line of JSON for each change, in `state/`.
//!
//! Written by every process that changes the trust: the PoP that receives a partner's new card, and the
//! administrator's commands. Best effort: the cards are authoritative and nothing depends on this file, so errors of
//! reading and writing are ignored.

use super::card::SiteCard;
use renkei_config::home::{Home, append_line, make_private_dir};
use renkei_core::path::SiteName;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Only the newest part of a longer file is read.
const MAX_BYTES: u64 = 64 * 1024;

/// A change of a site's card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardChange {
    /// The time, in seconds since 1970.
    pub at_unix: u64,
    /// The site.
    pub site: SiteName,
    /// The endpoints before; none if the site was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The endpoints after; none if the site is not trusted any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl CardChange {
    /// A change that happens now.
    pub(crate) fn new(site: &SiteName, before: Option<&SiteCard>, after: Option<&SiteCard>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (before, after) = (before.map(SiteCard::places), after.map(SiteCard::places));
        CardChange { at_unix: now.as_secs(), site: site.clone(), before, after }
    }

    /// The time of the change.
    pub fn at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.at_unix)
    }
}

/// Records a change.
pub(crate) fn note(home: &Home, change: &CardChange) {
    let line = serde_json::to_string(change).expect("a change is plain data") + "\n";
    let written = make_private_dir(home.state_dir())
        .map_err(|error| error.to_string())
        .and_then(|()| append_line(&home.cards_file(), &line).map(drop).map_err(|error| error.to_string()));
    if let Err(error) = written {
        tracing::warn!(error, site = %change.site, "the change of a card is not noted");
    }
}

/// The newest changes, newest first.
pub fn newest(home: &Home, most: usize) -> Vec<CardChange> {
    let text = tail(home).unwrap_or_default();
    let changes = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
    changes.take(most).collect()
}

fn tail(home: &Home) -> io::Result<String> {
    let mut file = File::open(home.cards_file())?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_changes_come_first_and_torn_lines_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        assert!(newest(&home, 5).is_empty());
        let change = |number: u64| CardChange {
            at_unix: number,
            site: SiteName::parse("kek").unwrap(),
            before: None,
            after: Some(format!("kek.example:{number}")),
        };
        (1..=3).for_each(|number| note(&home, &change(number)));
        let mut file = File::options().append(true).open(home.cards_file()).unwrap();
        io::Write::write_all(&mut file, b"{\"at_unix\":").unwrap();
        assert_eq!(newest(&home, 2), [change(3), change(2)]);
        note(&home, &change(4));
        assert_eq!(newest(&home, 2), [change(4), change(3)]);
    }
}
