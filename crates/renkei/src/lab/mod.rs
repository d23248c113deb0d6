//! An emulated federation on one machine: sites are network namespaces, links are rules.
//!
//! [`tap`] makes a site's network interface, [`wire`] moves frames between all of them in one thread, as the rules
//! of `renkei_core::lab` say, and [`buffers`] bounds the memory of what is under way.

pub mod buffers;
pub mod tap;
pub mod wire;
