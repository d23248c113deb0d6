//! renkei, a point of presence for research data: everything but the pure rules, which are in `renkei-core`.
//!
//! A tour: [`cli`] has one file per verb, [`daemon`] wires a PoP together, [`doors`] are its protocols, [`site`]
//! is the facade every door asks, [`mover`] moves files between sites, [`net`] has the connections, [`store`] holds them, [`catalogue`] is the database, [`volume`] follows plain files with it, [`identity`] has
//! certificates, trust, accounts and login, [`lab`] emulates a federation, [`mount`] shows files of sites as a file system, [`home`] says where things are kept and [`config`] what an
//! administrator sets.

pub mod cli;
pub mod daemon;
