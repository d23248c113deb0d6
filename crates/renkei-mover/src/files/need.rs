//! The access that each operation on files needs: the one place that says it.

use renkei_core::identity::Need;
use renkei_core::wire::file::Op;

/// The access to the place that an operation needs.
pub fn need(op: &Op) -> Need {
    match op {
        Op::Look(_) | Op::LookFull(_) | Op::Space => Need::Look,
        Op::OpenDir(_) | Op::ReadDir(_) => Need::Examine,
        Op::Open(_) | Op::Read { .. } | Op::Peek { .. } | Op::Close(_) | Op::Checksum { .. } => Need::Read,
        // Readers lock what they read.
        Op::Lock { .. } | Op::FindLock { .. } => Need::Read,
        Op::Draft { .. } | Op::Write { .. } | Op::SetLen { .. } | Op::Await { .. } => Need::Write,
        Op::Publish { .. } | Op::PublishIf { .. } | Op::Resume { .. } => Need::Write,
        Op::Alter { .. } | Op::SetXattr { .. } => Need::Write,
        Op::MakeDir { .. } | Op::MakeSymlink { .. } | Op::MakeLink { .. } => Need::Write,
        Op::Remove(_) | Op::RemoveDir(_) | Op::Rename { .. } => Need::Write,
    }
}
