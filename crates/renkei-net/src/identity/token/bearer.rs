//! Tokens that this PoP issues and verifies: macaroons in the name of a principal.
//!
//! The identifier names the principal and the certificate by which the token was asked for, with which it is revoked.
//! The root key is in pki/token.key; without that file all tokens are refused.

use super::caveat::{Restrictions, before};
use super::macaroon::Macaroon;
use crate::identity::pki::certificate::serial_bytes;
use crate::identity::secret;
use crate::identity::trust::Trust;
use renkei_config::home::Home;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::units::hex;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// The first word of an identifier, with its version.
const IDENTIFIER: &str = "renkei-1";
const OP: &str = "verify token";

/// The key that signs the tokens of a PoP.
#[derive(Clone)]
pub struct TokenKey(String);

impl TokenKey {
    /// Reads it; none if no token was issued yet.
    ///
    /// # Errors
    /// `SecretExposed`, and those of the file.
    pub fn load(home: &Home) -> Result<Option<Self>, Error> {
        Ok(secret::read(&home.token_key())?.map(|text| TokenKey(text.trim().into())))
    }

    /// Reads it, or makes it.
    ///
    /// # Errors
    /// As [`TokenKey::load`].
    pub fn load_or_make(home: &Home) -> Result<Self, Error> {
        if let Some(key) = TokenKey::load(home)? {
            return Ok(key);
        }
        let made = hex(&random_bytes::<32>()?);
        secret::write(&home.token_key(), &format!("{made}\n"))?;
        Ok(TokenKey(made))
    }

    /// Issues a token in the name of a principal, asked for by the certificate with this serial, if by one.
    ///
    /// # Errors
    /// `TokenInvalid` and `OutOfScope` for caveats that would never hold.
    pub fn issue(
        &self,
        location: &str,
        holder: &Holder,
        caveats: &[String],
        until: SystemTime,
    ) -> Result<Macaroon, Error> {
        Restrictions::of(caveats.iter().map(String::as_str))?;
        let nonce = hex(&random_bytes::<8>()?);
        let serial = holder.serial.as_deref().unwrap_or("-");
        let identifier = format!("{IDENTIFIER} {} {serial} {nonce}", holder.principal);
        let token = Macaroon::new(self.0.as_bytes(), location, &identifier);
        let token = caveats.iter().fold(token, |token, caveat| token.with_caveat(caveat));
        Ok(token.with_caveat(&before(until)))
    }

    /// Verifies a token that is shown from an address: the principal in whose name it is, and its restrictions.
    ///
    /// # Errors
    /// `TokenInvalid`, `TokenExpired`, `TokenElsewhere`, `CertificateRevoked`, `UnknownAuthority`, `OutOfScope`.
    pub fn verify(
        &self,
        token: &Macaroon,
        trust: &Trust,
        now: SystemTime,
        from: IpAddr,
    ) -> Result<(Principal, Restrictions), Error> {
        if !token.is_signed_by(self.0.as_bytes()) {
            return Err(not_ours());
        }
        let Holder { principal, serial } = Holder::parse(&token.identifier).ok_or_else(not_ours)?;
        let error = |code, cause: String| Error::new(code, OP, &principal, cause);
        let site = principal.site();
        if trust.card(site).is_none() {
            return Err(error(Code::UnknownAuthority, format!("the site {site} is not trusted here")));
        }
        if let Some(serial) = serial.filter(|serial| trust.is_revoked(site, &serial_bytes(serial))) {
            let cause = format!("{site} took back serial {serial}, by which it was asked for");
            return Err(error(Code::CertificateRevoked, cause));
        }
        let restrictions = Restrictions::of(token.caveats.iter().map(String::as_str))?;
        restrictions.check(now, from)?;
        Ok((principal, restrictions))
    }
}

/// In whose name a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The principal.
    pub principal: Principal,
    /// The serial of the certificate that asked for it, if one did.
    pub serial: Option<String>,
}

impl Holder {
    /// Reads an identifier.
    pub fn parse(identifier: &str) -> Option<Self> {
        let words: Vec<&str> = identifier.split(' ').collect();
        let [IDENTIFIER, principal, serial, _nonce] = words[..] else { return None };
        let serial = (serial != "-").then(|| serial.to_owned());
        Some(Holder { principal: Principal::parse(principal).ok()?.current().into_owned(), serial })
    }
}

/// The error for a token that this PoP did not issue.
pub fn not_ours() -> Error {
    Error::new(Code::TokenInvalid, OP, "macaroon", "this PoP did not sign it")
}

/// The end of a token's validity: after the span that was asked for, at most the longest.
pub fn ends(now: SystemTime, asked: Duration, longest: Duration) -> Result<SystemTime, Error> {
    match asked <= longest {
        true => Ok(now + asked),
        false => {
            let cause =
                format!("at most {} hours, by `delegation_days` of the PoP", longest.as_secs() / 3600);
            Err(Error::new(Code::UsageInvalid, "issue token", "validity", cause))
        }
    }
}
