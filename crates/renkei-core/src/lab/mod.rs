//! The emulation of a link: the fate of a frame between two sites, on a virtual clock.
//!
//! A frame passes, in this order: random or bursty [`loss`], a [`policer`], the drop-tail queue, serialisation at the link's rate,
//! delay with jitter, and occasional reordering ([`link`]). Senders hand over up to 64 KB at once, to be segmented
//! later ([`segment`]); a frame is split here only where a loss, an overflow or a low rate makes it necessary, so
//! that its packets fare as they would one by one.
//!
//! Nothing here reads a clock, and all randomness comes from a seed: times are nanoseconds since the wire started.

pub mod link;
pub mod loss;
pub mod params;
pub mod policer;
pub mod segment;
