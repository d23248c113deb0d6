//! A client whose signature was verified, and the buckets that are open to it.

use crate::error::{refused, s3_error};
use crate::key::Key;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Need;
use renkei_core::path::{Place, RelPath};
use renkei_mover::files::workspace::Workspace;
use renkei_site::Site;
use renkei_site::access::Access;
use renkei_site::evidence::Evidence;
use renkei_site::files::body::Progress;
use renkei_site::token::ShownS3Key;
use s3s::{S3ErrorCode, S3Request, S3Result};
use std::net::IpAddr;
use std::sync::Arc;

/// An authenticated client, for one request.
pub(crate) struct Session {
    pub(crate) site: Arc<Site>,
    pub(crate) access: Access,
}

/// The key that signed a request.
pub(crate) struct Signer {
    id: Arc<str>,
    from: IpAddr,
}

impl Signer {
    /// The signer of a request.
    ///
    /// # Errors
    /// `AccessDenied` for requests that are not signed, or by another scheme than version 4 for S3.
    pub(crate) fn of<T>(request: &S3Request<T>, from: IpAddr) -> S3Result<Self> {
        let is_version_4 = request.region.is_some() && request.service.as_deref() == Some("s3");
        match &request.credentials {
            Some(credentials) if is_version_4 => {
                Ok(Signer { id: credentials.access_key.as_str().into(), from })
            }
            _ => Err(refused(S3ErrorCode::AccessDenied, "requests are signed with AWS4-HMAC-SHA256 for s3")),
        }
    }
}

impl Session {
    /// Judges the signer and authorises it. Blocks: files of the PoP are read.
    ///
    /// # Errors
    /// Those of the key, and of its owner's mapping.
    pub(crate) fn open(site: Arc<Site>, signer: Signer, progress: &dyn Progress) -> S3Result<Self> {
        let Signer { id, from } = signer;
        let proof = site.authenticate(Evidence::S3Key(ShownS3Key { id: id.clone(), from }));
        let proof = proof.map_err(s3_error)?;
        let access = site.authorise(&proof).map_err(s3_error)?;
        site.context().note_s3_key(&id);
        progress.authenticated();
        Ok(Session { site, access })
    }

    /// The names of the buckets: storages, volumes, and the folders that the administrator named.
    pub(crate) fn bucket_names(&self) -> Vec<String> {
        let now = self.site.last_snapshot();
        let folders = now.config.s3.folders().map(|(name, _)| name.to_owned());
        let names = now.storages.keys().chain(now.volumes.keys()).cloned();
        let mut names: Vec<String> = names.chain(folders).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The place of a bucket.
    ///
    /// # Errors
    /// `NoSuchBucket`.
    pub(crate) fn bucket(&self, name: &str) -> S3Result<Place> {
        let now = self.site.last_snapshot();
        if now.storages.contains_key(name) || now.volumes.contains_key(name) {
            return Ok(Place { storage: name.to_owned(), path: RelPath::root() });
        }
        let folder = now.config.s3.folders().find(|(folder, _)| *folder == name).map(|(_, place)| place);
        folder.ok_or_else(|| refused(S3ErrorCode::NoSuchBucket, format!("there is no bucket {name}")))
    }

    /// The files of a key's storage, and its path in them.
    ///
    /// # Errors
    /// `NoSuchBucket`, and those of opening a place.
    pub(crate) fn files(&self, bucket: &str, key: &Key, need: Need) -> S3Result<(Workspace, RelPath)> {
        self.files_at(&self.place(bucket, key)?, need).map_err(s3_error)
    }

    /// The place of a key.
    ///
    /// # Errors
    /// `NoSuchBucket`, and those of a path that is too long.
    pub(crate) fn place(&self, bucket: &str, key: &Key) -> S3Result<Place> {
        key.below(&self.bucket(bucket)?)
    }

    /// The files of a place's storage, and its path in them.
    ///
    /// # Errors
    /// Those of opening a place.
    pub(crate) fn files_at(&self, place: &Place, need: Need) -> Result<(Workspace, RelPath), Error> {
        self.site.file_service().open_around(&self.access, place, need)
    }

    /// Whether a bucket is open to the client.
    ///
    /// # Errors
    /// `AccessDenied`, `NoSuchBucket`, and those of its storage.
    pub(crate) fn look_at_bucket(&self, name: &str) -> S3Result<()> {
        let place = self.bucket(name)?;
        match self.site.files(&self.access, &place, Need::Look) {
            Ok(_) => Ok(()),
            Err(error) if error.code == Code::PathNotFound => {
                Err(refused(S3ErrorCode::NoSuchBucket, error.to_string()))
            }
            Err(error) => Err(s3_error(error)),
        }
    }
}
