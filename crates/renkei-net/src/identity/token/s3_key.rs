//! S3 keys: pairs of an access key and a secret that stand for a user, and are kept until they are revoked or expire.
//!
//! Each key is a file of mode 600 in `s3-keys/` of the PoP's state, named after its id: the secret must be there in clear, because
//! signatures are verified with it. The file's modification time is that of the last use, to a minute; the time of the
//! folder changes with each key that comes or goes, by which running work is judged again.

use super::bearer::Holder;
use super::caveat::Restrictions;
use crate::identity::pki::certificate::serial_bytes;
use crate::identity::secret;
use crate::identity::trust::Trust;
use renkei_config::home::{Home, file_error};
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::units::hex;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most keys of one user.
const MAX_KEYS: usize = 100;
/// Length of an id: as long as one of AWS, which some clients insist on.
const ID_BYTES: usize = 20;
/// A use is noted so often.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// An S3 key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Key {
    /// The version of the format: 1.
    version: u32,
    /// The owner.
    principal: String,
    /// The serial of the certificate by which it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    /// Its restrictions, in the form of a token's caveats.
    pub caveats: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub created_unix: u64,
    secret: String,
}

/// A key with its id and its last use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// The access key.
    pub id: String,
    /// The key.
    pub key: S3Key,
    /// When it was used last, to a minute, if it was.
    pub used_unix: Option<u64>,
}

/// The S3 keys of a PoP.
#[derive(Clone)]
pub struct S3Keys {
    folder: PathBuf,
}

impl S3Key {
    /// The secret, with which signatures are verified.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The owner, under the present name of the owner's site; none in a file that was tampered with.
    pub fn owner(&self) -> Option<Principal> {
        Some(Principal::parse(&self.principal).ok()?.current().into_owned())
    }

    /// The principal and the restrictions that the key proves, shown from an address.
    ///
    /// # Errors
    /// `TokenExpired`, `TokenElsewhere`, `CertificateRevoked`, `UnknownAuthority`, `OutOfScope`, `TokenInvalid`.
    pub fn verify(
        &self,
        trust: &Trust,
        now: SystemTime,
        from: IpAddr,
    ) -> Result<(Principal, Restrictions), Error> {
        let principal = self.owner().ok_or_else(unknown)?;
        let error = |code, cause: String| Error::new(code, "verify S3 key", &principal, cause);
        let site = principal.site();
        if trust.card(site).is_none() {
            return Err(error(Code::UnknownAuthority, format!("the site {site} is not trusted here")));
        }
        if let Some(serial) =
            self.serial.as_ref().filter(|serial| trust.is_revoked(site, &serial_bytes(serial)))
        {
            let cause = format!("{site} took back serial {serial}, by which the key was asked for");
            return Err(error(Code::CertificateRevoked, cause));
        }
        let restrictions = Restrictions::of(self.caveats.iter().map(String::as_str))?;
        restrictions.check(now, from)?;
        Ok((principal, restrictions))
    }
}

impl S3Keys {
    /// The keys of a PoP.
    pub fn new(home: &Home) -> Self {
        S3Keys { folder: home.s3_key_dir() }
    }

    /// Makes a key; gives its id and itself.
    ///
    /// # Errors
    /// `TooManyEntries` for a user who has `MAX_KEYS` keys; `TokenInvalid` and `OutOfScope` for caveats that would never hold;
    /// those of the file.
    pub fn create(
        &self,
        holder: Holder,
        caveats: &[String],
        now: SystemTime,
    ) -> Result<(String, S3Key), Error> {
        Restrictions::of(caveats.iter().map(String::as_str))?;
        if self.of(&holder.principal)?.len() >= MAX_KEYS {
            let cause = format!("a user has at most {MAX_KEYS} S3 keys; revoke one");
            return Err(Error::new(Code::TooManyEntries, "create S3 key", &holder.principal, cause));
        }
        let id = format!("RK{}", hex(&random_bytes::<9>()?).to_uppercase());
        let key = S3Key {
            version: 1,
            principal: holder.principal.to_string(),
            serial: holder.serial,
            caveats: caveats.to_vec(),
            created_unix: unix(now),
            secret: hex(&random_bytes::<20>()?),
        };
        let text = toml::to_string(&key).expect("a key is plain data");
        secret::write(&self.folder.join(&id), &text)?;
        // A file that is as old as its key was not used.
        self.note(&id, UNIX_EPOCH + Duration::from_secs(key.created_unix))?;
        Ok((id, key))
    }

    /// The key with an id.
    ///
    /// # Errors
    /// `TokenInvalid` if there is none; `SecretExposed`, and those of the file.
    pub fn find(&self, id: &str) -> Result<S3Key, Error> {
        if id.len() != ID_BYTES || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(unknown());
        }
        let path = self.folder.join(id);
        let text = secret::read(&path)?.ok_or_else(unknown)?;
        let bad = |cause: String| Error::new(Code::ConfigInvalid, "read S3 key", path.display(), cause);
        let key: S3Key = toml::from_str(&text).map_err(|error| bad(error.message().to_owned()))?;
        match key.version {
            1 => Ok(key),
            version => Err(bad(format!("its version is {version}, and this renkei knows version 1"))),
        }
    }

    /// The keys of a user, the oldest first.
    ///
    /// # Errors
    /// Those of the files.
    pub fn of(&self, owner: &Principal) -> Result<Vec<ListedKey>, Error> {
        let mut keys = Vec::new();
        for id in self.ids()? {
            let Ok(key) = self.find(&id) else { continue };
            if key.owner().as_ref() == Some(owner) {
                let used_unix = Some(self.used(&id)?).filter(|used| *used > key.created_unix);
                keys.push(ListedKey { id, key, used_unix });
            }
        }
        keys.sort_by(|one, other| (one.key.created_unix, &one.id).cmp(&(other.key.created_unix, &other.id)));
        Ok(keys)
    }

    /// Removes a key of a user.
    ///
    /// # Errors
    /// `TokenInvalid` if the user has none of that id; those of the file.
    pub fn revoke(&self, owner: &Principal, id: &str) -> Result<(), Error> {
        if self.find(id)?.owner().as_ref() != Some(owner) {
            return Err(unknown());
        }
        let path = self.folder.join(id);
        std::fs::remove_file(&path).map_err(|error| file_error("revoke S3 key", &path, &error))
    }

    /// Notes that a key was used.
    pub fn note_use(&self, id: &str, now: SystemTime) {
        let noted = self.used(id).and_then(|used| match unix(now).saturating_sub(used) {
            since if since < NOTED_EVERY.as_secs() => Ok(()),
            _ => self.note(id, now),
        });
        if let Err(error) = noted {
            tracing::debug!(%error, "the use of an S3 key is not noted");
        }
    }

    fn note(&self, id: &str, at: SystemTime) -> Result<(), Error> {
        let path = self.folder.join(id);
        let noted = File::options().append(true).open(&path).and_then(|file| file.set_modified(at));
        noted.map_err(|error| file_error("note use of S3 key", &path, &error))
    }

    fn used(&self, id: &str) -> Result<u64, Error> {
        let path = self.folder.join(id);
        let used = std::fs::metadata(&path).and_then(|found| found.modified());
        used.map(unix).map_err(|error| file_error("read S3 key", &path, &error))
    }

    fn ids(&self) -> Result<Vec<String>, Error> {
        let failed = |error: io::Error| file_error("list S3 keys", &self.folder, &error);
        match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
            Ok(names) => names
                .map(|name| name.map(|name| name.file_name().to_string_lossy().into_owned()).map_err(failed))
                .collect(),
        }
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The error for a key that is not there, or another user's.
fn unknown() -> Error {
    Error::new(Code::TokenInvalid, "find S3 key", "S3 key", "this PoP has no such key, or it was revoked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn holder(name: &str) -> Holder {
        Holder { principal: Principal::parse(name).unwrap(), serial: None }
    }

    #[test]
    fn keys_are_secret_files_that_end_with_their_revocation() {
        let dir = tempfile::tempdir().unwrap();
        let (home, now) = (Home::at(dir.path()), SystemTime::now());
        let keys = S3Keys::new(&home);
        let (alice, bob) = (holder("alice@kek"), holder("bob@kek"));
        let (id, key) = keys.create(alice.clone(), &["activity:LIST".into()], now).unwrap();
        assert_eq!((id.len(), key.secret().len()), (ID_BYTES, 40));
        let mode = std::fs::metadata(home.s3_key_dir().join(&id)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(keys.find(&id).unwrap(), key);
        let listed = keys.of(&alice.principal).unwrap();
        assert_eq!((listed.len(), listed[0].used_unix), (1, None));
        keys.note_use(&id, now + Duration::from_secs(90));
        assert_eq!(keys.of(&alice.principal).unwrap()[0].used_unix, Some(key.created_unix + 90));
        assert!(keys.of(&bob.principal).unwrap().is_empty());
        assert_eq!(keys.revoke(&bob.principal, &id).unwrap_err().code, Code::TokenInvalid);
        keys.revoke(&alice.principal, &id).unwrap();
        assert_eq!(keys.find(&id).unwrap_err().code, Code::TokenInvalid);
        for bad in ["", "../../config.toml", "RK", "RK/../../../pki/ca.pem"] {
            assert_eq!(keys.find(bad).unwrap_err().code, Code::TokenInvalid, "{bad}");
        }
        assert!(keys.create(alice, &["activity:FLY".into()], now).is_err());
    }

    #[test]
    fn an_exposed_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let (id, _) = S3Keys::new(&home).create(holder("alice@kek"), &[], SystemTime::now()).unwrap();
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(home.s3_key_dir().join(&id), open).unwrap();
        assert_eq!(S3Keys::new(&home).find(&id).unwrap_err().code, Code::SecretExposed);
    }
}
