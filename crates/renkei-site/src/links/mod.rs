//! Links: addresses with which anybody who has one reads a file or folder, without an account.
//!
//! A link acts in the name of its owner at the time of its use, narrowed to reading its place: at each use the PoP makes
//! a macaroon of a minute for it, so that it ends with its owner's access, with the certificate by which it was asked for and with
//! `pki/token.key`. The catalogue keeps the digest of its secret, and counts its use. Uses: `context`, `queue::state`
//! for the catalogue.

use crate::Context;
use crate::access::Access;
use crate::evidence::Evidence;
use crate::queue::state::QueueState;
use crate::token::ShownToken;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use renkei_catalogue::StoredLink;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::Place;
use renkei_core::units::hex;
use renkei_core::wire::links::{AboutLink, LinkReply, LinkStatus, MAX_LINK_SECONDS};
use renkei_net::identity::certificate::unix_seconds;
use renkei_net::identity::token::bearer::{Holder, TokenKey};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What the path of each link begins with. No storage has such a name.
pub const PREFIX: &str = "/~link/";
/// Most links of one owner.
const MAX_LINKS: usize = 1000;
/// Links that ended are listed for so long, in seconds.
const KEPT: u64 = 30 * 86_400;
/// Validity of the token for one use; what began with it may take longer.
const USE_LIFE: Duration = Duration::from_secs(60);

/// The links of a PoP.
pub struct Links {
    context: Arc<Context>,
    state: Arc<QueueState>,
}

/// A link that somebody uses.
pub struct UsedLink {
    /// The link.
    pub status: LinkStatus,
    /// What opens its place.
    pub evidence: Evidence,
}

fn now() -> u64 {
    unix_seconds(SystemTime::now()).unsigned_abs()
}

fn digest(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}

impl Links {
    pub(crate) fn new(context: &Arc<Context>, state: &Arc<QueueState>) -> Self {
        Links { context: context.clone(), state: state.clone() }
    }

    /// Answers what a user asks about links.
    ///
    /// # Errors
    /// `NotAllowed` for all but users, `OutOfScope` for restricted credentials, `UsageInvalid` for a validity beyond
    /// [`MAX_LINK_SECONDS`], `TooManyEntries`, `PathNotFound` for an id of no own link, and those of the place.
    pub fn about(&self, access: &Access, about: AboutLink) -> Result<LinkReply, Error> {
        let refused = |code, cause: &str| Err(Error::new(code, "link", &access.principal, cause));
        if access.proof.scope.is_some() {
            return refused(Code::OutOfScope, "a restricted credential makes no links");
        }
        if access.principal.user_name().is_none() {
            return refused(Code::NotAllowed, "links are for users");
        }
        let (catalogue, owner) = (self.state.catalogue()?, access.principal.to_string());
        match about {
            AboutLink::Create { place, seconds, limit } => self.create(access, place, seconds, limit),
            AboutLink::List => {
                let all = catalogue.links(&owner, MAX_LINKS)?;
                Ok(LinkReply::All(all.into_iter().map(|link| link.status).collect()))
            }
            AboutLink::Revoke(id) => match catalogue.remove_link(&owner, &id)? {
                true => {
                    tracing::info!(target: "audit", principal = owner, link = id, "link revoked");
                    Ok(LinkReply::Revoked)
                }
                false => {
                    Err(Error::new(Code::PathNotFound, "revoke link", &id, "you have no link of this id"))
                }
            },
        }
    }

    fn create(
        &self,
        access: &Access,
        place: Place,
        seconds: u32,
        limit: Option<u32>,
    ) -> Result<LinkReply, Error> {
        let refused = |code, cause: String| Err(Error::new(code, "make link", &place, cause));
        let (catalogue, owner, created) = (self.state.catalogue()?, access.principal.to_string(), now());
        if seconds == 0 || seconds > MAX_LINK_SECONDS {
            return refused(
                Code::UsageInvalid,
                format!("a link is valid for at most {} days", MAX_LINK_SECONDS / 86_400),
            );
        }
        if Place::parse(place.to_string().as_bytes())?.as_ref() != Some(&place) {
            return refused(Code::BadPath, "the path of a link is UTF-8 without control characters".into());
        }
        catalogue.forget_links(created.saturating_sub(KEPT))?;
        if catalogue.links(&owner, MAX_LINKS)?.len() >= MAX_LINKS {
            return refused(Code::TooManyEntries, format!("you have {MAX_LINKS} links already"));
        }
        TokenKey::load_or_make(self.context.home())?;
        let (id, secret) = (hex(&random_bytes::<4>()?), hex(&random_bytes::<16>()?));
        let bound = access.proof.evidence.facts()?.bound.map(|bound| unix_seconds(bound).unsigned_abs());
        let until = bound.unwrap_or(u64::MAX).min(created + u64::from(seconds));
        let name = place.path.name().map_or_else(|| place.storage.clone().into_bytes(), <[u8]>::to_vec);
        let status =
            LinkStatus { id, place, created, until, limit, opens: 0, downloads: 0, bytes: 0, used: None };
        let serial = access.proof.origin().unwrap_or_default();
        tracing::info!(target: "audit", principal = owner, link = status.id, place = %status.place, until, "link made");
        let link = StoredLink { owner, serial, status };
        catalogue.add_link(&link, &digest(&secret))?;
        let path = format!("{PREFIX}{secret}/{}", percent_encode(&name, ESCAPED));
        Ok(LinkReply::Created { id: link.status.id, path })
    }

    /// The link that a secret opens, for a client at an address.
    ///
    /// # Errors
    /// `PathNotFound` for none, or one that was taken back; `TokenExpired` for one that ended or has no download left.
    pub fn open(&self, secret: &str, from: IpAddr) -> Result<UsedLink, Error> {
        let none = |cause: &str| Error::new(Code::PathNotFound, "open link", "", cause);
        let link = self.state.catalogue()?.link(&digest(secret))?;
        let link = link.ok_or_else(|| none("there is no such link, or it was taken back"))?;
        let ended = |cause: &str| Err(Error::new(Code::TokenExpired, "open link", &link.status.id, cause));
        if link.status.until <= now() {
            return ended("its time is over");
        }
        if link.status.limit.is_some_and(|limit| link.status.downloads >= limit.into()) {
            return ended("it was used as often as it may be");
        }
        let principal = Principal::parse(&link.owner)?.current().into_owned();
        let holder = Holder { principal, serial: Some(link.serial).filter(|serial| !serial.is_empty()) };
        let caveats = [format!("path:{}", link.status.place), "activity:DOWNLOAD,LIST".to_owned()];
        let key = TokenKey::load(self.context.home())?
            .ok_or_else(|| none("the PoP has no key for tokens any more"))?;
        let site = self.context.name();
        let token = key.issue(site.as_str(), &holder, &caveats, SystemTime::now() + USE_LIFE)?;
        let evidence = Evidence::Token(ShownToken::new(&token.to_text(), from));
        Ok(UsedLink { status: link.status, evidence })
    }

    /// Counts a page that is shown.
    pub fn count_open(&self, id: &str) -> Result<(), Error> {
        self.state.catalogue()?.count_link_open(id, now())
    }

    /// Counts a download that begins.
    ///
    /// # Errors
    /// `TokenExpired` if the link has none left.
    pub fn count_download(&self, id: &str) -> Result<(), Error> {
        match self.state.catalogue()?.count_link_download(id, now())? {
            true => Ok(()),
            false => {
                Err(Error::new(Code::TokenExpired, "open link", id, "it was used as often as it may be"))
            }
        }
    }

    /// Counts bytes that were sent.
    pub fn count_bytes(&self, id: &str, bytes: u64) {
        let counted = self.state.catalogue().and_then(|catalogue| catalogue.count_link_bytes(id, bytes));
        if let Err(error) = counted {
            tracing::warn!(%error, link = id, bytes, "the bytes of a link were not counted");
        }
    }
}

/// What stands for itself in an address (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
