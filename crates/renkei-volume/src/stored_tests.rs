//! Notes and records of volumes as earlier versions wrote them: they are read, and written the same.

use crate::diff::replacing::REPLACING;
use crate::follower::outbox::{ENLISTED, Enlisted, REFUSALS, Refusal};
use crate::follower::peer_followers::FELLOWS;
use crate::follower::plain_file::Parted;
use crate::follower::quota_share::ALLOWANCE;
use crate::follower::restored_home::{Names, REPORT, RestoreReport};
use crate::follower::wal::{self, Sign, WalRecord};
use crate::home::apply_remote::{BEGUN, PLACING};
use crate::home::follower_registry::FOLLOWERS;
use crate::home::quota::HANDED;
use crate::home::site_leases::{NOTE, Note};
use crate::lineage::{FOLLOWED, FORMER, LINEAGE, Lineage};
use renkei_catalogue::{HeldReplica, TreeNote};
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::format::check;
use renkei_core::namespace::quota::{Limit, Quota, Use};
use renkei_core::namespace::quota_share::{GrantedShares, QuotaShare, Room, ShareRequest};
use renkei_core::namespace::source::Fellow;
use renkei_core::namespace::{Change, Dentry, NodeId, Origin, SequencedChange};
use renkei_core::path::{RelPath, SiteName};
use serde::Serialize;
use std::fmt::Debug;

/// A note for each key, and records of the write-ahead log, one a line.
const RECORDED: &str = include_str!("../tests/formats.txt");

fn note<T: Serialize + PartialEq + Debug>(note: &TreeNote<T>, value: T) {
    check(RECORDED, &note.key().replace(' ', "-"), note.format(), &[value]);
}

fn site(name: &str) -> SiteName {
    SiteName::parse(name).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn time() -> FileTime {
    FileTime { secs: 1_700_000_000, nanos: 999_999_999 }
}

#[test]
fn notes_of_a_home_are_read_and_written_as_ever() {
    note(&LINEAGE, Lineage::of([3; 16], vec![([1; 16], 100), ([2; 16], 80)]));
    note(&FOLLOWERS, [(site("kek"), Origin(1)), (site("titech"), Origin(300))].into());
    note(&NOTE, Note { is_used: true, writers: vec![Origin(1), Origin(300)] });
    note(&BEGUN, 300);
    note(&PLACING, vec![(NodeId(u64::MAX), 300, 77)]);
    note(&REPLACING, vec![(NodeId(5), 300, 77)]);
    let mut shares = GrantedShares::default();
    let quota = Quota { owner: None, limit: Limit { files: Some(100), bytes: None } };
    shares.hand((Origin(1), 3, 1), &ShareRequest::default(), &[(quota, Use::default())]);
    note(&HANDED, shares);
}

#[test]
fn notes_of_a_follower_are_read_and_written_as_ever() {
    note(&FOLLOWED, [9; 16]);
    note(&FORMER, vec![([1; 16], 300)]);
    note(&ENLISTED, Enlisted { origin: Origin(300), writes: true, is_ready: true });
    let error = Error::new(Code::PathNotFound, "open", "/data/run7", "os error 2").at("kek");
    note(&REFUSALS, vec![Refusal { number: 1, at_unix: 2, change: "remove d/f".into(), error }]);
    note(&FELLOWS, vec![Fellow { site: site("kek"), whole: vec![path("2026/run7")] }]);
    let rooms = vec![Room { owner: Some("alice".into()), most: Limit { files: None, bytes: Some(1 << 40) } }];
    note(&ALLOWANCE, QuotaShare { raised: 1, after: 2, rooms });
    let kept = Names { count: 2, paths: vec!["a".into()] };
    note(
        &REPORT,
        RestoreReport { at_unix: 1, records_before: 2, records_now: 3, kept, ..RestoreReport::default() },
    );
}

#[test]
fn the_write_ahead_log_is_read_and_written_as_ever() {
    let at = Dentry { dir: NodeId(5), name: "f".into() };
    let change =
        SequencedChange { origin: Origin(1), number: 7, change: Change::RemoveDir { at, time: time() } };
    let stamp = Stamp { size: 3, mtime: time(), ctime: time(), ino: 77 };
    let held = vec![(NodeId(5), Some(HeldReplica { version: 3, stamp, digest: None })), (NodeId(6), None)];
    let parted = Parted::parse(b"0000000000000001-0000000000000002-0000000000000003").unwrap();
    let made = |sign| WalRecord::Made(vec![change.clone()], held.clone(), Some(sign));
    let records = [
        ("wal-wrote", made(Sign::Wrote(path("d/f"), 77))),
        ("wal-gone", made(Sign::Gone(path("d/f")))),
        ("wal-dated", made(Sign::Dated(path("d/f"), time()))),
        ("wal-undone", WalRecord::Undone(300)),
        ("wal-follows", WalRecord::Follows(Vec::new())),
        ("wal-followed", WalRecord::Followed),
        ("wal-back", WalRecord::Back(path("d/f"), parted)),
    ];
    for (name, record) in records {
        assert_eq!(record.version(), 0, "{name}");
        check(RECORDED, name, &wal::FORMAT, &[record.clone(), record]);
    }
    let change = Change::SetXattr { id: NodeId(5), name: b"user.a".to_vec(), value: Some(vec![0, 255]) };
    let made = WalRecord::Made(vec![SequencedChange { origin: Origin(1), number: 7, change }], vec![], None);
    assert_eq!(made.version(), 1);
    check(RECORDED, "wal-xattr", &wal::FORMAT, &[made.clone(), made]);
}
