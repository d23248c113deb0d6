//! Sites that cannot be dialled, agents, and circuits through a third PoP.

pub(crate) mod agent;
pub(crate) mod private;
pub(crate) mod proxy;
pub(crate) mod target;
