//! Journals of uploads in parts: each upload has one with its owner and folder, as a file session has.
//!
//! An upload is continued by its owner alone, also after a restart of the PoP and through any of its sessions. One that
//! nothing was written to for a week is removed by the clean-up of abandoned transfers, which finds the parts by the journal.

use super::FileService;
use super::file_sessions::open_journal;
use crate::Context;
use crate::access::Access;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::uploads::UploadId;
use renkei_mover::files::uploads::UploadJournals;
use renkei_mover::journal::{Journal, look};
use renkei_net::identity::account::Account;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// The uploads of one principal below a place.
struct OwnUploads {
    context: Arc<Context>,
    access: Access,
    place: Place,
    /// The account of the parts.
    account: String,
}

/// The same, for threads of any account: journals are files of the PoP's own.
struct AsPop(Arc<OwnUploads>);

impl FileService {
    /// The journals of a principal's uploads below a place, whose files are an account's.
    pub(super) fn uploads(
        &self,
        access: &Access,
        place: &Place,
        account: &Account,
    ) -> Arc<dyn UploadJournals> {
        let (context, access, account) = (self.context.clone(), access.clone(), account.name.clone());
        Arc::new(AsPop(Arc::new(OwnUploads { context, access, place: place.clone(), account })))
    }
}

impl OwnUploads {
    /// The folder in which the parts of an upload are.
    fn folder_of(&self, path: &RelPath) -> Result<Place, Error> {
        let path = self.place.path.join(&path.parent().unwrap_or_default())?;
        Ok(Place { storage: self.place.storage.clone(), path })
    }

    fn journal(&self, upload: UploadId) -> PathBuf {
        Journal::path_of(&self.context.home().journal_dir(), upload)
    }

    fn begin(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        let folder = self.folder_of(path)?;
        open_journal(&self.context, &self.access, upload, folder, self.account.clone()).map(drop)
    }

    fn renew(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        let journal = self.journal(upload);
        let (owner, folder) = (self.access.principal.to_string(), self.folder_of(path)?);
        let is_own = look(&journal)?.is_some_and(|(brief, _)| {
            brief.owner == Some(owner) && brief.header.is_some_and(|header| header.to == Some(folder))
        });
        if !is_own {
            let (upload, cause) = (format!("upload {upload:016x}"), "it is over, or is not yours");
            return Err(Error::new(Code::NotOpen, "find", upload, cause));
        }
        let renewed = File::options().append(true).open(&journal);
        let renewed = renewed.and_then(|file| file.set_modified(SystemTime::now()));
        renewed.map_err(|error| Error::new(Code::JournalBroken, "renew", journal.display(), error))
    }
}

impl AsPop {
    fn run(&self, work: impl FnOnce(&OwnUploads) -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
        let uploads = self.0.clone();
        self.0.context.own_threads.run(move || work(&uploads))
    }
}

impl UploadJournals for AsPop {
    fn begin(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        let path = path.clone();
        self.run(move |uploads| uploads.begin(&path, upload))
    }

    fn renew(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        let path = path.clone();
        self.run(move |uploads| uploads.renew(&path, upload))
    }

    fn end(&self, upload: UploadId) {
        // One that stays goes with the abandoned ones.
        let removed = self.run(move |uploads| {
            let journal = uploads.journal(upload);
            std::fs::remove_file(&journal)
                .map_err(|error| Error::new(Code::JournalBroken, "remove", journal.display(), error))
        });
        if let Err(error) = removed {
            tracing::warn!(%error, "the journal of an upload was not removed");
        }
    }
}
