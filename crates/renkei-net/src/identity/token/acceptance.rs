//! The judgement of a token of an issuer: its issuer is known, its signature is one of the issuer's keys, it is for this
//! PoP and now, and the map has an account.

use super::issuers::{Issuer, Issuers};
use super::jwt::{Claims, Grant};
use super::keys::IssuerKeys;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Mapping;
use std::time::SystemTime;

/// What a PoP judges tokens by.
pub struct Acceptance<'a> {
    /// The issuers that it accepts.
    pub issuers: &'a Issuers,
    /// Their keys.
    pub keys: &'a IssuerKeys,
    /// The map.
    pub mapping: &'a Mapping,
    /// The audiences that mean it.
    pub audiences: Vec<String>,
}

impl Acceptance<'_> {
    /// Verifies and judges a token. Keys are fetched, if they must be, only of issuers that are known: strangers must not
    /// make the PoP ask servers.
    ///
    /// # Errors
    /// `IssuerUnknown`; those of [`IssuerKeys::verify`] and [`Claims::judge`].
    pub fn verify(&self, claims: &Claims, text: &str, at: SystemTime) -> Result<Grant, Error> {
        self.issuer_of(claims)?;
        self.keys.verify(&claims.issuer, text, at)?;
        self.judge(claims, at)
    }

    /// Judges a token that was verified before.
    ///
    /// # Errors
    /// As [`Acceptance::verify`], but those of the signature.
    pub fn judge(&self, claims: &Claims, at: SystemTime) -> Result<Grant, Error> {
        claims.judge(self.issuer_of(claims)?, self.mapping, &self.audiences, at)
    }

    fn issuer_of(&self, claims: &Claims) -> Result<&Issuer, Error> {
        let unknown = || Error::new(Code::IssuerUnknown, "verify token", &claims.issuer, "");
        self.issuers.named(&claims.issuer).ok_or_else(unknown)
    }
}
