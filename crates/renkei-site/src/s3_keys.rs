//! The S3 keys of users are made, listed and revoked by their owners.

use super::Context;
use super::access::Proof;
use renkei_core::error::{Code, Error};
use renkei_core::wire::s3_key::{AboutS3Keys, S3KeyStatus, S3KeysReply};
use renkei_net::identity::token::bearer::Holder;
use renkei_net::identity::token::caveat::before;
use renkei_net::identity::token::s3_key::{ListedKey, S3Key};
use std::time::{Duration, SystemTime};

impl Context {
    /// Answers a user's request about own S3 keys.
    ///
    /// # Errors
    /// `NotAllowed` for all but users, `OutOfScope` for restricted credentials, `UsageInvalid` for a validity in the past;
    /// those of the keys.
    pub fn about_s3_keys(&self, proof: &Proof, about: AboutS3Keys) -> Result<S3KeysReply, Error> {
        let principal = &proof.principal;
        let refused = |code, cause: &str| Err(Error::new(code, "use S3 keys", principal, cause));
        if proof.scope.is_some() {
            return refused(Code::OutOfScope, "a restricted credential gets no S3 key");
        }
        if principal.user_name().is_none() {
            return refused(Code::NotAllowed, "S3 keys are for users");
        }
        // A user without an account here has no use for one.
        self.authorise(proof)?;
        let (keys, now) = (self.snapshot().s3_keys.clone(), SystemTime::now());
        match about {
            AboutS3Keys::Create { mut caveats, seconds } => {
                caveats.extend(seconds.map(|seconds| before(now + Duration::from_secs(seconds.into()))));
                caveats.extend(proof.evidence.facts()?.bound.map(before));
                let holder = Holder { principal: principal.clone(), serial: proof.origin().ok() };
                let (id, key) = keys.create(holder, &caveats, now)?;
                tracing::info!(target: "audit", %principal, id, caveats = caveats.join(" "), "S3 key created");
                Ok(S3KeysReply::Created { id, secret: key.secret().to_owned() })
            }
            AboutS3Keys::List => {
                keys.of(principal).map(|all| S3KeysReply::Keys(all.into_iter().map(status).collect()))
            }
            AboutS3Keys::Revoke(id) => {
                keys.revoke(principal, &id)?;
                tracing::info!(target: "audit", %principal, id, "S3 key revoked");
                Ok(S3KeysReply::Revoked)
            }
        }
    }

    /// The key with which the signature of a request is verified. Its owner is judged later, as other evidence is.
    ///
    /// # Errors
    /// `TokenInvalid` if there is none.
    pub fn s3_key(&self, id: &str) -> Result<S3Key, Error> {
        self.last_snapshot().s3_keys.find(id)
    }

    /// Notes that a key was used.
    pub fn note_s3_key(&self, id: &str) {
        self.last_snapshot().s3_keys.note_use(id, SystemTime::now());
    }
}

fn status(listed: ListedKey) -> S3KeyStatus {
    let ListedKey { id, key: S3Key { caveats, created_unix, .. }, used_unix } = listed;
    S3KeyStatus { id, caveats, created_unix, used_unix }
}
