//! An emulated federation on one machine: sites are network namespaces, links are rules.
//!
//! [`topology`] reads what is wanted and [`shape`] the units it is written in. [`emulation`] is the lab's process: it
//! makes the namespaces ([`namespace`]) with their addresses ([`network`]), starts the [`engine`] and the PoPs
//! ([`pops`]), and answers its socket ([`control`]). [`folder`] finds a lab and removes all of one. There are two
//! engines. With the one, [`tap`] makes a site's network interface, [`wire`] moves frames between all of them in one
//! thread, as the rules of `renkei_core::lab` say, and [`buffers`] bounds the memory of what is under way. The other,
//! [`kernel`], has the kernel do the same as far as it can, in the words of [`discipline`].
//!
//! Guarantee: nothing is left behind, also after a crash of the lab's process. Non-goals: routing through sites, and
//! anything but IPv4 between them.

pub mod buffers;
pub mod control;
pub mod discipline;
pub mod emulation;
pub mod engine;
pub mod folder;
pub mod kernel;
pub mod namespace;
pub mod network;
pub mod pops;
pub mod shape;
pub mod tap;
pub mod topology;
pub mod wire;
