//! Whole transfers on the simulator: one fault at a time, at every point where it may fall.

use super::content::{Content, SlotDigests};
use super::disk::{Crash, Meddling, ROOT};
use super::net::Path;
use super::receiving::JOB;
use super::transfer::{Fault, Outcome, Setup, World};
use super::tree::{large, mixed, path, put, put_dir, put_link, read, remove, slow};
use renkei_core::error::Code;
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::wire::message::{Existing, Summary};
use renkei_store::temp::temp_name;
use std::time::Duration;

fn done(world: &mut World, fault: Fault) -> Summary {
    match world.session(fault).unwrap() {
        Outcome::Done(summary) => summary,
        other => panic!("{other:?}"),
    }
}

fn lost(world: &mut World, fault: Fault) -> Code {
    match world.session(fault).unwrap() {
        Outcome::Lost(error) => error.code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_plain_run_copies_everything() {
    for existing in [Existing::Replace, Existing::SameStamp, Existing::SameContent] {
        let setup = Setup { existing, ..Setup::default() };
        let summary = mixed(setup, &SlotDigests::default()).settle().unwrap();
        assert_eq!((summary.files, summary.dirs, summary.links, summary.failed), (9, 7, 3, 0));
    }
}

#[test]
fn a_second_run_sends_nothing() {
    for existing in [Existing::SameStamp, Existing::SameContent] {
        let setup = Setup { existing, delete: true, ..Setup::default() };
        let mut world = mixed(setup, &SlotDigests::default());
        put(&mut world.destination, "surplus", &Content::of(b"s"));
        world.adopt_destination().unwrap();
        assert_eq!(done(&mut world, Fault::None).deleted, 1);
        let again = world.settle().unwrap();
        assert_eq!((again.bytes_moved, again.files_skipped, again.deleted), (0, 9, 0));
    }
}

/// Time of a run of `files` small files over a path of 350 ms.
fn far(files: usize, existing: Existing) -> Duration {
    let rate = 10_000_000;
    let far = Path { latency: Duration::from_millis(175), rate };
    let setup = Setup { path: far, existing, check_always: false, ..Setup::default() };
    let mut world = World::new(setup, SlotDigests::default());
    for number in 0..files {
        if number % 500 == 0 {
            put_dir(&mut world.source, &format!("{}", number / 500));
        }
        put(&mut world.source, &format!("{}/{number}", number / 500), &Content::of(b"tiny"));
    }
    assert_eq!(done(&mut world, Fault::None).files, files as u64);
    world.now()
}

#[test]
fn distance_costs_the_same_for_one_file_and_for_ten_thousand() {
    let round_trip = Duration::from_millis(350);
    // An entry of so short a name and content takes less on the wire, with its share of offers and verdicts.
    let bytes_each = 400;
    for (existing, round_trips) in [(Existing::Replace, 1), (Existing::SameStamp, 3)] {
        let (one, many) = (far(1, existing), far(10_000, existing));
        let transmission = Duration::from_secs_f64(10_000.0 * f64::from(bytes_each) / 10_000_000.0);
        assert!(many < one + round_trips * round_trip + transmission, "{existing:?}: {one:?}, {many:?}");
    }
}

/// Crashes after each change of the receiver's disks in turn, and resumes.
fn crash_everywhere(setup: &Setup, crash: Crash) {
    let memo = SlotDigests::default();
    let mut plain = mixed(setup.clone(), &memo);
    done(&mut plain, Fault::None);
    assert!(plain.changes() > 60);
    for after in 0..plain.changes() {
        let mut world = mixed(Setup { seed: after, ..setup.clone() }, &memo);
        let crashed = world.session(Fault::Crash(crash, after));
        let settled = crashed.and_then(|outcome| {
            assert!(matches!(outcome, Outcome::Crashed), "{outcome:?}");
            world.settle()
        });
        settled.unwrap_or_else(|why| panic!("{crash:?} after {after} changes: {why}"));
    }
}

#[test]
fn a_kill_after_any_change_loses_nothing() {
    crash_everywhere(&Setup::default(), Crash::Kill);
    crash_everywhere(&Setup { privileged: false, ..slow() }, Crash::Kill);
}

#[test]
fn a_power_cut_after_any_change_loses_nothing_acknowledged() {
    for crash in [Crash::Power, Crash::PowerLosesAll] {
        crash_everywhere(&Setup::default(), crash);
        crash_everywhere(&Setup { privileged: false, ..slow() }, crash);
    }
}

#[test]
fn a_journal_torn_at_any_byte_is_used_up_to_there() {
    let memo = SlotDigests::default();
    let interrupted = || {
        let mut world = mixed(slow(), &memo);
        lost(&mut world, Fault::Cut(None, Duration::from_secs(10)));
        world
    };
    let length = interrupted().journal().bytes().len() as u64;
    assert!(length > 200, "{length}");
    // The last record, and some bytes of the one before.
    for len in length - 100..length {
        let mut world = interrupted();
        world.journal().cut(len).unwrap();
        world.settle().unwrap_or_else(|why| panic!("torn at {len} of {length}: {why}"));
    }
}

#[test]
fn a_stream_cut_at_any_position_is_resumed() {
    let memo = SlotDigests::default();
    let streams = Setup::default().streams;
    for stream in 0..=streams {
        for bytes in (0..12_000).step_by(150) {
            let mut world = mixed(Setup::default(), &memo);
            let ended = world.session(Fault::CutAfter(stream, bytes));
            let settled = ended.and_then(|_| world.settle());
            settled.unwrap_or_else(|why| panic!("stream {stream} after {bytes} bytes: {why}"));
        }
    }
    for (stream, ms) in (0..24).flat_map(|ms| [(None, ms), (Some(1), ms), (Some(0), ms)]) {
        let mut world = mixed(Setup::default(), &memo);
        let ended = world.session(Fault::Cut(stream, Duration::from_millis(ms)));
        let settled = ended.and_then(|_| world.settle());
        settled.unwrap_or_else(|why| panic!("stream {stream:?} at {ms} ms: {why}"));
    }
}

#[test]
fn a_source_that_changes_while_it_is_read_fails_or_is_whole() {
    let memo = SlotDigests::default();
    let kinds = [Meddling::Grow, Meddling::Rewrite, Meddling::Replace, Meddling::Remove];
    for (name, meddle) in ["a", "d/b", "d/large", "d/e/one"].into_iter().flat_map(|n| kinds.map(|k| (n, k))) {
        for read in (1..30).step_by(2) {
            let mut world = mixed(Setup::default(), &memo);
            world.source.meddle(read, meddle(path(name)));
            let summary = done(&mut world, Fault::None);
            for failure in &summary.failures {
                let expected = [Code::SourceChanged, Code::SourceVanished, Code::HardLinkTarget];
                assert!(expected.contains(&failure.error.code), "{failure:?}");
            }
            world.settle().unwrap_or_else(|why| panic!("{name} at read {read}: {why}"));
        }
    }
}

#[test]
fn a_full_destination_ends_the_session_and_resumes_when_there_is_room() {
    let memo = SlotDigests::default();
    for bytes in (0..20_000).step_by(700) {
        let mut world = mixed(Setup::default(), &memo);
        world.destination.full_after(bytes);
        match world.session(Fault::None).unwrap() {
            Outcome::Lost(error) => assert_eq!(error.code, Code::NoSpace),
            Outcome::Done(_) => assert!(bytes > 15_000),
            Outcome::Crashed => panic!("nothing crashed"),
        }
        world.destination.full_after(u64::MAX);
        world.settle().unwrap_or_else(|why| panic!("full after {bytes}: {why}"));
    }
}

#[test]
fn a_name_that_comes_twice_arrives_whole_or_not_at_all() {
    let memo = SlotDigests::default();
    let mut refused = 0;
    for (times, rate) in [2, 5].into_iter().flat_map(|times| [2_000, 50_000, 1_000_000].map(|r| (times, r))) {
        for existing in [Existing::Replace, Existing::SameStamp] {
            let path = Path { latency: Duration::from_millis(20), rate };
            let setup = Setup { path, existing, ..Setup::default() };
            let mut world = mixed(setup.clone(), &memo);
            world.source.list_times(times);
            let summary = done(&mut world, Fault::None);
            assert!(summary.failures.iter().all(|failure| failure.error.code == Code::NameTaken));
            refused += summary.failed;
            world.source.list_times(1);
            world.settle().unwrap_or_else(|why| panic!("{times} times at {rate}: {why}"));
            // Interrupted, and again.
            let mut world = mixed(setup, &memo);
            world.source.list_times(times);
            world.session(Fault::CutAfter(1, 5_000)).unwrap();
            world.session(Fault::None).unwrap();
            world.source.list_times(1);
            world.settle().unwrap_or_else(|why| panic!("cut, {times} times at {rate}: {why}"));
        }
    }
    assert!(refused > 20, "{refused}");
}

// ---- what the simulator found ------------------------------------------------------------------------------------

#[test]
fn a_file_skipped_because_it_is_there_is_durable_at_the_end() {
    let setup = Setup { existing: Existing::SameStamp, ..Setup::default() };
    let memo = SlotDigests::default();
    let mut plain = mixed(setup.clone(), &memo);
    done(&mut plain, Fault::None);
    for after in plain.changes() / 2..plain.changes() {
        let mut world = mixed(setup.clone(), &memo);
        world.session(Fault::Crash(Crash::Kill, after)).unwrap();
        world.settle().unwrap_or_else(|why| panic!("killed after {after} changes: {why}"));
    }
}

#[test]
fn a_link_is_not_made_to_an_old_file_when_its_first_name_fails() {
    for (name, content) in [("f", Content::of(b"new and longer")), ("f", large(SLOT_BYTES + 2_000_000, 3))] {
        let mut world = World::new(Setup::default(), SlotDigests::default());
        put(&mut world.destination, name, &Content::of(b"old"));
        world.adopt_destination().unwrap();
        put(&mut world.source, name, &content);
        put_link(&mut world.source, name, "g");
        world.source.meddle(1, Meddling::Grow(path(name)));
        let summary = done(&mut world, Fault::None);
        let codes: Vec<_> = summary.failures.iter().map(|failure| failure.error.code).collect();
        assert_eq!(codes, [Code::SourceChanged, Code::HardLinkTarget]);
        assert_eq!(read(&world.destination, name), b"old");
        world.settle().unwrap();
    }
}

#[test]
fn temporary_files_of_sources_that_are_gone_are_removed() {
    let mut world = mixed(slow(), &SlotDigests::default());
    lost(&mut world, Fault::Cut(None, Duration::from_secs(8)));
    let temps = |world: &World| {
        let names = world.destination.walk();
        names.iter().filter(|(path, _)| path.name().unwrap().starts_with(b".rk~")).count()
    };
    assert!(temps(&world) > 0);
    for name in ["d/large", "large2", "d/e/one", "a", "d/b", "d/e/b2"] {
        remove(&mut world.source, name);
    }
    world.settle().unwrap();
    assert_eq!(temps(&world), 0);
}

#[test]
fn extents_of_a_removed_temporary_file_are_not_trusted_again() {
    let memo = SlotDigests::default();
    let tidied_up = || {
        let mut world = World::new(slow(), memo.clone());
        put(&mut world.source, "f", &large(6 * SLOT_BYTES, 1));
        lost(&mut world, Fault::Cut(None, Duration::from_secs(7)));
        // Somebody tidies up; the next temporary file gets the same inode.
        world.adopt_destination().unwrap();
        world.destination.remove_file(ROOT, &temp_name(JOB, &path("f"))).unwrap();
        world.adopt_destination().unwrap();
        world.destination.recycle();
        world
    };
    let mut world = tidied_up();
    lost(&mut world, Fault::Cut(None, Duration::from_secs(4)));
    world.settle().unwrap();
    for after in 0..12 {
        let mut world = tidied_up();
        world.session(Fault::Crash(Crash::Kill, after)).unwrap();
        world.settle().unwrap_or_else(|why| panic!("killed after {after} changes: {why}"));
    }
}

#[test]
fn extents_of_a_file_that_was_finished_in_an_older_state_are_kept() {
    let mut world = World::new(slow(), SlotDigests::default());
    put(&mut world.source, "f", &large(2_000_000, 1));
    put(&mut world.source, "g", &large(4 * SLOT_BYTES, 1));
    // Long enough for one file to be acknowledged.
    lost(&mut world, Fault::Cut(None, Duration::from_secs(9)));
    put(&mut world.source, "f", &large(4 * SLOT_BYTES, 2));
    lost(&mut world, Fault::Cut(None, Duration::from_secs(7)));
    world.settle().unwrap();
}

#[test]
fn more_files_than_may_be_open_can_be_resumed() {
    let path = Path { latency: Duration::from_millis(5), rate: 1_500_000 };
    let setup = Setup { path, sync_time: Duration::from_secs(9), check_always: false, ..Setup::default() };
    let mut world = World::new(setup, SlotDigests::default());
    let mut content = Content::hole(1_200_000);
    content.write(0, &[1; 600]);
    for number in 0..1_600 {
        put(&mut world.source, &format!("{number}"), &content);
    }
    // Before the first sync, so that many files lack their content after the power cut.
    lost(&mut world, Fault::Cut(None, Duration::from_millis(1_080)));
    world.destination.sync(ROOT).unwrap();
    world.lose_power_but_journal().unwrap();
    world.settle().unwrap();
}

#[test]
fn a_mode_that_was_refreshed_is_durable() {
    let setup = Setup { existing: Existing::SameStamp, ..Setup::default() };
    let mut world = World::new(setup, SlotDigests::default());
    put(&mut world.source, "f", &Content::of(b"f"));
    done(&mut world, Fault::None);
    let ino = world.source.entry(ROOT, b"f").unwrap().ino;
    let mut meta = world.source.live(ino).unwrap().meta.clone();
    meta.mode = 0o600;
    world.source.set_meta(ino, &meta).unwrap();
    world.settle().unwrap();
}
