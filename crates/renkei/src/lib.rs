//! renkei, a point of presence for research data: everything but the pure rules, which are in `renkei-core`.
//!
//! A tour: [`cli`] has one file per verb, [`home`] where things are kept, [`config`] what an administrator
//! sets, [`identity`] certificates, trust, accounts and login.

pub mod cli;
pub mod config;
pub mod home;
pub mod identity;
