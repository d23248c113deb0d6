//! An emulated federation on one machine: sites are network namespaces, links are rules.
//!
//! [`topology`] parses the file and [`shape`] its units. [`emulation`] is the lab's process: it makes the namespaces
//! ([`namespace`]) with their addresses ([`network`]), starts the [`engine`] and the PoPs ([`pops`]), and serves its
//! socket ([`control`]). [`folder`] finds and removes labs. There are two engines. With one, [`tap`] makes a site's
//! network interface, [`wire`] moves frames between all of them in one thread, by the rules of `renkei_core::lab`, and
//! [`buffers`] bounds the memory of frames in flight. The other, [`kernel`], has the kernel do the same as far as it
//! can, by the commands of [`discipline`].
//!
//! Guarantee: nothing is left behind, even after a crash of the lab's process. Non-goals: routing through sites, and
//! anything but IPv4 between them.
//!
//! Uses: `renkei-core`, `renkei-config`, `renkei-net`. The PoPs of a lab are processes of the program, not this crate's
//! code.

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
