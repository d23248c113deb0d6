//! Locality and staging in followed volumes: content that is here is a replica of this site.
//!
//! To stage a file is to pull its replica, to release it is to evict that; both ask for what `renkei volume replicate` and
//! `evict` ask for. Elsewhere all content is online, and neither has anything to do: at the home of a volume, where content
//! that was written at another site is collected without being asked for, and in storages.

use crate::Context;
use crate::access::Access;
use renkei_core::error::Error;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::file::Locality;
use renkei_core::wire::volume::Tally;
use renkei_mover::files::local_files::Staging;
use std::sync::Arc;

/// Tells which content of followed volumes is here, and changes that.
pub(crate) trait Replicas: Send + Sync {
    /// Whether this site has the content of a file of a followed volume. A directory is online.
    fn locality(&self, place: &Place) -> Result<Locality, Error>;

    /// Pulls the replicas at a place and below it.
    fn replicate(&self, access: &Access, place: &Place) -> Result<Tally, Error>;

    /// Evicts the replicas at a place and below it.
    fn evict(&self, access: &Access, place: &Place) -> Result<Tally, Error>;
}

/// The content of a followed volume below a place.
struct ReplicasBelow {
    context: Arc<Context>,
    volumes: Arc<dyn Replicas>,
    access: Access,
    place: Place,
}

/// The staging of a place; none where all content is online.
pub(super) fn staging_of(
    context: &Arc<Context>,
    volumes: &Arc<dyn Replicas>,
    access: &Access,
    place: &Place,
) -> Option<Arc<dyn Staging>> {
    let snapshot = &access.snapshot;
    snapshot.volumes.get(&place.storage).filter(|facts| snapshot.follows(facts))?;
    // The table of open files checks the right to stage.
    let mut access = access.clone();
    access.proof.scope = None;
    let (context, volumes, place) = (context.clone(), volumes.clone(), place.clone());
    Some(Arc::new(ReplicasBelow { context, volumes, access, place }))
}

impl ReplicasBelow {
    fn at(&self, path: &RelPath) -> Result<Place, Error> {
        Ok(Place { path: self.place.path.join(path)?, ..self.place.clone() })
    }

    /// Does some work on a place; its first failure is the error.
    fn run(
        &self,
        path: &RelPath,
        work: impl FnOnce(&dyn Replicas, &Access, &Place) -> Result<Tally, Error> + Send + 'static,
    ) -> Result<(), Error> {
        let (volumes, access, place) = (self.volumes.clone(), self.access.clone(), self.at(path)?);
        let tally = self.context.own_threads.run(move || work(&*volumes, &access, &place))?;
        tally.failures.into_iter().next().map_or(Ok(()), |failure| Err(failure.error))
    }
}

impl Staging for ReplicasBelow {
    fn locality(&self, path: &RelPath) -> Result<Locality, Error> {
        self.volumes.locality(&self.at(path)?)
    }

    fn stage(&self, path: &RelPath) -> Result<(), Error> {
        self.run(path, |volumes, access, place| volumes.replicate(access, place))
    }

    fn release(&self, path: &RelPath) -> Result<(), Error> {
        self.run(path, |volumes, access, place| volumes.evict(access, place))
    }
}
