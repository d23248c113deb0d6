//! The queue under random events and crashes: nothing is lost, runs twice at once, or is done without an end.

use proptest::prelude::*;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::queue::{Change, Event, Head, Job, Limits, Link, Load, Requested, State};
use renkei_core::wire::message::{DestinationKind, Summary};

const LIMITS: Limits = Limits { all: 4, user: 3, link: 2 };
const TRANSFERS: usize = 8;
const DEADLINE_MS: u64 = 400_000;

#[derive(Clone, Debug)]
enum Step {
    /// Starts the jobs that the scheduler picks.
    Pick,
    /// An attempt that runs ends, unless the PoP is killed before that is stored.
    End { which: usize, how: u8, killed: bool },
    /// The destination of an attempt is looked at.
    Look { which: usize, dir: bool },
    /// A request of a user.
    Ask { which: usize, change: u8 },
    /// Time passes, and due and overdue jobs are processed.
    Pass(u64),
    /// The PoP is killed and starts again.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let which = || 0..TRANSFERS;
    prop_oneof![
        4 => Just(Step::Pick),
        4 => (which(), 0..5_u8, prop::bool::weighted(0.1))
            .prop_map(|(which, how, killed)| Step::End { which, how, killed }),
        1 => (which(), any::<bool>()).prop_map(|(which, dir)| Step::Look { which, dir }),
        2 => (which(), 0..4_u8).prop_map(|(which, change)| Step::Ask { which, change }),
        2 => (0..20_000_u64).prop_map(Step::Pass),
        1 => Just(Step::Kill),
    ]
}

/// A PoP: its catalogue, and its memory, which a kill erases.
struct Pop {
    jobs: Vec<Job>,
    found: Vec<Option<DestinationKind>>,
    ended_well: Vec<bool>,
    now_ms: u64,
    /// Which transfers have an attempt.
    running: Vec<usize>,
    load: Load,
}

fn owner(which: usize) -> String {
    format!("user{}@kek", which % 3)
}

fn link(which: usize) -> Link {
    let site = |name: &str| SiteName::parse(name).unwrap();
    Link { from: site("kek"), to: site(["titech", "osaka"][which % 2]) }
}

impl Pop {
    fn new() -> Self {
        Pop {
            jobs: vec![Job::submitted(0, DEADLINE_MS); TRANSFERS],
            found: vec![None; TRANSFERS],
            ended_well: vec![false; TRANSFERS],
            now_ms: 0,
            running: Vec::new(),
            load: Load::default(),
        }
    }

    fn pick(&mut self) {
        let ready: Vec<usize> =
            (0..TRANSFERS).filter(|&which| self.jobs[which].state == State::Queued).collect();
        let head = |&which: &usize| Head {
            owner: owner(which),
            link: link(which),
            priority: which as i64 % 2,
            submitted_ms: which as u64,
        };
        let heads: Vec<Head> = ready.iter().map(head).collect();
        let Some(at) = self.load.pick(&heads, LIMITS, self.now_ms) else { return };
        let which = ready[at];
        assert!(!self.running.contains(&which), "it runs already");
        self.jobs[which].handle(Event::Begun, self.now_ms).unwrap();
        self.running.push(which);
        self.load.start(&owner(which), &link(which));
        assert!(self.running.len() <= LIMITS.all);
    }

    fn end(&mut self, which: usize, how: u8, killed: bool) {
        let Some(at) = self.running.iter().position(|&running| running == which) else { return };
        if killed {
            return self.kill();
        }
        self.running.remove(at);
        self.load.end(&owner(which), &link(which));
        let failed = |code| Err(Error::new(code, "test", "", ""));
        let outcome = match how {
            0 | 1 => Ok(Summary::default()),
            2 => failed(Code::ConnectionLost),
            3 => failed(Code::NotMapped),
            _ => Ok(Summary { failed: 1, ..Summary::default() }),
        };
        self.ended_well[which] |= how < 2;
        if how == 2 {
            self.load.rest(&link(which), self.now_ms);
        }
        self.jobs[which].handle(Event::Ended { outcome, further: false }, self.now_ms).unwrap();
    }

    fn look(&mut self, which: usize, dir: bool) {
        let found = if dir { DestinationKind::Dir } else { DestinationKind::Nothing };
        if self.jobs[which].handle(Event::Found(found), self.now_ms).is_ok() {
            let first = *self.found[which].get_or_insert(found);
            assert_eq!(self.jobs[which].found, Some(first), "decided twice");
        }
    }

    fn ask(&mut self, which: usize, change: u8) {
        let change = [Change::Cancel, Change::Pause, Change::Resume, Change::Retry][usize::from(change)];
        let before = self.jobs[which].clone();
        let deadline_ms = self.now_ms + DEADLINE_MS;
        match self.jobs[which].handle(Event::Asked { change, deadline_ms }, self.now_ms) {
            Err(_) => assert_eq!(self.jobs[which], before, "a refusal changes nothing"),
            // A retried job must end again.
            Ok(()) if change == Change::Retry => self.ended_well[which] = false,
            Ok(()) => {}
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        for job in &mut self.jobs {
            if job.state == State::Waiting && job.next_ms.is_some_and(|next| next <= self.now_ms) {
                job.handle(Event::Due, self.now_ms).unwrap();
            }
            if !job.state.is_end() && job.deadline_ms <= self.now_ms {
                job.handle(Event::Overdue, self.now_ms).unwrap();
            }
        }
    }

    fn kill(&mut self) {
        self.running.clear();
        self.load = Load::default();
        for job in self.jobs.iter_mut().filter(|job| job.state == State::Running) {
            job.handle(Event::Interrupted, self.now_ms).unwrap();
        }
    }

    fn check(&self) {
        for (which, job) in self.jobs.iter().enumerate() {
            assert_eq!(job.state == State::Running, self.running.contains(&which), "{which}: {job:?}");
            assert!(job.state != State::Done || self.ended_well[which], "done without an end");
            assert_eq!(job.state.is_end(), job.ended_ms.is_some());
            assert!(job.wish.is_none() || job.state == State::Running);
            // Every waiting job has a time.
            assert!(job.state != State::Waiting || job.next_ms.is_some() && job.reason.is_some());
            let failed_for_a_reason = job.state != State::Failed || job.reason.is_some();
            assert!(failed_for_a_reason, "{job:?}");
        }
        assert_eq!(self.load.running(), self.running.len());
    }

    /// From here on all goes well: everything comes to an end.
    fn finish(&mut self) {
        for which in 0..TRANSFERS {
            self.ask(which, 2);
        }
        for _ in 0..1000 {
            self.pass(1000);
            self.pick();
            for which in self.running.clone() {
                self.end(which, 0, false);
            }
            self.check();
        }
        for job in &self.jobs {
            let given_up = matches!(job.wish, None | Some(Requested::Cancel)) && job.state.is_end();
            assert!(given_up, "lost: {job:?}");
        }
    }
}

proptest! {
    #[test]
    fn no_job_is_lost_or_half_done(steps in prop::collection::vec(step(), 1..120)) {
        let mut pop = Pop::new();
        for step in steps {
            match step {
                Step::Pick => pop.pick(),
                Step::End { which, how, killed } => pop.end(which, how, killed),
                Step::Look { which, dir } => pop.look(which, dir),
                Step::Ask { which, change } => pop.ask(which, change),
                Step::Pass(ms) => pop.pass(ms),
                Step::Kill => pop.kill(),
            }
            pop.check();
        }
        pop.finish();
    }
}
