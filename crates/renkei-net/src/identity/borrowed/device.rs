//! Login at a provider of identities from a terminal: the device flow of OAuth 2.0 (RFC 8628), found by the provider's
//! metadata (OpenID Connect Discovery).
//!
//! The user opens an address in any browser and confirms a code; the program asks the provider meanwhile, as often as
//! that permits. Guarantees: HTTPS alone; texts of the provider that a terminal would obey are refused; tokens are in no
//! error and no log.

use crate::http_client::{get, post_for_answer};
use crate::identity::tls::web_config;
use renkei_core::error::{Code, Error};
use renkei_core::queue::webhook::Address;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Largest answer of a provider accepted.
const MAX_BYTES: usize = 1 << 20;
/// Pause between two questions where the provider names none, and what `slow_down` adds to it (RFC 8628, 3.2 and 3.5).
const PAUSE: Duration = Duration::from_secs(5);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
const OP: &str = "log in at provider";

/// A provider, and the client as which renkei is known there.
pub struct Provider {
    issuer: String,
    client: String,
    device: Address,
    token: Address,
}

/// The question that the user answers in a browser.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Prompt {
    /// The address to open.
    pub verification_uri: String,
    /// The same with the code in it.
    pub verification_uri_complete: Option<String>,
    /// The code to confirm.
    pub user_code: String,
    device_code: String,
    expires_in: u64,
    interval: Option<u64>,
}

/// What a provider gives.
#[derive(Deserialize)]
pub struct Tokens {
    /// The token for PoPs.
    #[serde(rename = "access_token")]
    pub access: String,
    /// The token with which further ones are got.
    #[serde(rename = "refresh_token")]
    pub refresh: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    device_authorization_endpoint: Option<String>,
    token_endpoint: String,
}

impl Provider {
    /// Finds the endpoints of a provider.
    ///
    /// # Errors
    /// `ProviderUnusable`.
    pub fn find(issuer: &str, client: &str) -> Result<Self, Error> {
        let bad = |cause: String| unusable(issuer, cause);
        let issuer = issuer.trim_end_matches('/');
        let url = format!("{issuer}/.well-known/openid-configuration");
        let tls = web_config()?;
        let body = get(&secure(&url).map_err(bad)?, &tls, MAX_BYTES)
            .map_err(|cause| bad(format!("{url}: {cause}")))?;
        let metadata: Metadata =
            serde_json::from_slice(&body).map_err(|error| bad(format!("{url}: {error}")))?;
        if metadata.issuer.trim_end_matches('/') != issuer {
            return Err(bad(format!("{url} is of the issuer {}", printable(&metadata.issuer))));
        }
        let device = metadata.device_authorization_endpoint;
        let device = device.ok_or_else(|| bad("it offers no logins of devices (RFC 8628)".into()))?;
        let (device, token) = (secure(&device).map_err(bad)?, secure(&metadata.token_endpoint).map_err(bad)?);
        Ok(Provider { issuer: issuer.into(), client: client.into(), device, token })
    }

    /// Begins a login; `audience` is whom the token is for, if the provider has to be told.
    ///
    /// # Errors
    /// `ProviderUnusable`.
    pub fn begin(&self, scope: &str, audience: Option<&str>) -> Result<Prompt, Error> {
        let mut form = vec![("client_id", self.client.as_str()), ("scope", scope)];
        form.extend(audience.map(|audience| ("audience", audience)));
        let (status, answer) = self.post(&self.device, &form)?;
        if status != 200 {
            return Err(self.refused(status, &answer));
        }
        let prompt: Prompt = self.read(answer)?;
        let shown = [
            Some(&prompt.verification_uri),
            prompt.verification_uri_complete.as_ref(),
            Some(&prompt.user_code),
        ];
        let is_harmless = shown.into_iter().flatten().all(|text| is_plain(text));
        match is_harmless {
            true => Ok(prompt),
            false => Err(unusable(&self.issuer, "its address or code has signs that a terminal obeys")),
        }
    }

    /// Waits until the user has confirmed; `pause` sleeps.
    ///
    /// # Errors
    /// `LoginDenied`, `LoginLapsed`, `ProviderUnusable`.
    pub fn wait(&self, prompt: &Prompt, pause: &dyn Fn(Duration)) -> Result<Tokens, Error> {
        let form = [("grant_type", GRANT), ("device_code", &prompt.device_code), ("client_id", &self.client)];
        let mut every =
            prompt.interval.map_or(PAUSE, Duration::from_secs).clamp(Duration::from_secs(1), MAX_PAUSE);
        let mut left = Duration::from_secs(prompt.expires_in);
        while let Some(rest) = left.checked_sub(every) {
            left = rest;
            pause(every);
            // A provider that does not answer once may answer the next time (RFC 8628, 3.5).
            let Ok((status, answer)) = self.post(&self.token, &form) else { continue };
            if status == 200 {
                return self.read(answer);
            }
            match answer["error"].as_str() {
                Some("authorization_pending") => {}
                Some("slow_down") => every = (every + PAUSE).min(MAX_PAUSE),
                Some("access_denied") => {
                    return Err(Error::new(Code::LoginDenied, OP, &self.issuer, "by the user there"));
                }
                Some("expired_token") => break,
                _ => return Err(self.refused(status, &answer)),
            }
        }
        Err(Error::new(Code::LoginLapsed, OP, &self.issuer, format!("within {} s", prompt.expires_in)))
    }

    /// Gets a fresh token with a refresh token.
    ///
    /// # Errors
    /// `LoginLapsed` if the provider takes it no more, `ProviderUnusable`.
    pub fn refresh(&self, refresh: &str) -> Result<Tokens, Error> {
        let form = [("grant_type", "refresh_token"), ("refresh_token", refresh), ("client_id", &self.client)];
        let (status, answer) = self.post(&self.token, &form)?;
        match (status, answer["error"].as_str()) {
            (200, _) => self.read(answer),
            (_, Some("invalid_grant")) => {
                Err(Error::new(Code::LoginLapsed, OP, &self.issuer, "the provider renews this login no more"))
            }
            _ => Err(self.refused(status, &answer)),
        }
    }

    fn post(&self, to: &Address, form: &[(&str, &str)]) -> Result<(u16, Value), Error> {
        let bad = |cause: String| unusable(&self.issuer, cause);
        let name = ServerName::try_from(to.host.clone()).map_err(|error| bad(error.to_string()))?;
        let headers = [("content-type", "application/x-www-form-urlencoded"), ("accept", "application/json")];
        let answer =
            post_for_answer(to, &name, &headers, &|| Ok(None), encoded(form), &web_config()?, MAX_BYTES)
                .map_err(bad)?;
        Ok((answer.status, serde_json::from_slice(&answer.body).unwrap_or_default()))
    }

    /// Reads an answer; its error says nothing of the content.
    fn read<T: DeserializeOwned>(&self, answer: Value) -> Result<T, Error> {
        serde_json::from_value(answer)
            .map_err(|_| unusable(&self.issuer, "its answer lacks fields of RFC 8628"))
    }

    fn refused(&self, status: u16, answer: &Value) -> Error {
        let told = [answer["error"].as_str(), answer["error_description"].as_str()];
        let told: Vec<String> = told.into_iter().flatten().map(printable).collect();
        unusable(&self.issuer, format!("it answered {status} {}", told.join(": ")))
    }
}

fn unusable(issuer: &str, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::ProviderUnusable, OP, issuer, cause)
}

fn secure(url: &str) -> Result<Address, String> {
    let address = Address::parse(url)?;
    if address.https { Ok(address) } else { Err(format!("{url} is not an https URL")) }
}

fn is_plain(text: &str) -> bool {
    text.len() <= 2048 && text.chars().all(|c| c == ' ' || c.is_ascii_graphic())
}

/// A text of the provider, without signs that a terminal obeys.
fn printable(text: &str) -> String {
    text.chars().filter(|c| *c == ' ' || c.is_ascii_graphic()).take(200).collect()
}

/// A form, percent-encoded but for unreserved signs.
fn encoded(form: &[(&str, &str)]) -> String {
    let escape = |text: &str| {
        text.bytes().fold(String::new(), |all, byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                all + &char::from(byte).to_string()
            }
            other => all + &format!("%{other:02X}"),
        })
    };
    form.iter().map(|(name, value)| format!("{name}={}", escape(value))).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_encoded() {
        assert_eq!(encoded(&[("a", "x y&z=1/é"), ("b", "A-9._~")]), "a=x%20y%26z%3D1%2F%C3%A9&b=A-9._~");
    }

    #[test]
    fn texts_of_a_provider_are_shown_if_they_are_harmless() {
        assert!(
            is_plain("https://issuer.example/device?code=AB-CD") && !is_plain("A\x1b[2J") && !is_plain("ä")
        );
        assert_eq!(printable("no\x1b[2J such client\n"), "no[2J such client");
    }

    #[test]
    fn providers_are_asked_over_https_alone() {
        let error = Provider::find("http://issuer.example", "renkei").err().unwrap();
        assert_eq!(error.code, Code::ProviderUnusable);
    }
}
