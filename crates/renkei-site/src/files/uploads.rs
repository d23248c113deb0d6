//! Uploads in parts of the file service: each has a journal with its owner and folder, as a file session has.
//!
//! An upload is continued by its owner alone, also after a restart of the PoP. One that nothing was written to for a
//! week is removed by the clean-up of abandoned transfers, which finds the parts by the journal.

use super::file_sessions::open_journal;
use super::workspaces::AccountFiles;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::{Handle, Item, Precondition};
use renkei_core::wire::uploads::{Part, UploadId, Uploads};
use renkei_mover::journal::{Journal, look};
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

impl AccountFiles {
    /// The folder in which the parts of an upload are.
    fn folder_of(&self, path: &RelPath) -> Result<Place, Error> {
        let place = &self.authorised.place;
        let path = place.path.join(&path.parent().unwrap_or_default())?;
        Ok(Place { storage: place.storage.clone(), path })
    }

    /// The journal of an upload of this principal.
    fn upload_journal(&self, path: &RelPath, upload: UploadId) -> Result<PathBuf, Error> {
        let journal = Journal::path_of(&self.context.home().journal_dir(), upload);
        let (owner, folder) = (self.authorised.access.principal.to_string(), self.folder_of(path)?);
        let is_own = look(&journal)?.is_some_and(|(brief, _)| {
            brief.owner == Some(owner) && brief.header.is_some_and(|header| header.to == Some(folder))
        });
        if is_own {
            return Ok(journal);
        }
        let (upload, cause) = (format!("upload {upload:016x}"), "it is over, or is not yours");
        Err(Error::new(Code::NotOpen, "find", upload, cause).at(self.authorised.access.site()))
    }

    /// The same, after it was noted that the upload goes on.
    fn renewed_journal(&self, path: &RelPath, upload: UploadId) -> Result<PathBuf, Error> {
        let journal = self.upload_journal(path, upload)?;
        let renewed = File::options().append(true).open(&journal);
        let renewed = renewed.and_then(|file| file.set_modified(SystemTime::now()));
        renewed.map_err(|error| Error::new(Code::JournalBroken, "renew", journal.display(), error))?;
        Ok(journal)
    }

    fn audit_upload(&self, op: &str, path: &RelPath) {
        let (place, access) = (&self.authorised.place, &self.authorised.access);
        let (storage, path) = (place.storage.clone(), place.path.join(path).unwrap_or_default());
        let place = Place { storage, path };
        tracing::info!(target: "audit", principal = %access.principal, transfer = access.proof.transfer(),
            account = self.account.name, op, %place, "file operation");
    }
}

impl Uploads for AccountFiles {
    fn begin(&self, path: &RelPath) -> Result<UploadId, Error> {
        let (access, place) = (&self.authorised.access, &self.authorised.place);
        if access.snapshot.volumes.contains_key(&place.storage) {
            let cause = "volumes take whole files";
            return Err(Error::new(Code::Unsupported, "upload in parts", place, cause).at(access.site()));
        }
        self.audit_upload("upload", path);
        let of = path.clone();
        let upload = self.run(move |local| local.begin(&of))?;
        let folder = self.folder_of(path)?;
        let opened = open_journal(&self.context, access, upload, folder, self.account.name.clone());
        opened.map_err(|error| error.at(access.site()))?;
        Ok(upload)
    }

    fn begin_part(&self, path: &RelPath, upload: UploadId, number: u32) -> Result<(Handle, Item), Error> {
        self.renewed_journal(path, upload)?;
        let of = path.clone();
        self.run(move |local| local.begin_part(&of, upload, number))
    }

    fn parts(&self, path: &RelPath, upload: UploadId) -> Result<Vec<Part>, Error> {
        self.upload_journal(path, upload)?;
        let of = path.clone();
        self.run(move |local| local.parts(&of, upload))
    }

    fn complete(
        &self,
        path: &RelPath,
        upload: UploadId,
        parts: &[u32],
        condition: Precondition,
    ) -> Result<Item, Error> {
        let journal = self.renewed_journal(path, upload)?;
        self.audit_upload("write", path);
        let (of, parts) = (path.clone(), parts.to_vec());
        let item = self.run(move |local| local.complete(&of, upload, &parts, condition))?;
        remove(&journal);
        Ok(item)
    }

    fn abandon(&self, path: &RelPath, upload: UploadId) -> Result<(), Error> {
        let journal = self.upload_journal(path, upload)?;
        let of = path.clone();
        self.run(move |local| local.abandon(&of, upload))?;
        remove(&journal);
        Ok(())
    }
}

/// Removes a journal whose parts are gone; one that stays goes with the abandoned ones.
fn remove(journal: &std::path::Path) {
    if let Err(error) = std::fs::remove_file(journal) {
        tracing::warn!(journal = %journal.display(), %error, "the journal of an upload was not removed");
    }
}
