//! JSON Web Tokens of trusted issuers: the WLCG profile 1.x, SciTokens 2, and access tokens of RFC 9068.
//!
//! A token is verified with a key of its issuer, RS256 or ES256 alone; its times, its audience and its scopes are
//! judged here, so that each refusal has its own code. Scopes are rights to paths below the issuer's prefix. Words of
//! a scope that are not about storage are passed over, because words of a token only add rights.

use super::issuers::Issuer;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::Capability;
use renkei_core::identity::{Mapping, Rights, Verdict};
use renkei_core::path::Place;
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Difference of the clocks that is borne.
const LEEWAY: Duration = Duration::from_secs(60);
/// Audiences that mean everybody, of the WLCG profile and of SciTokens.
const ANY_AUDIENCE: [&str; 2] = ["https://wlcg.cern.ch/jwt/v1/any", "ANY"];
const OP: &str = "verify token";

/// What a token says.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Claims {
    /// The issuer's URL.
    #[serde(rename = "iss")]
    pub issuer: String,
    /// The subject.
    #[serde(rename = "sub")]
    pub subject: String,
    /// Whom it is for.
    #[serde(rename = "aud", default)]
    audience: Value,
    #[serde(rename = "exp")]
    expires: u64,
    #[serde(rename = "nbf", default)]
    not_before: u64,
    #[serde(default)]
    scope: Value,
    #[serde(rename = "wlcg.ver")]
    wlcg: Option<String>,
    #[serde(rename = "ver")]
    version: Option<String>,
    #[serde(rename = "wlcg.groups", default)]
    groups: Vec<String>,
}

impl Claims {
    /// Reads a token without verifying it.
    ///
    /// # Errors
    /// `TokenInvalid`.
    pub fn read(text: &str) -> Result<Self, Error> {
        jsonwebtoken::dangerous::insecure_decode::<Claims>(text).map(|data| data.claims).map_err(invalid)
    }

    /// Whose token it is, for people.
    pub fn holder(&self) -> String {
        format!("{} of {}", self.subject, self.issuer)
    }

    /// The end of its validity.
    pub fn ends(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.expires.min(u64::from(u32::MAX)))
    }

    /// Whom it is for.
    pub fn audience(&self) -> Vec<String> {
        words(&self.audience)
    }

    /// Whether one of these audiences is meant.
    pub fn is_for(&self, audiences: &[String]) -> bool {
        let is_meant = |one: &String| ANY_AUDIENCE.contains(&&**one) || audiences.contains(one);
        self.audience().iter().any(is_meant)
    }

    /// The groups of its subject.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// Verifies the signature of a token with the keys of its issuer.
    ///
    /// # Errors
    /// `TokenSignature`, `TokenInvalid`.
    pub fn verify(text: &str, keys: &JwkSet) -> Result<(), Error> {
        let header = decode_header(text).map_err(invalid)?;
        let error = |cause: String| Error::new(Code::TokenSignature, OP, "token", cause);
        let algorithm = header.alg;
        if !matches!(algorithm, Algorithm::RS256 | Algorithm::ES256) {
            return Err(error(format!("{algorithm:?} is not accepted; issuers sign by RS256 or ES256")));
        }
        let is_meant = |key: &&Jwk| header.kid.is_none() || key.common.key_id == header.kid;
        let mut last = "no key of the issuer has the id that the token names".to_owned();
        for key in keys.keys.iter().filter(is_meant) {
            match verify_with(text, key, algorithm) {
                Ok(()) => return Ok(()),
                Err(cause) => last = cause.to_string(),
            }
        }
        Err(error(last))
    }

    /// Whether the issuer has a key with the id that a token names.
    pub fn has_key(text: &str, keys: &JwkSet) -> bool {
        let named = decode_header(text).ok().and_then(|header| header.kid);
        named.is_none_or(|id| keys.find(&id).is_some())
    }

    /// Judges times, version and audience.
    ///
    /// # Errors
    /// `TokenExpired`, `TokenNotYetValid`, `TokenAudience`, `TokenInvalid` for a profile that is not known.
    pub fn check(&self, audiences: &[String], now: SystemTime) -> Result<(), Error> {
        let error = |code, cause: String| Err(Error::new(code, OP, &self.subject, cause));
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds.min(u64::from(u32::MAX)));
        let here = || crate::identity::certificate::utc(now);
        if self.ends() + LEEWAY <= now {
            let end = crate::identity::certificate::utc(self.ends());
            return error(Code::TokenExpired, format!("it expired on {end}; here it is {}", here()));
        }
        if at(self.not_before) > now + LEEWAY {
            let begin = crate::identity::certificate::utc(at(self.not_before));
            return error(Code::TokenNotYetValid, format!("it is valid from {begin}; here it is {}", here()));
        }
        if let Some(version) = self.wlcg.as_ref().filter(|version| !version.starts_with("1.")) {
            return error(Code::TokenInvalid, format!("version {version} of the WLCG profile is not known"));
        }
        if let Some(version) = self.version.as_ref().filter(|version| *version != "scitoken:2.0") {
            return error(Code::TokenInvalid, format!("its version is {version}, not scitoken:2.0"));
        }
        let named = self.audience();
        match self.is_for(audiences) {
            true => Ok(()),
            false if named.is_empty() => error(Code::TokenAudience, "it names no audience".into()),
            false => error(Code::TokenAudience, format!("it is for {}", named.join(", "))),
        }
    }

    /// The rights that its scopes give, below the issuer's prefix; none if no word of them is about storage.
    ///
    /// # Errors
    /// `TokenInvalid` for a malformed word.
    pub fn capabilities(&self, issuer: &Issuer) -> Result<Vec<(Rights, Option<Place>)>, Error> {
        let scopes = words(&self.scope);
        let words = scopes.iter().flat_map(|scopes| scopes.split_whitespace());
        let known = words.filter(|word| Capability::is_word(word));
        known
            .map(|word| {
                let Capability { rights, prefix } = Capability::parse(word)
                    .map_err(|error| Error::new(Code::TokenInvalid, OP, &self.subject, error.cause))?;
                Ok((rights, issuer.place(prefix)?))
            })
            .collect()
    }
}

/// What a token of an issuer means here.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The account.
    pub account: String,
    /// The rule of the map that named it, or the issuer.
    pub rule: String,
    /// Its rights, each with a place or for all storages; none if it is not restricted.
    pub capabilities: Option<Vec<(Rights, Option<Place>)>>,
}

impl Claims {
    /// Judges a token whose signature was verified: its account, by the map or the issuer's, and its rights. A token
    /// without scopes for storage is good only where the map names its subject or one of its groups.
    ///
    /// # Errors
    /// Those of [`Claims::check`] and [`Claims::capabilities`]; `ShutOut`, `NotMapped`.
    pub fn judge(
        &self,
        issuer: &Issuer,
        mapping: &Mapping,
        audiences: &[String],
        at: SystemTime,
    ) -> Result<Grant, Error> {
        self.check(&[audiences, &issuer.audience].concat(), at)?;
        let capabilities = self.capabilities(issuer)?;
        let refused = |code, cause: String| Err(Error::new(code, "map", &self.subject, cause));
        let (account, rule) =
            match (mapping.of_token(&self.issuer, &self.subject, &self.groups), &issuer.account) {
                (Some(Verdict { account: Some(account), why }), _) => (account, why.to_string()),
                (Some(Verdict { why, .. }), _) => return refused(Code::ShutOut, why.to_string()),
                (None, Some(account)) if !capabilities.is_empty() => {
                    (account.clone(), format!("the account of {}", issuer.url))
                }
                (None, Some(_)) => {
                    return refused(
                        Code::NotMapped,
                        "it has no scope for storage, and no rule is about its subject or groups".into(),
                    );
                }
                (None, None) => {
                    return refused(Code::NotMapped, "no rule is about its subject or groups".into());
                }
            };
        let whole = issuer.place(None)?.map(|prefix| vec![(Rights::ALL, Some(prefix))]);
        let capabilities = if capabilities.is_empty() { whole } else { Some(capabilities) };
        Ok(Grant { account, rule, capabilities })
    }
}

fn verify_with(text: &str, key: &Jwk, algorithm: Algorithm) -> Result<(), jsonwebtoken::errors::Error> {
    let mut validation = Validation::new(algorithm);
    // Claims are judged by `check`.
    (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
    validation.required_spec_claims.clear();
    decode::<Value>(text, &DecodingKey::from_jwk(key)?, &validation).map(drop)
}

/// A claim that is one text or a list of texts.
fn words(claim: &Value) -> Vec<String> {
    match claim {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

fn invalid(error: jsonwebtoken::errors::Error) -> Error {
    Error::new(Code::TokenInvalid, OP, "token", format!("it is no macaroon and no JSON web token: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::token::issuers::Issuer;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const NOW: u64 = 1_800_000_000;

    /// An issuer's key, with its public half.
    struct Signer {
        key: EncodingKey,
        keys: JwkSet,
    }

    impl Signer {
        fn new(id: &str) -> Self {
            let pair = rcgen::KeyPair::generate().unwrap();
            let key = EncodingKey::from_ec_der(&pair.serialize_der());
            let mut public = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
            public.common.key_id = Some(id.into());
            Signer { key, keys: JwkSet { keys: vec![public] } }
        }

        fn token(&self, id: &str, claims: &Value) -> String {
            let header = Header { kid: Some(id.into()), ..Header::new(Algorithm::ES256) };
            encode(&header, claims, &self.key).unwrap()
        }
    }

    fn claims(changes: Value) -> Value {
        let mut claims = json!({
            "iss": "https://issuer.example", "sub": "s-1", "aud": "https://pop.kek.jp:7512", "wlcg.ver": "1.0",
            "exp": NOW + 600, "nbf": NOW - 600, "scope": "openid storage.read:/run7 storage.create:/in offline_access",
        });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    fn issuer(account: Option<&str>) -> Issuer {
        let account = account.map(str::to_owned);
        let prefix = Some("/data/wlcg".into());
        Issuer { url: "https://issuer.example".into(), prefix, account, audience: vec!["kek".into()] }
    }

    fn judge(changes: Value, account: Option<&str>, map: &str) -> Result<Grant, Error> {
        let claims: Claims = serde_json::from_value(claims(changes)).unwrap();
        let audiences = ["https://pop.kek.jp:7512".to_owned()];
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        claims.judge(&issuer(account), &Mapping::parse(map).unwrap(), &audiences, now)
    }

    fn code(changes: Value) -> Code {
        judge(changes, Some("wlcg001"), "").unwrap_err().code
    }

    #[test]
    fn only_the_issuers_keys_verify() {
        let (good, other) = (Signer::new("a"), Signer::new("a"));
        let token = good.token("a", &claims(json!({})));
        Claims::verify(&token, &good.keys).unwrap();
        assert_eq!(Claims::verify(&token, &other.keys).unwrap_err().code, Code::TokenSignature);
        let unknown = good.token("b", &claims(json!({})));
        assert_eq!(Claims::verify(&unknown, &good.keys).unwrap_err().code, Code::TokenSignature);
        assert!(Claims::has_key(&token, &good.keys) && !Claims::has_key(&unknown, &good.keys));
        let parts: Vec<&str> = token.split('.').collect();
        let changed = good.token("a", &claims(json!({"sub": "root"})));
        let forged = [parts[0], changed.split('.').nth(1).unwrap(), parts[2]].join(".");
        assert_eq!(Claims::verify(&forged, &good.keys).unwrap_err().code, Code::TokenSignature);
    }

    #[test]
    fn unsigned_tokens_and_those_with_a_shared_secret_are_refused() {
        let good = Signer::new("a");
        let secret = EncodingKey::from_secret(b"secret").unwrap();
        let shared = encode(&Header::new(Algorithm::HS256), &claims(json!({})), &secret).unwrap();
        assert_eq!(Claims::verify(&shared, &good.keys).unwrap_err().code, Code::TokenSignature);
        // {"alg":"none"}
        let unsigned = format!("eyJhbGciOiJub25lIn0.{}.", shared.split('.').nth(1).unwrap());
        assert!(Claims::verify(&unsigned, &good.keys).is_err());
        for bad in ["", "a.b.c", "AgEDa2Vr", &"a".repeat(100_000)] {
            assert_eq!(Claims::read(bad).unwrap_err().code, Code::TokenInvalid, "{bad:.20}");
        }
    }

    #[test]
    fn each_refusal_has_its_code() {
        assert_eq!(code(json!({"exp": NOW - 61})), Code::TokenExpired);
        assert_eq!(code(json!({"nbf": NOW + 61})), Code::TokenNotYetValid);
        assert!(judge(json!({"exp": NOW - 59, "nbf": NOW + 59}), Some("a"), "").is_ok());
        for audience in [json!("https://other"), json!([]), json!(null), json!(7)] {
            assert_eq!(code(json!({"aud": audience})), Code::TokenAudience);
        }
        for audience in [json!("https://wlcg.cern.ch/jwt/v1/any"), json!(["x", "ANY"]), json!("kek")] {
            assert!(judge(json!({"aud": audience}), Some("a"), "").is_ok());
        }
        assert_eq!(code(json!({"wlcg.ver": "2.0"})), Code::TokenInvalid);
        assert_eq!(code(json!({"ver": "scitoken:3.0"})), Code::TokenInvalid);
        for scope in ["storage.read", "storage.read:data", "storage.read:/a/../b", "storage.read:/a//b"] {
            assert_eq!(code(json!({"scope": scope})), Code::TokenInvalid, "{scope}");
        }
    }

    #[test]
    fn scopes_are_rights_below_the_prefix() {
        let rights = |changes| {
            let all = judge(changes, Some("wlcg001"), "").unwrap().capabilities.unwrap();
            all.into_iter().map(|(rights, place)| format!("{rights} {}", place.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(rights(json!({})), ["read+list /data/wlcg/run7", "create /data/wlcg/in"]);
        let scitoken =
            json!({"wlcg.ver": null, "ver": "scitoken:2.0", "scope": ["read:/", "write:/out"], "aud": "ANY"});
        assert_eq!(rights(scitoken), ["read+list /data/wlcg", "create+modify+delete /data/wlcg/out"]);
    }

    #[test]
    fn accounts_are_those_of_the_map_else_of_the_issuer() {
        let account = |changes, account, map: &str| {
            judge(changes, account, map).map(|grant| grant.account).map_err(|error| error.code)
        };
        let map = "token:https://issuer.example#s-1 alice\ngroup:https://issuer.example#/wlcg/xfers xfers # a comment\n";
        assert_eq!(account(json!({}), Some("wlcg001"), ""), Ok("wlcg001".into()));
        assert_eq!(account(json!({}), None, ""), Err(Code::NotMapped));
        assert_eq!(account(json!({}), None, map), Ok("alice".into()));
        let grouped = json!({"sub": "s-2", "wlcg.groups": ["/wlcg", "/wlcg/xfers"], "scope": null});
        assert_eq!(account(grouped.clone(), None, map), Ok("xfers".into()));
        assert_eq!(account(json!({"sub": "s-2", "wlcg.groups": ["/wlcg"]}), None, map), Err(Code::NotMapped));
        let denied = format!("{map}token:https://issuer.example#s-2 !\n");
        assert_eq!(account(grouped, Some("wlcg001"), &denied), Err(Code::ShutOut));
        // Without scopes for storage the issuer's account is not given.
        assert_eq!(account(json!({"scope": "openid"}), Some("wlcg001"), ""), Err(Code::NotMapped));
        let whole = judge(json!({"scope": "openid"}), None, map).unwrap();
        assert_eq!(whole.capabilities.unwrap()[0].1.as_ref().unwrap().to_string(), "/data/wlcg");
    }
}
