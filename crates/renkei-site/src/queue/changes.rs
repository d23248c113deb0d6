//! Changes of queued transfers: pause, cancellation, retry, a new credential.

use super::Queue;
use super::state::With;
use crate::access::{Access, Caller};
use crate::submission::{now_ms, read_lane, short, unknown};
use renkei_catalogue::{Row, hex_id};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::queue::{Change, Event, Requested};
use renkei_core::wire::message::TransferId;

const DAY_MS: u64 = 24 * 3600 * 1000;

impl Queue {
    /// Changes a transfer.
    ///
    /// # Errors
    /// `TransferUnknown`; `ChangeRefused` if the change does not fit the transfer's state.
    pub fn change_transfer(&self, caller: Caller<'_>, id: &TransferId, change: Change) -> Result<(), Error> {
        let (access, who) = (caller.user(), caller.principal());
        let deadline_ms = now_ms() + self.context.snapshot().config.queue.deadline_days * DAY_MS;
        let may = |row: &mut Row| match who {
            Some(who) if row.owner != who.to_string() => Err(unknown(&short(id))),
            _ => Ok(()),
        };
        let event = Event::Asked { change, deadline_ms };
        if change == Change::Cancel
            && self.state.catalogue()?.load(id)?.is_none()
            && (self.cancel_copy(caller, id) || self.abandon_upload(who, id)?)
        {
            return Ok(());
        }
        // A user who retries is present and may delegate anew.
        let fresh = match access.filter(|_| change == Change::Retry) {
            Some(access) => Some(self.delegate_again(access, id)?),
            None => None,
        };
        // The row loses its credential when it ends; the clean-up needs it.
        let credential = match change {
            Change::Cancel => self.state.catalogue()?.credential(id)?,
            _ => None,
        };
        let with = With { credential: fresh.as_deref(), ..With::default() };
        let row = self.state.happen(id, &event, &may, &with)?;
        tracing::info!(target: "audit", transfer = hex_id(id), owner = row.owner, by = who.map(|who| who.to_string()), ?change, "changed");
        if let Some((_, link)) = read_lane(&row.lane).filter(|_| change == Change::Retry) {
            self.state.load().wake(&link);
        }
        self.stop_as_wished(&row);
        self.buffer.leave_buffer(&row);
        self.cleanup.give_up(&row, credential);
        self.state.ring();
        Ok(())
    }

    /// Cancels an upload that was not submitted; whether there was one.
    fn abandon_upload(&self, who: Option<&Principal>, id: &TransferId) -> Result<bool, Error> {
        if !self.buffer.has_upload(who, id) {
            return Ok(false);
        }
        let cause = "it was cancelled before it was submitted";
        let error = Error::new(Code::Cancelled, "upload", hex_id(id), cause);
        self.transfers.active.stop_of(&hex_id(id), None, &error);
        self.buffer.abandon_upload(id).map(|()| true)
    }

    /// Renews the credential of a transfer; a transfer that waited for it continues.
    ///
    /// # Errors
    /// `TransferUnknown`; `ChangeRefused` if the transfer has ended.
    pub fn renew_transfer(&self, access: &Access, id: &TransferId) -> Result<(), Error> {
        let fresh = self.delegate_again(access, id)?;
        let with = With { credential: Some(&fresh), ..With::default() };
        self.state.happen(id, &Event::Renewed, &|_| Ok(()), &with)?;
        self.state.ring();
        Ok(())
    }

    /// Stops the attempt of a transfer for which a pause, cancellation or give-up was requested.
    pub(crate) fn stop_as_wished(&self, row: &Row) {
        let cause = match row.job.wish {
            Some(Requested::Pause) => "paused",
            Some(Requested::Cancel) => "cancelled",
            Some(Requested::GiveUp) => "its deadline passed",
            None => return,
        };
        let active = self.state.active().get(&row.id).cloned();
        if let Some(active) = active {
            active.stop.stop(Error::new(Code::Cancelled, "stop", short(&row.id), cause));
        }
    }
}
