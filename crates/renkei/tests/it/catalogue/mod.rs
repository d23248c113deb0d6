//! The catalogue on both of its databases: the same tests, the same answers.

pub(crate) mod postgres;
pub(crate) mod trees;

use crate::catalogue::postgres::Postgres;
use crate::cli::errors::Mounted;
use renkei_catalogue::{Catalogue, Listing, New, Put, Update};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::queue::{Change, Event, State};
use renkei_core::wire::message::{EntryFailure, Summary, TransferId};
use renkei_core::wire::queue::{Attempt, Listed};
use std::time::Instant;

/// Runs a test on SQLite, then on PostgreSQL where it is installed.
fn on_both(test: impl Fn(&dyn Fn() -> Catalogue)) {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::at(folder.path());
    test(&|| Catalogue::open("", &home).unwrap());
    if let Some(server) = Postgres::start() {
        test(&|| Catalogue::open(&server.url(), &home).unwrap());
    }
}

fn id(n: u32) -> TransferId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&n.to_be_bytes());
    id
}

fn new(n: u32, lane: &str) -> New {
    New {
        id: id(n),
        owner: "alice@kek".into(),
        lane: lane.into(),
        label: String::new(),
        priority: 0,
        submitted_ms: u64::from(n),
        digest: [n as u8; 32],
        spec: vec![0, 255, n as u8],
        deadline_ms: 1_000_000,
        after: Vec::new(),
        credential: vec![1, 2, 3],
        notify: String::new(),
    }
}

/// Lets an event happen to a transfer.
fn happen(catalogue: &Catalogue, n: u32, event: Event) {
    let mut row = catalogue.load(&id(n)).unwrap().unwrap();
    row.job.handle(event, 50).unwrap();
    assert!(catalogue.update(&Update::of(&row)).unwrap());
}

fn ended(outcome: Result<Summary, Error>) -> Event {
    Event::Ended { outcome, further: false }
}

#[test]
fn a_transfer_submitted_twice_is_stored_once() {
    on_both(|open| {
        let catalogue = open();
        let other = New { digest: [9; 32], ..new(1, "a") };
        assert_eq!(catalogue.submit(&[new(1, "a"), new(2, "a")]).unwrap(), [Put::There, Put::There]);
        assert_eq!(catalogue.submit(&[new(1, "a"), other]).unwrap(), [Put::There, Put::Conflict]);
        assert_eq!(catalogue.open_of("alice@kek").unwrap(), 2);
        drop(catalogue);
        let catalogue = open();
        let row = catalogue.load(&id(2)).unwrap().unwrap();
        assert_eq!((row.spec, row.job.state, row.lane.as_str()), (vec![0, 255, 2], State::Queued, "a"));
        assert_eq!(catalogue.credential(&id(2)).unwrap(), Some(vec![1, 2, 3]));
        assert!(catalogue.load(&id(3)).unwrap().is_none());
    });
}

#[test]
fn of_two_concurrent_changes_one_is_made() {
    on_both(|open| {
        let catalogue = open();
        catalogue.submit(&[new(1, "a")]).unwrap();
        let mut first = catalogue.load(&id(1)).unwrap().unwrap();
        let mut second = first.clone();
        first.job.handle(Event::Begun, 1).unwrap();
        first.runner = "here".into();
        second.job.handle(Event::Begun, 1).unwrap();
        second.runner = "there".into();
        assert!(catalogue.update(&Update::of(&first)).unwrap());
        assert!(!catalogue.update(&Update::of(&second)).unwrap());
        assert_eq!(catalogue.running_at("here").unwrap().len(), 1);
        assert!(catalogue.running_at("there").unwrap().is_empty());
    });
}

#[test]
fn lanes_are_served_by_priority_and_age() {
    on_both(|open| {
        let catalogue = open();
        let urgent = New { priority: 5, ..new(3, "a") };
        catalogue.submit(&[new(2, "a"), new(1, "a"), urgent, new(4, "b")]).unwrap();
        assert_eq!(catalogue.lanes().unwrap(), ["a", "b"]);
        let first: Vec<_> = catalogue.first_in("a", 9).unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(first, [id(3), id(1), id(2)]);
        happen(&catalogue, 4, Event::Begun);
        assert_eq!(catalogue.lanes().unwrap(), ["a"]);
        assert!(catalogue.first_in("b", 1).unwrap().is_empty());
    });
}

#[test]
fn submissions_after_a_full_disk_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_small) = Mounted::tmpfs(folder.path(), "size=3m") else { return };
    let home = Home::at(folder.path());
    let mut stored = Vec::new();
    {
        let catalogue = Catalogue::open("", &home).unwrap();
        let mut submit = |n| {
            let done = catalogue.submit(&[new(n, "lane")]);
            done.is_ok().then(|| stored.push(n)).is_some()
        };
        assert!(submit(0));
        let filler = folder.path().join("filler");
        let _ = std::fs::write(&filler, vec![7; 4 << 20]);
        let refused = (1..200).filter(|n| !submit(*n)).count();
        assert!(refused > 0, "the disk was not full");
        std::fs::remove_file(filler).unwrap();
        assert!((200..210).filter(|n| submit(*n)).count() >= 9, "{stored:?}");
    }
    let again = Catalogue::open("", &home).unwrap();
    let lost: Vec<_> = stored.iter().filter(|n| again.load(&id(**n)).unwrap().is_none()).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[test]
fn a_renamed_site_is_found_under_its_new_name() {
    on_both(|open| {
        let catalogue = open();
        let lanes = [
            "alice@kek\nkek\ntitech",
            "bob@titech\ntitech\nkek",
            "carol@kek\nkek\nkek",
            "eve@a-kek\nkek2\na-kek",
        ];
        let all: Vec<New> = (0..)
            .zip(lanes)
            .map(|(n, lane)| {
                let owner = lane.lines().next().unwrap().to_owned();
                New { owner, ..new(n, lane) }
            })
            .collect();
        catalogue.submit(&all).unwrap();
        for _ in 0..2 {
            catalogue.rename_site("kek", "tsukuba").unwrap();
        }
        let mut found = catalogue.lanes().unwrap();
        found.sort();
        assert_eq!(
            found,
            [
                "alice@tsukuba\ntsukuba\ntitech",
                "bob@titech\ntitech\ntsukuba",
                "carol@tsukuba\ntsukuba\ntsukuba",
                "eve@a-kek\nkek2\na-kek",
            ]
        );
        for (owner, count) in [
            ("alice@kek", 0),
            ("alice@tsukuba", 1),
            ("bob@titech", 1),
            ("carol@tsukuba", 1),
            ("eve@a-kek", 1),
        ] {
            assert_eq!(catalogue.open_of(owner).unwrap(), count, "{owner}");
        }
    });
}

#[test]
fn due_times_are_reported() {
    on_both(|open| {
        let catalogue = open();
        catalogue.submit(&[new(1, "a"), New { deadline_ms: 70, ..new(2, "a") }]).unwrap();
        happen(&catalogue, 1, Event::Begun);
        happen(&catalogue, 1, ended(Err(Error::new(Code::PeerDown, "connect", "kek", ""))));
        assert!(catalogue.due(1049, 9).unwrap().is_empty());
        assert_eq!(catalogue.due(1050, 9).unwrap().len(), 1);
        assert!(catalogue.overdue(69, 9).unwrap().is_empty());
        assert_eq!(catalogue.overdue(70, 9).unwrap()[0].id, id(2));
    });
}

#[test]
fn events_that_transfers_wait_for_are_reported_once() {
    on_both(|open| {
        let catalogue = open();
        catalogue.submit(&[new(1, "a")]).unwrap();
        let waits = |n, on: &[u32]| New { after: on.iter().map(|n| id(*n)).collect(), ..new(n, "a") };
        assert_eq!(
            catalogue.submit(&[waits(2, &[1]), waits(3, &[7])]).unwrap(),
            [Put::There, Put::Unknown(id(7))]
        );
        assert_eq!(catalogue.load(&id(2)).unwrap().unwrap().job.state, State::Waiting);
        assert!(catalogue.met(9).unwrap().is_empty());
        happen(&catalogue, 1, Event::Begun);
        happen(&catalogue, 1, ended(Ok(Summary::default())));
        assert_eq!(catalogue.met(9).unwrap(), [(id(2), id(1), State::Done)]);
        let mut row = catalogue.load(&id(2)).unwrap().unwrap();
        row.job.handle(Event::Released, 60).unwrap();
        assert!(catalogue.update(&Update { met: Some(id(1)), ..Update::of(&row) }).unwrap());
        assert!(catalogue.met(9).unwrap().is_empty());
        assert_eq!(catalogue.load(&id(2)).unwrap().unwrap().job.state, State::Queued);
        happen(&catalogue, 2, Event::Asked { change: Change::Cancel, deadline_ms: 0 });
        assert_eq!(catalogue.submit(&[waits(4, &[2])]).unwrap(), [Put::Abandoned(id(2))]);
        assert_eq!(catalogue.states(&[id(1), id(2), id(9)]).unwrap().len(), 2);
    });
}

#[test]
fn histories_are_stored_and_names_stay_bytes() {
    on_both(|open| {
        let catalogue = open();
        catalogue.submit(&[new(1, "a")]).unwrap();
        let mut row = catalogue.load(&id(1)).unwrap().unwrap();
        let attempt = |number, bytes_moved| Attempt {
            number,
            started_ms: 1,
            ended_ms: None,
            bytes_moved,
            files_done: 0,
            error: None,
        };
        let failure = |name: &[u8]| EntryFailure {
            id: None,
            path: RelPath::parse(name).unwrap(),
            kept: false,
            error: Error::new(Code::PermissionDenied, "open", "x", ""),
        };
        let failures = [failure(b"\xff\xfe/a"), failure(b"b")];
        for (number, bytes) in [(1, 0), (1, 7), (2, 0), (150, 0)] {
            let attempt = attempt(number, bytes);
            let update = Update { attempt: Some(&attempt), forgets_failures: true, ..Update::of(&row) };
            assert!(catalogue.update(&update).unwrap());
            catalogue.add_failures(&id(1), 0, &failures[..1]).unwrap();
            catalogue.add_failures(&id(1), 1, &failures[1..]).unwrap();
            row = catalogue.load(&id(1)).unwrap().unwrap();
        }
        let numbers: Vec<u32> = catalogue.attempts(&id(1)).unwrap().iter().map(|one| one.number).collect();
        assert_eq!(numbers, [150], "the oldest are forgotten");
        let [first, second] = failures;
        let listed = |after, limit| catalogue.failures(&id(1), after, limit).unwrap();
        assert_eq!(listed(0, 9), [(1, first.clone()), (2, second.clone())]);
        assert_eq!((listed(0, 1), listed(1, 9)), (vec![(1, first)], vec![(2, second)]));
        assert!(listed(2, 9).is_empty());
    });
}

#[test]
fn each_end_is_reported_once() {
    on_both(|open| {
        let catalogue = open();
        let told = New { notify: "https://h/x".into(), ..new(1, "a") };
        catalogue.submit(&[told, new(2, "a")]).unwrap();
        let end = |n| {
            happen(&catalogue, n, Event::Begun);
            happen(&catalogue, n, ended(Ok(Summary { failed: 1, ..Summary::default() })));
        };
        (1..=2).for_each(end);
        let due = |now| catalogue.notices(now, 9).unwrap();
        assert!(due(49).is_empty());
        let [notice] = &due(50)[..] else { panic!("{:?}", due(50)) };
        assert_eq!((notice.id, notice.address.as_str(), notice.failures), (id(1), "https://h/x", 0));
        catalogue.put_off(notice, Some(70)).unwrap();
        assert!(due(69).is_empty());
        assert_eq!(due(70)[0].failures, 1);
        catalogue.put_off(notice, None).unwrap();
        // A change that is no end makes no notice, and one more end makes one.
        let mut row = catalogue.load(&id(1)).unwrap().unwrap();
        assert!(catalogue.update(&Update::of(&row)).unwrap() && due(1000).is_empty());
        row = catalogue.load(&id(1)).unwrap().unwrap();
        row.job.handle(Event::Asked { change: Change::Retry, deadline_ms: 0 }, 80).unwrap();
        row.job.handle(Event::Begun, 80).unwrap();
        assert!(catalogue.update(&Update::of(&row)).unwrap() && due(1000).is_empty());
        row = catalogue.load(&id(1)).unwrap().unwrap();
        row.job.handle(ended(Ok(Summary::default())), 90).unwrap();
        assert!(catalogue.update(&Update::of(&row)).unwrap());
        catalogue.put_off(notice, None).unwrap();
        assert_eq!(due(90).len(), 1, "that of the end before is another");
    });
}

#[test]
fn lists_are_paged_and_old_transfers_are_removed() {
    on_both(|open| {
        let catalogue = open();
        let labelled =
            |n| New { label: if n % 2 == 0 { "even".into() } else { String::new() }, ..new(n, "a") };
        catalogue.submit(&(1..=9).map(labelled).collect::<Vec<_>>()).unwrap();
        catalogue.submit(&[New { owner: "bob@kek".into(), ..new(10, "b") }]).unwrap();
        happen(&catalogue, 1, Event::Asked { change: Change::Cancel, deadline_ms: 0 });
        let list = |owner, listed: &Listed| {
            let rows = catalogue.list(&Listing { owner, listed, state: None, limit: 3 }).unwrap();
            rows.iter().map(|row| row.submitted_ms).collect::<Vec<_>>()
        };
        let alice = Some("alice@kek");
        assert_eq!(list(alice, &Listed::default()), [9, 8, 7]);
        assert_eq!(list(None, &Listed::default()), [10, 9, 8]);
        assert_eq!(list(alice, &Listed { before: Some((4, id(4))), ..Listed::default() }), [3, 2]);
        assert_eq!(list(alice, &Listed { before: Some((4, id(4))), ended: true, label: None }), [3, 2, 1]);
        assert_eq!(list(alice, &Listed { label: Some("even".into()), ..Listed::default() }), [8, 6, 4]);
        let ended = Listed { ended: true, ..Listed::default() };
        let in_state = |state| {
            let listing = Listing { owner: None, listed: &ended, state: Some(state), limit: 3 };
            catalogue.list(&listing).unwrap().iter().map(|row| row.submitted_ms).collect::<Vec<_>>()
        };
        assert_eq!((in_state(State::Cancelled), in_state(State::Queued)), (vec![1], vec![10, 9, 8]));
        assert_eq!(catalogue.find("0000000", alice).unwrap().len(), 5);
        assert_eq!(catalogue.find("00000003", alice).unwrap()[0].id, id(3));
        assert!(catalogue.find("0000000a", alice).unwrap().is_empty());
        assert_eq!(catalogue.find("0000000a", None).unwrap().len(), 1);
        assert_eq!(catalogue.forget(50, 9).unwrap(), 0);
        assert_eq!(catalogue.forget(51, 9).unwrap(), 1);
        assert!(catalogue.load(&id(1)).unwrap().is_none());
    });
}

/// The first transfers of each lane are found whatever the length of the queue. Prints the times of scheduling and
/// submitting; `RENKEI_QUEUED=100000` measures with as many.
#[test]
fn a_long_queue_is_scheduled_quickly() {
    let queued: u32 = std::env::var("RENKEI_QUEUED").map_or(1000, |number| number.parse().expect("a number"));
    on_both(|open| {
        let catalogue = open();
        let lane = |n: u32| format!("user{}@kek\nkek\nsite{}", n % 10, n % 7);
        let batch = |from: u32| (from..from + 500).map(|n| new(n, &lane(n))).collect::<Vec<_>>();
        let mut first = None;
        for from in (0..queued).step_by(500) {
            let start = Instant::now();
            catalogue.submit(&batch(from)).unwrap();
            first.get_or_insert(start.elapsed());
        }
        let start = Instant::now();
        (0..10).for_each(|n| drop(catalogue.submit(&batch(queued + 500 * n)).unwrap()));
        let rate = 5000.0 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        (0..100).for_each(|n| drop(catalogue.submit(&[new(2 * queued + 10_000 + n, &lane(n))]).unwrap()));
        let single = 100.0 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        let lanes = catalogue.lanes().unwrap();
        for lane in &lanes {
            assert_eq!(catalogue.first_in(lane, 1).unwrap().len(), 1);
        }
        let pick = start.elapsed();
        assert_eq!(lanes.len(), 70);
        let list = Instant::now();
        catalogue
            .list(&Listing { owner: Some("alice@kek"), listed: &Listed::default(), state: None, limit: 256 })
            .unwrap();
        println!(
            "{}: the first 500 in {:?}; with {queued} queued {rate:.0}/s in batches of 500, {single:.0}/s one by one, \
             {} lanes looked at in {pick:?}, a page of the list in {:?}",
            catalogue.shown(),
            first.unwrap(),
            lanes.len(),
            list.elapsed()
        );
    });
}
