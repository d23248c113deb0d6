//! The S3 door: storages, volumes and named folders of a PoP as buckets, for programs that speak S3.
//!
//! Requests are known by their signature ([`is_s3`]) and come by the PoP's one port. s3s has the protocol: signatures, signed
//! chunks, XML. The door translates its operations into calls of the file service, which authorises and audits them and executes
//! them as the account of the key's owner; content is read and written by threads that may block. Objects are plain files,
//! and what S3 has beside their content is in extended attributes (`metadata`). Errors are those of the table in `error`.
//! Uses: `renkei-core`, `renkei-config`, `renkei-mover`, `renkei-site`. Non-goals: versions, access lists, encryption,
//! policies and life cycles of buckets.

mod auth;
mod body;
mod bucket;
mod checksum;
mod copy;
mod delete;
mod door;
mod error;
mod implied;
mod key;
mod list;
mod metadata;
mod multipart;
mod read;
mod session;
mod tagging;
mod upload_state;
mod walk;
mod write;

pub use auth::is_s3;
pub use door::Door;
