//! Webhooks: web servers are notified of the end of queued transfers (`--notify`).
//!
//! A notification is in the catalogue from the moment the transfer ends, and is removed when a server has accepted it;
//! so each is delivered at least once, also after a restart, or given up after a day. Naming an address makes the PoP
//! connect to it: only addresses that the administrator allows are accepted, at submission and again at delivery.

use super::Queue;
use crate::access::Caller;
use crate::submission::now_ms;
use renkei_catalogue::{Webhook, hex_id};
use renkei_core::error::{Code, Error};
use renkei_core::queue::webhook::{Address, next_try_ms};
use renkei_core::wire::queue::Story;
use renkei_net::http_client::post;
use renkei_net::identity::tls::web_config;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Poll interval for notifications to deliver.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Notifications delivered in one turn.
const BATCH: usize = 32;

/// Starts the delivery thread, which runs as long as the PoP lives.
pub fn spawn_notices(room: &Arc<Queue>) -> Result<(), Error> {
    room.context.spawn_every(room, "notices", LOOK_EVERY, |room| {
        let told = room.tell_ends();
        room.context.workers.note("notices", told.as_ref().err().cloned());
        if let Err(error) = told {
            tracing::debug!(%error, "notifications of ended transfers are delayed");
        }
    })
}

impl Queue {
    /// Whether a notification may be sent to this address; an empty address is allowed.
    ///
    /// # Errors
    /// `NotifyRefused`.
    pub(crate) fn check_notify(&self, address: &str) -> Result<(), Error> {
        if address.is_empty() {
            return Ok(());
        }
        let refused = |cause: String| Error::new(Code::NotifyRefused, "notify", address, cause);
        match self.context.last_snapshot().config.may_notify(&Address::parse(address).map_err(refused)?) {
            true => Ok(()),
            false => Err(refused("it is not below an address of `notify` in config.toml".into())),
        }
    }

    fn tell_ends(&self) -> Result<(), Error> {
        let catalogue = self.state.catalogue()?;
        let due = catalogue.notices(now_ms(), BATCH)?;
        self.context.workers.note_backlog("notices", due.len());
        for notice in due {
            if self.state.is_stopping() {
                return Ok(());
            }
            let transfer = hex_id(&notice.id);
            let next_ms = match self.tell_end(&notice) {
                Ok(()) => {
                    tracing::info!(transfer, address = notice.address, "the notification was sent");
                    None
                }
                Err(cause) => {
                    let next_ms = next_try_ms(notice.since_ms, now_ms(), notice.failures + 1);
                    let given_up = next_ms.is_none();
                    tracing::warn!(
                        transfer,
                        address = notice.address,
                        cause,
                        given_up,
                        "the notification was not sent"
                    );
                    next_ms
                }
            };
            catalogue.put_off(&notice, next_ms)?;
        }
        Ok(())
    }

    fn tell_end(&self, notice: &Webhook) -> Result<(), String> {
        let told = |error: Error| error.to_string();
        self.check_notify(&notice.address).map_err(told)?;
        let story = self.transfer(Caller::Administrator, &hex_id(&notice.id)).map_err(told)?;
        post(&Address::parse(&notice.address)?, &body(&story), &web_config().map_err(told)?)
    }
}

/// The body of a notification.
fn body(story: &Story) -> String {
    let transfer = &story.transfer;
    let summary = transfer.summary.clone().unwrap_or_default();
    json!({
        "id": hex_id(&transfer.id),
        "state": transfer.state,
        "label": transfer.label,
        "files": summary.files,
        "bytes": summary.bytes,
        "failures": summary.failed,
        "code": transfer.reason.as_ref().map(|error| error.code),
        "ended_unix_ms": transfer.ended_ms,
    })
    .to_string()
}
