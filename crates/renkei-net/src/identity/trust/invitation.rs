//! Invitations: one line that lets another site's administrator exchange site cards with this site over the wire.
//!
//! The line names the site, its endpoints, the SHA-256 of its authority's certificate and a secret. It works for one
//! site, until it expires; the joining site proves possession of the key of a certificate of the site it claims to
//! be. The PoP stores the SHA-256 of the secret as the name of a file in `state/invitations`, never the secret
//! itself; a used one stays until it expires, so that the same site can retry after a broken connection, with the
//! same card: a used line changes nothing any more.

use super::card::SiteCard;
use super::former_names;
use super::remove_file;
use crate::identity::certificate::{hex, unix_seconds};
use renkei_config::home::{Home, file_error, make_private_dir, read_text, write_file};
use renkei_config::is_endpoint;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// The secret of an invitation.
pub type Secret = [u8; 16];

/// Longest lifetime of an invitation.
pub const LONGEST_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum of open invitations.
const MAX_OPEN: usize = 1000;
/// Characters of an invitation's id.
const ID_CHARS: usize = 8;

/// An invitation as one administrator hands it to another; its text form is the line.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The inviting site.
    pub site: SiteName,
    /// Its endpoints.
    pub endpoints: Vec<String>,
    /// Sites whose PoPs relay to it.
    pub via: Vec<SiteName>,
    authority: [u8; 32],
    /// The secret: not to be shown.
    pub secret: Secret,
}

/// An invitation that is not expired, used or not.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Open {
    /// Identifies it without disclosing the secret.
    pub id: String,
    /// The expiry, seconds since 1970.
    pub expires_unix: i64,
    /// Whether a site has used it.
    pub used: bool,
}

impl Invitation {
    /// Checks that `card` is that of the inviting site.
    ///
    /// # Errors
    /// `InvitationRefused` with the site and fingerprint of the card: another site answers at the endpoint.
    pub fn check(&self, card: &SiteCard) -> Result<(), Error> {
        let mut named = card.authorities(SystemTime::now());
        // Also the previous authority, which handed over to the current one: the card was checked.
        if card.site == self.site && named.any(|authority| Sha256::digest(authority)[..] == self.authority) {
            return Ok(());
        }
        let cause = format!(
            "the PoP that answers shows the card of {} with {}, which is not the site that invited",
            card.site,
            card.fingerprint()
        );
        Err(Error::new(Code::InvitationRefused, "join", &self.site, cause))
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proof = [&self.authority[..], &self.secret].concat();
        let via = self.via.iter().map(SiteName::as_str);
        let places: Vec<&str> = self.endpoints.iter().map(String::as_str).chain(via).collect();
        write!(f, "{}@{}/{}", self.site, places.join(","), hex(&proof, ""))
    }
}

impl FromStr for Invitation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed =
            split(text.trim()).ok_or("it is not SITE@HOST:PORT/ and 96 digits, as `renkei invite` prints");
        parsed.map_err(|cause| Error::new(Code::InvitationRefused, "read invitation", "", cause))
    }
}

fn split(text: &str) -> Option<Invitation> {
    let (site, rest) = text.split_once('@')?;
    let (endpoints, proof) = rest.rsplit_once('/')?;
    let (endpoints, via): (Vec<&str>, Vec<&str>) =
        endpoints.split(',').partition(|place| place.contains(':'));
    let via: Option<Vec<SiteName>> = via.into_iter().map(|site| SiteName::parse(site).ok()).collect();
    let endpoints: Vec<String> = endpoints.into_iter().map(str::to_owned).collect();
    let proof = unhex(proof)?;
    let (authority, secret) = proof.split_first_chunk::<32>()?;
    let good = endpoints.iter().all(|endpoint| is_endpoint(endpoint));
    let (site, secret) = (SiteName::parse(site).ok()?, secret.try_into().ok()?);
    good.then_some(Invitation { site, endpoints, via: via?, authority: *authority, secret })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

/// Creates an invitation to the site of `card` that is valid for `life`.
pub fn give(
    home: &Home,
    card: &SiteCard,
    life: Duration,
    now: SystemTime,
) -> Result<(Invitation, Open), Error> {
    let folder = folder(home);
    make_private_dir(home.state_dir())?;
    make_private_dir(&folder)?;
    if list(home, now)?.len() >= MAX_OPEN {
        let cause = format!("{MAX_OPEN} invitations are open; `renkei invite --cancel ID` ends one");
        return Err(Error::new(Code::UsageInvalid, "invite", &card.site, cause));
    }
    let secret: Secret = random_bytes()?;
    let expires_unix = unix_seconds(now + life.min(LONGEST_LIFE));
    let name = name_of(&secret);
    write_file(&folder.join(&name), format!("{expires_unix}\n").as_bytes(), 0o600)?;
    let authority = Sha256::digest(&card.authority).into();
    let SiteCard { site, endpoints, via, .. } = card.for_others();
    let invitation = Invitation { site, endpoints, via, authority, secret };
    Ok((invitation, Open { id: id_of(&name), expires_unix, used: false }))
}

/// The invitations that have not expired, by id; expired ones are removed.
pub fn list(home: &Home, now: SystemTime) -> Result<Vec<Open>, Error> {
    let mut open = Vec::new();
    for name in names(home)? {
        let path = folder(home).join(&name);
        match read_expiry(&path)? {
            Some(expires_unix) if expires_unix > unix_seconds(now) => {
                open.push(Open { id: id_of(&name), expires_unix, used: name.contains('.') });
            }
            Some(_) => remove_file(&path)?,
            None => {}
        }
    }
    open.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(open)
}

/// Cancels the invitation named `id`; returns whether there was one.
pub fn cancel(home: &Home, id: &str) -> Result<bool, Error> {
    let mut found = false;
    for name in names(home)?.iter().filter(|name| id_of(name) == id) {
        remove_file(&folder(home).join(name))?;
        found = true;
    }
    Ok(found)
}

/// Cancels the invitations that a site used, under whatever name: it would rejoin with them by itself.
pub(crate) fn cancel_used(home: &Home, site: &SiteName) -> Result<(), Error> {
    let former = former_names::read(home)?;
    let is_its = |name: &&String| {
        name.split('.').nth(1).is_some_and(|used| former.current(used).unwrap_or(used) == site.as_str())
    };
    names(home)?.iter().filter(is_its).try_for_each(|name| remove_file(&folder(home).join(name)))
}

/// Redeems the invitation with this secret for the site of `card`; idempotent for the same card.
///
/// # Errors
/// `InvitationRefused` if there is none, it expired, another site used it, or its site comes with another card.
pub fn take(home: &Home, secret: &Secret, card: &SiteCard, now: SystemTime) -> Result<(), Error> {
    let refused = |cause: &str| Error::new(Code::InvitationRefused, "take invitation", &card.site, cause);
    let folder = folder(home);
    let name = name_of(secret);
    let (fresh, used) = (folder.join(&name), folder.join(format!("{name}.{}", used_by(card))));
    // The atomic rename decides between two concurrent uses.
    let taken = std::fs::rename(&fresh, &used);
    match read_expiry(&used)? {
        Some(expires) if expires > unix_seconds(now) => {}
        Some(_) => return Err(refused("it has expired")),
        None => return Err(refused(&why_not(home, &name, card)?)),
    }
    match taken {
        Ok(()) => sync(&folder),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(file_error("take invitation", &fresh, &error)),
    }
}

/// The reason why the invitation of this name cannot be used with `card`.
fn why_not(home: &Home, name: &str, card: &SiteCard) -> Result<String, Error> {
    let of_site = format!("{name}.{}", site_and_authority(card));
    if !names(home)?.iter().any(|used| used.starts_with(&of_site)) {
        return Ok("there is no such invitation, or another site has used it".into());
    }
    Ok(format!(
        "{} has used it already, with another card, and a used invitation changes no card; its administrator needs a \
         new one: `renkei invite`",
        card.site
    ))
}

fn folder(home: &Home) -> PathBuf {
    home.state_dir().join("invitations")
}

fn name_of(secret: &Secret) -> String {
    hex(&Sha256::digest(secret), "")
}

fn id_of(name: &str) -> String {
    name.chars().take(ID_CHARS).collect()
}

/// The card that an invitation was used with, as one word: site, authority, and the digest of the whole card.
fn used_by(card: &SiteCard) -> String {
    let digest = Sha256::digest(card.to_text().as_bytes());
    format!("{}.{}", site_and_authority(card), hex(&digest[..16], ""))
}

fn site_and_authority(card: &SiteCard) -> String {
    format!("{}.{}", card.site, hex(&Sha256::digest(&card.authority)[..16], ""))
}

fn names(home: &Home) -> Result<Vec<String>, Error> {
    let folder = folder(home);
    let failed = |error| file_error("list invitations", &folder, &error);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<_> = names.collect::<io::Result<_>>().map_err(failed)?;
    // A name that starts with a dot is a file being written.
    Ok(names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect())
}

fn read_expiry(path: &std::path::Path) -> Result<Option<i64>, Error> {
    Ok(read_text(path, 64)?.map(|text| text.trim().parse().unwrap_or(0)))
}

fn sync(folder: &std::path::Path) -> Result<(), Error> {
    File::open(folder).and_then(|dir| dir.sync_all()).map_err(|error| file_error("sync", folder, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::Authority;
    use crate::identity::tests::{card, now, site};

    const HOUR: Duration = Duration::from_secs(3600);

    fn card_of(name: &str) -> SiteCard {
        card(&Authority::create(&site(name), now()).unwrap())
    }

    fn given() -> (tempfile::TempDir, Home, Invitation, Open) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let (invitation, open) = give(&home, &card_of("kek"), HOUR, now()).unwrap();
        (dir, home, invitation, open)
    }

    #[test]
    fn the_line_round_trips_and_a_damaged_one_is_refused() {
        let (_dir, _, mut invitation, _) = given();
        invitation.endpoints.push("[::1]:7512".into());
        let line = invitation.to_string();
        assert!(line.starts_with("kek@kek.example:7512,[::1]:7512/"), "{line}");
        assert!(Invitation::from_str(&format!(" {line}\n")).unwrap() == invitation);
        for damaged in [&line[..line.len() - 1], "kek", "", &line.replace(":7512", ":x"), &format!("{line}0")]
        {
            let refused = Invitation::from_str(damaged).err().map(|error| error.code);
            assert_eq!(refused, Some(Code::InvitationRefused), "{damaged}");
        }
        let other = line.replace("kek@", "kekk@");
        assert!(Invitation::from_str(&other).unwrap().check(&card_of("kek")).is_err());
    }

    #[test]
    fn only_the_inviting_site_is_accepted() {
        let (_dir, home, _, _) = given();
        let kek = card_of("kek");
        let (invitation, _) = give(&home, &kek, HOUR, now()).unwrap();
        invitation.check(&kek).unwrap();
        assert_eq!(invitation.check(&card_of("kek")).unwrap_err().code, Code::InvitationRefused);
    }

    #[test]
    fn an_invitation_works_repeatedly_for_one_site() {
        let (_dir, home, invitation, _) = given();
        let (first, second) = (card_of("titech"), card_of("osaka"));
        take(&home, &invitation.secret, &first, now()).unwrap();
        take(&home, &invitation.secret, &first, now()).unwrap();
        let refused = |card: &SiteCard, now| take(&home, &invitation.secret, card, now).unwrap_err();
        assert_eq!(refused(&second, now()).code, Code::InvitationRefused);
        // A site of that name with another authority is another site.
        assert_eq!(refused(&card_of("titech"), now()).code, Code::InvitationRefused);
        // Its own card, changed, is refused too: the line was for one card.
        let moved = SiteCard { endpoints: vec!["elsewhere.example:7512".into()], ..first.clone() };
        assert!(refused(&moved, now()).cause.contains("with another card"), "{}", refused(&moved, now()));
        take(&home, &invitation.secret, &first, now()).unwrap();
        assert!(refused(&first, now() + 2 * HOUR).cause.contains("expired"));
        let all = list(&home, now()).unwrap();
        assert!(all.len() == 1 && all[0].used);
        assert!(take(&home, &[7; 16], &first, now()).is_err());
    }

    #[test]
    fn a_removed_site_cannot_return_with_its_old_invitation() {
        let (_dir, home, invitation, _) = given();
        let (card, (other, _)) = (card_of("titech"), give(&home, &card_of("kek"), HOUR, now()).unwrap());
        take(&home, &invitation.secret, &card, now()).unwrap();
        take(&home, &other.secret, &card_of("osaka"), now()).unwrap();
        cancel_used(&home, &site("cern")).unwrap();
        take(&home, &invitation.secret, &card, now()).unwrap();
        // The site was renamed since.
        former_names::note(&home, "titech", &site("tokyotech")).unwrap();
        cancel_used(&home, &site("tokyotech")).unwrap();
        assert_eq!(take(&home, &invitation.secret, &card, now()).unwrap_err().code, Code::InvitationRefused);
        assert_eq!(list(&home, now()).unwrap().len(), 1);
    }

    #[test]
    fn expired_and_cancelled_invitations_are_refused() {
        let (_dir, home, invitation, _) = given();
        let late = take(&home, &invitation.secret, &card_of("titech"), now() + 2 * HOUR).unwrap_err();
        assert_eq!(late.code, Code::InvitationRefused);
        let (invitation, open) = give(&home, &card_of("kek"), HOUR, now()).unwrap();
        assert!(cancel(&home, &open.id).unwrap() && !cancel(&home, &open.id).unwrap());
        assert!(take(&home, &invitation.secret, &card_of("titech"), now()).is_err());
        assert_eq!(list(&home, now() + 2 * HOUR).unwrap(), []);
        assert_eq!(std::fs::read_dir(folder(&home)).unwrap().count(), 0);
    }

    #[test]
    fn the_secret_is_not_stored() {
        let (_dir, home, invitation, _) = given();
        let secret = hex(&invitation.secret, "");
        for name in names(&home).unwrap() {
            let text = std::fs::read_to_string(folder(&home).join(&name)).unwrap();
            assert!(!name.contains(&secret) && !text.contains(&secret));
        }
    }
}
