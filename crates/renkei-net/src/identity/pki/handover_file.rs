//! The hand-overs that a PoP keeps in its directory: `pki/handover-N.toml`, one for each authority but the first.

use super::certificate::parse_chain;
use super::handover::{Handover, HandoverText, MAX_EARLIER, may_follow, name_before, number_of};
use renkei_config::home::{Home, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

/// Version of the file.
pub(crate) const VERSION: u32 = 1;
const MAX_BYTES: u64 = 64 * 1024;

/// The stored file of a hand-over.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) version: u32,
    /// The expired cross-certificate that partners get once the overlap was ended by hand.
    pub(crate) notice: String,
    /// The time of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finished_unix: Option<u64>,
    /// Whether the PoP gets a new key as well, because both keys may be compromised.
    pub(crate) new_host_key: bool,
    pub(crate) handover: HandoverText,
}

/// The hand-over to the authority of this certificate, if it is stored.
///
/// # Errors
/// Errors of the file, `CardInvalid` if it is damaged.
pub(crate) fn handover_to(
    home: &Home,
    site: &SiteName,
    authority: &CertificateDer<'_>,
) -> Result<Option<Handover>, Error> {
    let Some(stored) = read(home, authority)? else { return Ok(None) };
    let notice = parse_chain(&stored.notice)?.remove(0);
    let mut handover = stored.handover.into_handover()?;
    if let Some(finished_unix) = stored.finished_unix {
        (handover.cross, handover.until_unix) = (notice, finished_unix.min(handover.until_unix));
    }
    handover.check(site, authority)?;
    Ok(Some(handover))
}

/// The hand-overs before the one to the current authority that may be followed, the newest first.
///
/// # Errors
/// As [`handover_to`].
pub(crate) fn handovers_before(
    home: &Home,
    site: &SiteName,
    authority: &CertificateDer<'_>,
    newest: &Handover,
) -> Result<Vec<Handover>, Error> {
    let (site, mut earlier) = (name_before(site, authority)?, Vec::<Handover>::new());
    let mut to = authority.clone();
    while earlier.len() < MAX_EARLIER {
        let previous = &earlier.last().unwrap_or(newest).previous;
        if !may_follow(&to, previous)? {
            break;
        }
        let Some(before) = handover_to(home, &site, previous)? else { break };
        to = previous.clone();
        earlier.push(before);
    }
    Ok(earlier)
}

/// The stored hand-over to an authority.
pub(crate) fn read(home: &Home, authority: &CertificateDer<'_>) -> Result<Option<Stored>, Error> {
    let path = home.handover_file(number_of(authority)?);
    let Some(text) = read_text(&path, MAX_BYTES)? else { return Ok(None) };
    let bad = |cause: String| Error::new(Code::ConfigInvalid, "read hand-over", path.display(), cause);
    let stored: Stored = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    match stored.version {
        VERSION => Ok(Some(stored)),
        other => Err(bad(format!("version {other}, this renkei knows {VERSION}"))),
    }
}

/// Stores the hand-over to an authority.
pub(crate) fn store(home: &Home, authority: &CertificateDer<'_>, stored: &Stored) -> Result<(), Error> {
    let text = toml::to_string(stored).expect("it is plain data");
    let head = "# How the site's authority handed over to the one in ca.pem. Written by `renkei site rotate-authority`.\n";
    write_file(&home.handover_file(number_of(authority)?), format!("{head}{text}").as_bytes(), 0o644)
}
