//! The rules of an emulated link: what happens to a frame between two sites, on a virtual clock.
//!
//! A frame meets, in this order: random or bursty [`loss`], the drop-tail queue, serialisation at the link's rate,
//! delay with jitter, and now and then a hold that lets later ones overtake it ([`link`]). Senders hand over up to
//! 64 KB at once, to be cut into packets later ([`segment`]); a frame is cut here only where a loss, an overflow or
//! a low rate makes it necessary, so that its packets fare as they would one by one.
//!
//! Nothing here reads a clock or draws from anything but a seed: times are nanoseconds since the wire began.

pub mod link;
pub mod loss;
pub mod params;
pub mod segment;
