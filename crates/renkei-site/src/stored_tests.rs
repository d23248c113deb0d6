//! Values that a site stores, as earlier versions wrote them: they are read, and written the same.

use crate::buffer::{self, Reservation};
use crate::queue::cancel_cleanup::{self, Given};
use crate::submission::{SPEC, write_spec};
use crate::volume::home::{log_truncation, placement};
use crate::volume::replica::scrub_state;
use renkei_core::error::{Code, Error};
use renkei_core::format::{bytes_of, check};
use renkei_core::identity::Principal;
use renkei_core::mover::filter::{Filter, Rule};
use renkei_core::mover::layout::CopyForm;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::units::hex;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::{Class, Existing, OpenSend, ReceiveOptions, Source};
use renkei_core::wire::queue::{Submission, Terms};

/// A line for each kind.
const RECORDED: &str = include_str!("../tests/formats.txt");

fn site(name: &str) -> SiteName {
    SiteName::parse(name).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn place(text: &str) -> Place {
    Place::parse(text.as_bytes()).unwrap().unwrap()
}

pub(crate) fn submission() -> Submission {
    let source = Source { from: place("/data/run7"), to: path("run7"), alone: true };
    let copy = OpenCopy {
        transfer: [7; 16],
        job: 7,
        to: place("/data/in"),
        form: CopyForm { directory: true, contents: false, resumed: false },
        beside: Vec::new(),
        options: ReceiveOptions::plain(Existing::SameContent),
        class: Class::Normal,
        max_streams: 64,
        rules: vec!["kek/raw".into()],
    };
    let send = OpenSend::plain([7; 16], vec![source]);
    Submission { from: site("kek"), send, to: site("titech"), copy, terms: Terms::default() }
}

#[test]
fn submissions_of_all_versions_are_read() {
    let (plain, mut filtered) = (submission(), submission());
    let filter =
        Filter { rules: vec![Rule { includes: false, pattern: b"*.tmp".to_vec() }], ..Filter::default() };
    filtered.set_filter(&filter);
    let recorded = |version| {
        let line = RECORDED.lines().find_map(|line| line.strip_prefix(&format!("submission-{version} ")));
        line.expect("each version is recorded").to_owned()
    };
    assert_eq!(hex(&write_spec(&filtered)), recorded(3));
    assert_eq!(SPEC.decode(&write_spec(&plain)), Ok(plain.clone()));
    for (submission, version) in [(plain, 1), (filtered.clone(), 2), (filtered, 3)] {
        assert_eq!(SPEC.decode(&bytes_of(&recorded(version))), Ok(submission));
    }
    let newer = SPEC.encode_as(4, &"of a newer version");
    assert_eq!(SPEC.decode(&newer).map_err(|error| error.code), Err(Code::FormatNewer));
}

#[test]
fn files_of_the_queue_and_the_buffer_are_read_and_written_as_ever() {
    let owner = Principal::parse("alice@titech").unwrap();
    let reservation = Reservation { sealed: true, ..Reservation::new(&owner, "alice", 1 << 40, 3, 4) };
    check(RECORDED, "reservation", &buffer::FORMAT, &[reservation]);
    let (owner, storage) = ("alice@titech".to_owned(), "data".to_owned());
    let given = Given { transfer: [7; 16], owner, to: site("kek"), storage, since_ms: 5 };
    check(RECORDED, "cancelled", &cancel_cleanup::FORMAT, &[given]);
}

#[test]
fn notes_of_volumes_are_read_and_written_as_ever() {
    check(RECORDED, "log-ages", log_truncation::AGES.format(), &[vec![(1_700_000_000_000, 300)]]);
    let folders = vec![(path("2026"), vec![site("kek")])];
    let placed = placement::Stored { folders, silent: vec![(site("titech"), 300)] };
    check(RECORDED, "placement", placement::NOTE.format(), &[placed]);
    let error = Error::new(Code::PathNotFound, "open", "/data/run7", "os error 2").at("kek");
    let course = scrub_state::ScrubRun {
        after: Some(path("a/b")),
        is_under_way: true,
        began_unix: 1,
        files: 2,
        bytes: 3,
        wrong: vec![(path("a/c"), error)],
        wrong_files: 4,
        last: Some((5, 6, 7, 8)),
        rate: Some(9),
    };
    check(RECORDED, "verified", scrub_state::NOTE.format(), &[course]);
}
