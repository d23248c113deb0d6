//! Unreplicated data of a follower: changes in the outbox, and files of which the home has the name and not the
//! content.
//!
//! The list is shown before a subscription ends, so that nothing acknowledged is lost silently.

use super::outbox::Outbox;
use renkei_core::error::Error;
use renkei_core::namespace::{Change, Dentry, NewKind, NodeId};
use renkei_core::path::RelPath;
use serde::{Deserialize, Serialize};

/// Changes and files listed at most; all are counted.
pub const MOST_LISTED: usize = 10_000;
/// Changes read from the database at once.
const PAGE: usize = 4096;

/// Content of a volume that only this site has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreplicated {
    /// Changes that the home has not ordered.
    pub changes: u64,
    /// Files written here of which the home has the name and not the content.
    pub files: u64,
    /// Whether the home was not reached: it may have the content of these files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_home_away: bool,
    /// The changes and files in the order in which they were made; only the first ones, if there are very many.
    pub items: Vec<Item>,
}

/// An unreplicated change or file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Description of the change: `write 2026/x.bam`.
    pub change: String,
    /// The plain file with the content, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub file: Option<String>,
}

impl Unreplicated {
    /// Whether nothing is unreplicated.
    pub fn is_empty(&self) -> bool {
        self.changes == 0 && self.files == 0
    }

    /// Adds a file whose content the home does not have.
    pub fn add_file(&mut self, path: &RelPath, plain: impl FnOnce(&RelPath) -> String) {
        self.files += 1;
        if self.items.len() < MOST_LISTED {
            self.items.push(Item { change: format!("write {path}"), file: Some(plain(path)) });
        }
    }

    /// A summary for people.
    pub fn told(&self) -> String {
        let changes = || match self.changes {
            1 => "1 change made here waits for the home".into(),
            count => format!("{count} changes made here wait for the home"),
        };
        let files = || match self.files {
            1 if self.is_home_away => {
                "the home is not reached and may not have the content of 1 file written here".into()
            }
            count if self.is_home_away => {
                format!("the home is not reached and may not have the content of {count} files written here")
            }
            1 => "the home does not have the content of 1 file written here".into(),
            count => format!("the home does not have the content of {count} files written here"),
        };
        match (self.changes, self.files) {
            (_, 0) => changes(),
            (0, _) => files(),
            _ => format!("{}; {}", changes(), files()),
        }
    }
}

impl Outbox {
    /// The changes in the outbox; `plain` gives the plain file of a path.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn only_here(&self, plain: impl Fn(&RelPath) -> String) -> Result<Unreplicated, Error> {
        let mut only = Unreplicated::default();
        let mut after = 0;
        loop {
            let page = self.next_kept(after, PAGE)?;
            let Some(last) = page.last() else { return Ok(only) };
            after = last.number;
            only.changes += page.len() as u64;
            for made in page.iter().take(MOST_LISTED.saturating_sub(only.items.len())) {
                let file = self.path_written(&made.change)?.map(|path| plain(&path));
                only.items.push(Item { change: self.describe(&made.change), file });
            }
        }
    }

    /// The path of the content that a change wrote.
    fn path_written(&self, change: &Change) -> Result<Option<RelPath>, Error> {
        let id = match change {
            Change::Make { id, kind: NewKind::Content { .. } | NewKind::File, .. } => *id,
            Change::SetContent { id, .. } => *id,
            _ => return Ok(None),
        };
        self.first_path(id)
    }

    /// One of the paths of a file in the view of this site.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn first_path(&self, id: NodeId) -> Result<Option<RelPath>, Error> {
        let spots = self.spots_of(id)?;
        spots.first().map_or(Ok(None), |at| self.path_of(at))
    }

    /// A description of a change for people.
    pub(crate) fn describe(&self, change: &Change) -> String {
        let path = |at: &Dentry| match self.path_of(at) {
            Ok(Some(path)) => path.to_string(),
            _ => String::from_utf8_lossy(&at.name.0).into_owned(),
        };
        let of_node = |id: NodeId| match self.first_path(id) {
            Ok(Some(path)) => path.to_string(),
            _ => format!("node {}", id.0),
        };
        match change {
            Change::Make { at, kind: NewKind::Content { .. }, .. } => format!("write {}", path(at)),
            Change::Make { at, .. } => format!("make {}", path(at)),
            Change::Link { at, .. } => format!("link {}", path(at)),
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => format!("remove {}", path(at)),
            Change::Rename { from, to, .. } => format!("rename {} to {}", path(from), path(to)),
            Change::SetAttributes { id, .. } | Change::SetXattr { id, .. } => {
                format!("set attributes of {}", of_node(*id))
            }
            Change::SetContent { beside: Some(beside), .. } => format!("write {}", path(&beside.at)),
            Change::SetContent { id, beside: None, .. } => format!("write {}", of_node(*id)),
        }
    }
}
