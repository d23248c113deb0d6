//! The pseudorandom numbers of simulations. The transfers of the mover are simulated in `renkei-mover`, over the code
//! that ships.

pub mod chance;
