//! The state of the queue: the catalogue, once it is open, the load of links, and the attempts that run.

use crate::buffer::api::QueuedTransfers;
use crate::submission::{now_ms, short, unknown};
use renkei_catalogue::{Catalogue, Row, Update, hex_id};
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, SiteName};
use renkei_core::queue::{Event, Load};
use renkei_core::wire::message::{DestinationKind, TransferId};
use renkei_core::wire::queue::Submission;
use renkei_mover::Stop;
use renkei_mover::connect::slow_connect::CurrentAttempt;
use renkei_mover::progress::Watch;
use rustls::pki_types::CertificateDer;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

/// A running attempt of this PoP.
#[derive(Clone)]
pub(crate) struct Active {
    pub(crate) watch: Watch,
    pub(crate) stop: Stop,
    /// The places it may write.
    pub(crate) writes: Arc<Vec<(SiteName, Place)>>,
    /// The source and the destination site.
    pub(crate) sites: [SiteName; 2],
    /// The credential it works with, and since when.
    pub(crate) shown: Arc<OnceLock<Shown>>,
    /// The site that does not answer it at the moment.
    pub(crate) trying: CurrentAttempt,
}

/// The certificate chain of an attempt, leaf first, and the time it was verified.
pub(crate) type Shown = (Vec<CertificateDer<'static>>, SystemTime);

/// The queue of a PoP as far as its threads share it: the catalogue, the load of links, and running attempts.
#[derive(Default)]
pub(crate) struct QueueState {
    pub(crate) catalogue: OnceLock<Catalogue>,
    /// The error with which the catalogue could not be opened, or with which the last turn failed.
    pub(crate) trouble: Mutex<Option<Error>>,
    /// The name of this PoP among those that share the catalogue.
    pub(crate) runner: OnceLock<String>,
    pub(crate) load: Mutex<Load>,
    pub(crate) active: Mutex<HashMap<TransferId, Active>>,
    bell: Mutex<bool>,
    rung: Condvar,
    stopping: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}

impl QueueState {
    /// The catalogue, once it is open.
    pub(crate) fn catalogue(&self) -> Result<&Catalogue, Error> {
        self.catalogue.get().ok_or_else(|| {
            let starting = || Error::new(Code::CatalogueFailed, "open", "catalogue", "the PoP is starting");
            lock(&self.trouble).clone().unwrap_or_else(starting)
        })
    }

    /// The error that blocks the queue, if any.
    pub(crate) fn trouble(&self) -> Option<Error> {
        lock(&self.trouble).clone()
    }

    pub(crate) fn note_trouble(&self, trouble: Option<Error>) {
        *lock(&self.trouble) = trouble;
    }

    pub(crate) fn load(&self) -> MutexGuard<'_, Load> {
        lock(&self.load)
    }

    pub(crate) fn active(&self) -> MutexGuard<'_, HashMap<TransferId, Active>> {
        lock(&self.active)
    }

    /// A running transfer with a write target that equals, contains or lies inside one of these.
    pub(crate) fn in_the_way(&self, writes: &[(SiteName, Place)]) -> Option<TransferId> {
        let overlap = |(site, place): &(SiteName, Place), (other_site, other): &(SiteName, Place)| {
            let within = place.path.starts_with(&other.path) || other.path.starts_with(&place.path);
            site == other_site && place.storage == other.storage && within
        };
        let meets =
            |active: &Active| active.writes.iter().any(|one| writes.iter().any(|two| overlap(one, two)));
        self.active().iter().find(|(_, active)| meets(active)).map(|(id, _)| *id)
    }

    /// Wakes the scheduler.
    pub(crate) fn ring(&self) {
        *lock(&self.bell) = true;
        self.rung.notify_all();
    }

    /// Waits for [`QueueState::ring`], at most for `most`.
    pub(crate) fn wait(&self, most: Duration) {
        let bell = lock(&self.bell);
        let waited = self.rung.wait_timeout_while(bell, most, |rung| !*rung);
        *waited.expect("no thread panics while it holds a lock: a panic aborts").0 = false;
    }

    /// Prevents further attempts from starting.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the PoP is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until no attempt runs, at most for `most`.
    pub(crate) fn settle(&self, most: Duration) {
        let deadline = std::time::Instant::now() + most;
        while !self.active().is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Applies an event to a transfer, unless `more` refuses, and returns the updated row. The update is
    /// optimistic: on a concurrent change it is retried with the new row.
    ///
    /// # Errors
    /// `TransferUnknown`, and those of `Course::handle`.
    pub(crate) fn happen(
        &self,
        id: &TransferId,
        event: &Event,
        more: &dyn Fn(&mut Row) -> Result<(), Error>,
        with: &With<'_>,
    ) -> Result<Row, Error> {
        let catalogue = self.catalogue()?;
        loop {
            let mut row = catalogue.load(id)?.ok_or_else(|| unknown(&hex_id(id)))?;
            more(&mut row)?;
            row.job.handle(event.clone(), now_ms()).map_err(|error| about(error, &row.id))?;
            let With { attempt, met, credential } = *with;
            if catalogue.update(&Update { attempt, met, credential, ..Update::of(&row) })? {
                return Ok(row);
            }
        }
    }
}

impl QueuedTransfers for QueueState {
    fn is_open(&self) -> bool {
        self.catalogue().is_ok()
    }

    fn row(&self, id: &TransferId) -> Result<Option<Row>, Error> {
        self.catalogue()?.load(id)
    }

    fn runs(&self, id: &TransferId) -> bool {
        self.active().contains_key(id)
    }

    fn lose(&self, id: &TransferId, error: Error) -> Result<(), Error> {
        match self.happen(id, &Event::Lost(error), &|_| Ok(()), &With::default()) {
            Err(error) if error.code != Code::ChangeRefused => Err(error),
            _ => Ok(()),
        }
    }
}

/// Columns written together with a job change.
#[derive(Clone, Copy, Default)]
pub(crate) struct With<'a> {
    pub(crate) attempt: Option<&'a renkei_core::wire::queue::Attempt>,
    pub(crate) met: Option<TransferId>,
    pub(crate) credential: Option<&'a [u8]>,
}

/// Sets the transfer as the subject of an error of its job.
fn about(error: Error, id: &TransferId) -> Error {
    Error { subject: short(id), ..error }
}

/// The write targets of a transfer, for the kind of its destination. Those of many files into one directory that was not
/// examined yet do not conflict with each other.
pub(super) fn writes(spec: &Submission, found: Option<DestinationKind>) -> Vec<(SiteName, Place)> {
    let resolved = spec.copy.resolve(found.unwrap_or(DestinationKind::Dir));
    let places = resolved.and_then(|resolved| spec.copy.places(resolved.layout, &spec.send.targets()));
    places.unwrap_or_default().into_iter().map(|place| (spec.to.clone(), place)).collect()
}
