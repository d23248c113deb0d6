//! The requests of wire 3 that open a copy by the kind of its destination.
//!
//! Programs of wire 3 lay out a copy for each kind that its destination may have (`OpenFound`, and `ForUser` from a
//! PoP; `PushFound` leads to them). They are served for one release after wire 4, and go with this file,
//! `renkei_core::wire::wire3` and `Leave::OwnUserOfWire3`.

use super::request::{Outcome, alive};
use renkei_core::error::Error;
use renkei_core::wire::message::{Control, OpenFound, Reply};
use renkei_net::control::ControlReceiver;
use renkei_site::Site;
use renkei_site::access::Access;
use std::sync::Arc;

/// Looks at the destination, replies with its kind, and opens the transfer that was chosen for that.
pub(super) fn open_found(
    id: u64,
    open: &OpenFound,
    access: &Access,
    control: &mut ControlReceiver,
    site: &Arc<Site>,
) -> Result<Outcome, Error> {
    let link = control.sender();
    let (found, receive) = alive(&link, |_| site.file_service().find(access, open))?;
    link.send(&Control::Reply { id, reply: Ok(Reply::Found(found)) })?;
    match receive {
        Some(open) => site.transfers().receive(access, open, id, control).map(Outcome::Transferred),
        None => Ok(Outcome::Answered),
    }
}
