//! The messages that open a copy whose layout its destination resolves. Since wire 4.
//!
//! The asker describes the copy once ([`OpenCopy`]); the destination looks at what is there, refuses or answers with a
//! [`CopyLayout`], creates a missing directory, and opens the transfer or grants it to the site that sends.

use crate::batch::batch;
use crate::error::{Code, Error};
use crate::ids::TransferId;
use crate::mover::layout::{CopyForm, CopyLayout, DestinationKind, ResolvedLayout, refuse_overlap};
use crate::mover::offer::ReceiveOptions;
use crate::path::{Place, RelPath, SiteName};
use crate::wire::message::OpenReceive;
use crate::wire::types::Class;
use serde::{Deserialize, Serialize};

/// Maximum sources of one copy that a site sends; the sender holds a descriptor for each.
pub const MAX_SOURCES: usize = 1024;

/// Checks the number of sources that a request names.
///
/// # Errors
/// `TooManyEntries`.
pub fn check_sources(count: usize) -> Result<(), Error> {
    if count <= MAX_SOURCES {
        return Ok(());
    }
    let cause = format!("{count} sources, at most {MAX_SOURCES} in one transfer");
    Err(Error::new(Code::TooManyEntries, "open", "sources", cause))
}

/// A copy to a destination, which resolves its layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCopy {
    /// Identity for logs.
    pub transfer: TransferId,
    /// Key of the job, as in [`OpenReceive`].
    pub job: u64,
    /// The destination.
    pub to: Place,
    /// The form of the copy.
    pub form: CopyForm,
    /// The sources that are at the destination's own site, each with its name in a destination directory: a copy onto
    /// or into one of them is refused. At most [`MAX_SOURCES`].
    pub beside: Vec<(Place, RelPath)>,
    /// Options of the receiver.
    pub options: ReceiveOptions,
    /// As in [`OpenReceive`].
    pub class: Class,
    /// Maximum number of streams the asker wants.
    pub max_streams: u16,
    /// As in [`OpenReceive`].
    #[serde(deserialize_with = "batch")]
    pub rules: Vec<String>,
}

/// The side that sends a copy, and thereby what its destination answers after `Layout`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopySender {
    /// The asker, a client: `Opened` follows.
    Asker,
    /// The asker, a PoP, on behalf of a user of its own site, with the user's certificate chain (leaf first, DER):
    /// `Opened` follows.
    PopFor(#[serde(deserialize_with = "batch")] Vec<Vec<u8>>),
    /// The PoP of this site, which redeems a grant that the asker passes on: `Granted` follows.
    Site(SiteName),
}

impl OpenCopy {
    /// Resolves the layout for a destination of this kind.
    ///
    /// # Errors
    /// `NotADirectory`, `SameFile`, `IntoItself`, `TooManyEntries`.
    pub fn resolve(&self, found: DestinationKind) -> Result<ResolvedLayout, Error> {
        check_sources(self.beside.len())?;
        let resolved = self.form.resolve(found, self.to.path.is_root(), self.options.dry_run);
        let resolved = resolved.map_err(|error| Error { subject: self.to.to_string(), ..error })?;
        let names: Vec<RelPath> = self.beside.iter().map(|(_, name)| name.clone()).collect();
        if !names.is_empty() {
            let targets = resolved.layout.targets(&names, self.to.path.name())?;
            let sources = self.beside.iter().map(|(from, _)| from).zip(&targets);
            refuse_overlap(sources, &self.base(resolved.layout), self.options.delete)?;
        }
        Ok(resolved)
    }

    /// The layouts that it may have, each for its kind of destination; kinds that are refused have none.
    ///
    /// # Errors
    /// The error of the kind that is refused for the plainest reason, if all are.
    pub fn outcomes(&self) -> Result<Vec<(DestinationKind, ResolvedLayout)>, Error> {
        let all = DestinationKind::ALL.map(|found| self.resolve(found).map(|resolved| (found, resolved)));
        let errors = || all.iter().filter_map(|outcome| outcome.as_ref().err());
        match errors().find(|error| error.code == Code::SameFile).or(errors().next()) {
            Some(plainest) if errors().count() == all.len() => Err(plainest.clone()),
            _ => Ok(all.into_iter().flatten().collect()),
        }
    }

    /// The places that the sources take in a layout; `names` are those in a destination directory.
    ///
    /// # Errors
    /// `UsageInvalid` for several sources that would become one destination, `BadPath`.
    pub fn places(&self, layout: CopyLayout, names: &[RelPath]) -> Result<Vec<Place>, Error> {
        let base = self.base(layout);
        let place = |target| Ok(Place { path: base.path.join(&target)?, ..base.clone() });
        layout.targets(names, self.to.path.name())?.into_iter().map(place).collect()
    }

    /// The same for a further attempt, if the first one had this layout: what became of the source is its own.
    pub fn again(&self, first: Option<CopyLayout>) -> Self {
        let resumed = self.form.resumed || first == Some(CopyLayout::As);
        OpenCopy { form: CopyForm { resumed, ..self.form }, ..self.clone() }
    }

    /// The transfer that a layout opens.
    pub fn receive(&self, layout: CopyLayout) -> OpenReceive {
        OpenReceive {
            transfer: self.transfer,
            job: self.job,
            to: self.base(layout),
            options: self.options(layout),
            class: self.class,
            max_streams: self.max_streams,
            rules: self.rules.clone(),
        }
    }

    /// The receiver's options for a layout.
    pub(super) fn options(&self, layout: CopyLayout) -> ReceiveOptions {
        let options = self.options.clone();
        ReceiveOptions { delete: options.delete && layout.removes(), ..options }
    }

    fn base(&self, layout: CopyLayout) -> Place {
        Place { storage: self.to.storage.clone(), path: layout.base(&self.to.path) }
    }
}
