//! What a PoP shows to other sites when it works for one of its users who is not there.

use super::authority::Authority;
use super::credential::{Credential, KeyRequest};
use super::issued;
use crate::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use std::time::SystemTime;

/// Life of the certificate of one attempt, in hours.
const HOURS: u32 = 24;

/// A credential of a user of this site, made for one attempt of a queued transfer; the key stays in memory.
pub fn credential(home: &Home, user: &Principal, now: SystemTime) -> Result<Credential, Error> {
    let none = || Error::new(Code::NotAllowed, "work for", user, "a PoP has no transfers of its own");
    let name = user.user_name().ok_or_else(none)?;
    let key = KeyRequest::generate()?;
    let issued = Authority::load(home)?.issue_user(name, &key.request, HOURS, now)?;
    issued::note(home, &issued)?;
    Credential::parse(&issued.pem, &key.key, &home.ca_cert())
}
