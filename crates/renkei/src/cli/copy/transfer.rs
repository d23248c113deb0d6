//! Runs one copy or sync: opens the sessions, moves, retries when the connection is lost, reports.

use super::copy_plan::{Direction, Spec, direction, form_of, source_names, split_local};
use super::detach::{Detach, hand_over, not_to_here};
use super::files_from::{self, Listed};
use super::filter::FilterArgs;
use super::intent::Intent;
use super::progress::Display;
use super::report;
use super::source::{Sources, not_found};
use super::upload::Upload;
use crate::cli::Context;
use crate::cli::connect;
use crate::cli::connect::unexpected;
use crate::cli::glob;
use crate::cli::quantity::parse_rate;
use crate::cli::volume_path::Namespace;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::buffer::{place, source, split};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::mover::filter::Filter;
use renkei_core::mover::journal::{Header, VERSION};
use renkei_core::mover::layout::{CopyForm, CopyLayout};
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName};
use renkei_core::units::span;
use renkei_core::wire::copy::{CopySender, OpenCopy, check_sources};
use renkei_core::wire::message::{
    Class, Control, EntryFailure, Existing, Found, OnError, Onto, OpenReceive, OpenSend, Opened, Progress,
    ReceiveOptions, Reply, Request, Source, Summary, TransferId,
};
use renkei_core::wire::queue::{Submission, Terms};
use renkei_core::wire::wire3::DestinationReport;
use renkei_mover::BACKGROUND_STREAMS;
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_mover::connect::slow_connect::SlowConnectReporter;
use renkei_mover::fd_limit::raise_limit;
use renkei_mover::journal::{Journal, boot_id};
use renkei_mover::progress::{Note, Watch};
use renkei_mover::receive::{ReceiveJob, receive, unlimited};
use renkei_mover::self_copy;
use renkei_mover::send::{SendJob, send};
use renkei_mover::walk::Root;
use renkei_mover::{Stop, fresh_id};
use renkei_net::identity::account::Account;
use renkei_site::transfer::cleanup;
use renkei_store::Store;
use renkei_store::local::{AccessMode, LocalStore};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Backoff before a retry.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// Bytes per second that one stream carries on any path: with the kernel's common window of 4 MiB, at an RTT of half
/// a second.
const STREAM_CARRIES: u64 = 8 << 20;

/// The classes, as `--class` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ClassName {
    /// A share like that of others
    Normal,
    /// What others leave: it gives way as soon as a queue grows
    Background,
}

/// What becomes of the rest, as `--on-error` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnErrorName {
    /// Copy it, and list the failures
    Skip,
    /// Leave it: the copy ends with the first failure
    Stop,
}

/// Options of all verbs that transfer.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// How long to try again after the connection was lost, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    retry_for: u64,
    /// Send at most so many bytes per second: 500K, 1.5M, 10MB, 80Mbit
    ///
    /// As in rsync, K, M, G and T (or KiB, MiB ...) are powers of 1024 and KB, MB ... powers of 1000; kbit, Mbit ...
    /// are thousands of bits. A plain number is bytes, as in curl and wget.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    limit: Option<u64>,
    /// How much of the path to take
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = ClassName::Normal)]
    class: ClassName,
    /// What to do with the rest when a file fails
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnErrorName::Skip)]
    on_error: OnErrorName,
    /// Data streams at most; by default the PoP decides
    #[arg(long, value_name = "N", hide = true, default_value_t = 64)]
    streams: u16,
    #[command(flatten)]
    filter: FilterArgs,
    /// Copy the names that a file lists, one a line, below the only SOURCE; - reads standard input
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    #[command(flatten)]
    detach: Detach,
}

impl Default for Common {
    fn default() -> Self {
        Common {
            retry_for: 60,
            limit: None,
            class: ClassName::Normal,
            on_error: OnErrorName::Skip,
            streams: 64,
            filter: FilterArgs::default(),
            files_from: None,
            detach: Detach::default(),
        }
    }
}

impl Common {
    /// The number of streams: under a rate limit few suffice, so that the extents of a file are sent one after the
    /// other and a copy that is interrupted has some to keep.
    fn max_streams(&self) -> u16 {
        let enough = self.limit.map_or(u64::MAX, |limit| limit.div_ceil(STREAM_CARRIES));
        let enough = self.streams.min(u16::try_from(enough).unwrap_or(u16::MAX));
        if self.class == ClassName::Background { enough.min(BACKGROUND_STREAMS) } else { enough }
    }

    /// How long to retry after the connection was lost.
    pub(crate) fn retry_for(&self) -> Duration {
        Duration::from_secs(self.retry_for)
    }

    fn on_error(&self) -> OnError {
        match self.on_error {
            OnErrorName::Skip => OnError::Skip,
            OnErrorName::Stop => OnError::Stop,
        }
    }

    fn class(&self) -> Class {
        match self.class {
            ClassName::Normal => Class::Normal,
            ClassName::Background => Class::Background,
        }
    }
}

/// The verb that was given; names the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `cp`.
    Cp,
    /// `sync`.
    Sync,
}

/// A transfer to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) verb: Verb,
    pub(crate) sources: Vec<OsString>,
    pub(crate) destination: OsString,
    pub(crate) recursive: bool,
    pub(crate) options: ReceiveOptions,
    pub(crate) common: Common,
}

impl Job {
    /// Whether the contents of a source are meant, and not the source itself.
    fn means_contents(&self, source: &Spec) -> bool {
        source.has_slash() || self.verb == Verb::Sync || self.common.files_from.is_some()
    }

    /// The listed names, with `--files-from`.
    fn listed(&self, sources: &[Spec]) -> Result<Option<Vec<Listed>>, Error> {
        let Some(file) = &self.common.files_from else { return Ok(None) };
        let invalid = |cause| Err(Error::new(Code::UsageInvalid, "copy", "--files-from", cause));
        match sources {
            [_] if self.options.delete => invalid("--delete does not go with a list of names"),
            [_] if self.common.detach.is_wanted() => invalid("--detach does not go with a list of names"),
            [_] if !self.common.filter.is_empty() => invalid("rules do not go with a list of names"),
            [_] => files_from::read(file, self.recursive).map(Some),
            _ => invalid("give exactly one SOURCE, the directory that contains the names"),
        }
    }

    /// Runs it to its end and reports; returns the exit status.
    pub(crate) fn run(&self, context: &Context) -> Result<u8, Error> {
        let run = Run::prepare(self, context)?;
        match self.common.detach.is_wanted() {
            true => hand_over(run, &self.common.detach, context),
            false => run.to_end(),
        }
    }

    /// Copies, then compares both ends, and returns whether everything is at the destination; prints nothing.
    ///
    /// # Errors
    /// Errors of the copy; the first of its failures.
    pub(crate) fn copy_and_compare(&self, context: &Context) -> Result<bool, Error> {
        let run = Run::prepare(self, context)?;
        let (copied, _) = run.ended()?;
        let real = |failure: &&EntryFailure| failure.error.code != Code::SpecialFile;
        if let Some(failure) = copied.failures.iter().find(real) {
            return Err(failure.error.clone());
        }
        let options = ReceiveOptions { existing: Existing::SameStamp, dry_run: true, ..self.options.clone() };
        let again = Job { options, ..self.clone() };
        let (compared, _) = Run::prepare(&again, context)?.ended()?;
        run.intent()?.forget();
        Ok(compared.failed == 0 && compared.files == compared.files_skipped && copied.special == 0)
    }
}

/// A local destination: the directory that takes the sources, and their names in it.
struct LocalDestination {
    base: PathBuf,
    layout: CopyLayout,
    /// Whether the base must be created.
    make: bool,
    /// The target names of the sources.
    targets: Vec<RelPath>,
}

/// A transfer in progress, over all its attempts.
pub(crate) struct Run<'a> {
    pub(crate) job: &'a Job,
    pub(crate) context: &'a Context,
    pub(crate) sources: Vec<Spec>,
    destination: Spec,
    pub(crate) direction: Direction,
    dialler: Dialler,
    pub(crate) transfer: TransferId,
    pub(crate) watch: Watch,
    pub(crate) stop: Stop,
    /// The filter on names of the sources.
    filter: Filter,
    /// The listed names below the only source, with `--files-from`.
    listed: Option<Vec<Listed>>,
    /// The buffer of a PoP to upload to, in place of its destination.
    pub(crate) upload: Option<Upload>,
}

impl<'a> Run<'a> {
    fn prepare(job: &'a Job, context: &'a Context) -> Result<Self, Error> {
        raise_limit();
        let mut namespace = Namespace::new(context);
        let mut spec = |argument| Spec::parse_as(argument, |argument| namespace.endpoint(argument));
        let sources = glob::expanded(&job.sources, context)?;
        let sources: Vec<Spec> = sources.iter().map(|source| spec(source)).collect::<Result<_, _>>()?;
        let destination = spec(&job.destination)?;
        let direction = direction(&sources, &destination)?;
        let filter =
            job.common.filter.filter(sources.iter().map(|source| job.means_contents(source)).collect())?;
        let listed = job.listed(&sources).map_err(|error| error.at("client"))?;
        if !matches!(direction, Direction::Up(_)) || job.common.detach.is_wanted() {
            // A site sends them, which refuses too many: before anything is created at a destination, or uploaded.
            check_sources(listed.as_ref().map_or(sources.len(), Vec::len))
                .map_err(|error| error.at("client"))?;
        }
        let transfer = job.common.detach.id().map_or_else(fresh_id, Ok)?;
        let stop = Stop::default();
        stop_on_signal(stop.clone(), direction.to().map(SiteName::to_string).unwrap_or_default())?;
        let dialler = connect::dialler(context, &direction.sites())?;
        Ok(Run {
            job,
            context,
            sources,
            destination,
            direction,
            dialler,
            transfer,
            watch: Watch::with_notes().with_names(context.lists_names()),
            stop,
            filter,
            listed,
            upload: None,
        })
    }

    /// Redirects the sources to the buffer of a PoP.
    pub(crate) fn send_to_buffer(&mut self, upload: Upload) -> Result<(), Error> {
        self.dialler = connect::dialler(self.context, &[&upload.home])?;
        self.upload = Some(upload);
        Ok(())
    }

    /// Moves the files, here and now, and reports.
    pub(crate) fn to_end(&self) -> Result<u8, Error> {
        let started = Instant::now();
        let (summary, notes) = self.ended()?;
        let reported = self.report(&summary, notes, started.elapsed());
        // After the report: a user whose command was killed before it repeats the same command. A directory that was
        // not created cannot be mistaken for another the next time.
        if summary.failed == 0 || summary.dirs == 0 {
            self.intent()?.forget();
        }
        reported
    }

    /// Moves the files, with a progress display.
    fn ended(&self) -> Result<(Summary, Vec<Note>), Error> {
        let display = Display::start(&self.context.output, self.watch.clone());
        let ended = self.try_until_done(&display);
        let notes = display.finish();
        cleanup::clean_up_own(&self.context.home()?, self.context.now());
        Ok((ended?, notes))
    }

    /// Prints the report and returns the exit status.
    pub(crate) fn report(&self, summary: &Summary, notes: Vec<Note>, took: Duration) -> Result<u8, Error> {
        let Job { verb, options, common, .. } = self.job;
        let what = (&self.transfer, common.class());
        report::transferred(*verb, options.dry_run, summary, notes, took, what, self.context)
    }

    /// The submission with which a PoP runs it unattended, with default terms.
    ///
    /// # Errors
    /// `NotQueueable` if the destination is on this machine; the error why no destination can be planned.
    pub(crate) fn submission(&self) -> Result<Submission, Error> {
        let Direction::Between(from, _) = &self.direction else {
            return Err(not_to_here(self.destination.shown()));
        };
        self.submission_from(from, self.open_send(false, self.names()?)?)
    }

    /// The same, of sources at a site.
    pub(crate) fn submission_from(&self, from: &SiteName, send: OpenSend) -> Result<Submission, Error> {
        let Spec::Remote(EndpointPath { site: to, .. }) = self.destination.clone() else {
            return Err(not_to_here(self.destination.shown()));
        };
        let copy = self.open_copy()?;
        let at_site = |error: Error| Error { subject: format!("{to}:{}", error.subject), ..error };
        copy.outcomes().map_err(at_site)?;
        // A copy onto itself is refused by the site at that time, with its code.
        let copy = OpenCopy { beside: Vec::new(), ..copy };
        Ok(Submission { from: from.clone(), send, to, copy, terms: Terms::default() })
    }

    /// Retries until it is done, stopped, refused, or lost for too long without progress.
    pub(crate) fn try_until_done(&self, display: &Display) -> Result<Summary, Error> {
        let limit = self.job.common.retry_for();
        let (mut lost_since, mut files_done): (Option<Instant>, u64) = (None, 0);
        let mut pauses = BACKOFF.begin();
        let (mut connected, mut told) = (false, String::new());
        loop {
            let error = match self.attempt(&mut connected) {
                Ok(summary) => return Ok(summary),
                Err(error) => error,
            };
            if let Some(stopped) = self.stop.stopped() {
                return Err(stopped);
            }
            // An agent that is absent at the start is reported at once, as a site is.
            let is_absent = error.code == Code::AgentAbsent && lost_since.is_none();
            if !connected || is_absent || !is_passing(&error) {
                return Err(error);
            }
            if self.got_further(&mut files_done) || lost_since.is_none() {
                lost_since = Some(Instant::now());
                pauses.reset();
                told.clear();
            }
            if lost_since.is_some_and(|since| since.elapsed() >= limit) {
                return Err(error);
            }
            // Each cause is printed once, however often the copy is retried.
            let words = error.to_string();
            if words != told {
                display.notice(&format!("{words}; trying again for up to {}", span(limit)));
                told = words;
            }
            std::thread::sleep(pauses.next(random_number()));
        }
    }

    /// Whether the last attempt made progress over those before: it finished more files, or sent an extent of one.
    fn got_further(&self, files_done: &mut u64) -> bool {
        let progress = self.watch.look();
        self.watch.set(Progress::default());
        let further = progress.files_done > *files_done || progress.bytes_moved >= SLOT_BYTES;
        *files_done = progress.files_done.max(*files_done);
        further
    }

    fn attempt(&self, connected: &mut bool) -> Result<Summary, Error> {
        let open = |site: &SiteName, ahead: DialHints, connected: &mut bool| {
            let session = self.dialler.connect_ahead(site, &ahead)?;
            connect::keep_revocations(&self.context.home()?, &session);
            *connected = true;
            Ok(session)
        };
        let streams = self.job.common.max_streams();
        if let Some(upload) = &self.upload {
            let ahead = DialHints { streams, sends: true, request: None };
            return self.up_to_buffer(open(&upload.home, ahead, connected)?);
        }
        match &self.direction {
            Direction::Up(site) => {
                // Sources that cannot be opened are reported before the destination is touched.
                let roots = self.local_roots(self.names()?)?;
                let copy = self.open_copy()?;
                let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Asker };
                let ahead = DialHints { streams, sends: true, request: Some(request) };
                self.up(open(site, ahead, connected)?, &copy, roots)
            }
            Direction::Down(site) => {
                let request = self.likely_open_send();
                let ahead = DialHints { streams, sends: false, request: request.clone() };
                self.down(open(site, ahead, connected)?, request)
            }
            Direction::Between(from, to) => {
                if let Some(summary) = self.push_as_own_user(from, to, connected)? {
                    return Ok(summary);
                }
                // A connection counts as established when both sessions are open.
                let copy = self.open_copy()?;
                let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Site(from.clone()) };
                let ahead = DialHints { streams: 0, sends: false, request: Some(request) };
                let (layout, grant) = open(to, ahead, &mut false)?.grant_copy(&copy, from)?;
                let _marker = self.keep_intent(layout)?;
                let targets = layout.targets(&self.names()?, copy.to.path.name())?;
                let push = Request::Push { send: self.open_send(false, targets)?, to: to.clone(), grant };
                let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
                self.between(open(from, ahead, connected)?, push, |_| Ok(None))
            }
        }
    }

    fn remote_destination(&self) -> Result<Place, Error> {
        match &self.destination {
            Spec::Remote(path) => place_of(path),
            Spec::Local { .. } => {
                let shown = self.destination.shown();
                Err(Error::new(Code::UsageInvalid, "copy", shown, "not a place at a site"))
            }
        }
    }

    fn up(&self, mut session: Session, copy: &OpenCopy, mut roots: Vec<Root>) -> Result<Summary, Error> {
        let mut _marker = None;
        let opened = session.open_copy(copy, |layout| {
            _marker = self.keep_intent(layout)?;
            let targets = layout.targets(&self.names()?, copy.to.path.name())?;
            roots.iter_mut().zip(targets).for_each(|(root, target)| root.to = target);
            Ok(())
        })?;
        self.send_local(session, &opened, roots)
    }

    /// Sends the sources to the opened destination.
    fn send_local(&self, mut session: Session, opened: &Opened, roots: Vec<Root>) -> Result<Summary, Error> {
        let streams = self.dialler.join(&mut session, opened)?;
        let job = SendJob {
            roots,
            recursive: self.job.recursive,
            offers: opened.offers,
            digests: self.compares_content() && self.upload.is_none(),
            dry_run: self.job.options.dry_run,
            limit: self.job.common.limit,
            class: self.job.common.class(),
            on_error: self.job.common.on_error(),
            onto: opened.onto.clone(),
            filter: self.filter.clone(),
            account: Account::own()?,
            side: "client".into(),
            keep: None,
            compare: None,
        };
        send(job, &mut session.control, streams, &self.watch, &self.stop)
            .map_err(|error| session.reach.blame(error).at("client"))
    }

    /// Sends the sources to the buffer, each by its number.
    fn up_to_buffer(&self, mut session: Session) -> Result<Summary, Error> {
        // The PoP knows the existing files of an upload that is continued.
        let options = ReceiveOptions::plain(Existing::Replace);
        let names = (0..self.sources.len()).map(|number| split(&source(&self.transfer, number)));
        let roots = self.local_roots(names.flatten().map(|(_, name)| name).collect())?;
        let opened = session.ask_open(Request::OpenReceive(OpenReceive {
            transfer: self.transfer,
            job: self.key(),
            to: place(&self.transfer),
            options,
            class: self.job.common.class(),
            max_streams: self.job.common.max_streams(),
            rules: Vec::new(),
        }))?;
        self.send_local(session, &opened, roots)
    }

    /// The likely request to the sending site, unless a journal of an earlier run may change it.
    fn likely_open_send(&self) -> Option<Request> {
        let Spec::Local { path, .. } = &self.destination else { return None };
        if Journal::exists(&self.context.home().ok()?.journal_dir(), self.key()) {
            return None;
        }
        let here = self.look_at_local(path).ok()?;
        let options = self.options(here.layout);
        let onto = onto(&here, &options);
        let open = self.open_send(self.offers(&options, false), here.targets).ok()?;
        Some(Request::OpenSend(OpenSend { onto, ..open }))
    }

    fn offers(&self, options: &ReceiveOptions, kept: bool) -> bool {
        kept || options.existing != Existing::Replace || options.dry_run
    }

    fn down(&self, mut session: Session, announced: Option<Request>) -> Result<Summary, Error> {
        let Spec::Local { path, .. } = &self.destination else {
            return Err(Error::new(Code::UsageInvalid, "copy", self.destination.shown(), "not a local path"));
        };
        let here = self.lay_out_local(path)?;
        let base = here.base.clone();
        let store =
            LocalStore::open(&base, AccessMode::ReadWrite).map_err(|error| not_found(error).at("client"))?;
        let journal = self.open_journal(&base)?;
        let kept = journal.as_ref().is_some_and(|(_, kept)| !kept.is_empty());
        let options = self.options(here.layout);
        let onto = onto(&here, &options);
        let open = self.open_send(self.offers(&options, kept), here.targets)?;
        let open = Request::OpenSend(OpenSend { onto, ..open });
        if announced.is_some_and(|announced| announced != open) {
            // The local destination changed meanwhile.
            session = self.dialler.connect(session.site())?;
        }
        let opened = session.ask_open(open)?;
        let _marker = self.keep_intent(here.layout)?;
        let streams = self.dialler.join(&mut session, &opened)?;
        let job = ReceiveJob {
            base: store.root()?,
            job: self.key(),
            options,
            journal,
            account: Account::own()?,
            max_deferred: usize::MAX,
            memory: unlimited(),
            side: "client".into(),
            root: base.display().to_string(),
            keep: None,
            within: vec![RelPath::root()],
            receive_hooks: None,
            on_digest: None,
        };
        receive(job, &mut session.control, streams, &self.watch, &self.stop)
            .map_err(|error| session.reach.blame(error).at("client"))
    }

    /// Has the user's own site request the push in the user's name; `None` if it may not, and the user must request
    /// it.
    fn push_as_own_user(
        &self,
        from: &SiteName,
        to: &SiteName,
        connected: &mut bool,
    ) -> Result<Option<Summary>, Error> {
        if from == to || connect::own_site(self.context)? != *from {
            return Ok(None);
        }
        let copy = self.open_copy()?;
        let send = self.open_send(false, self.names()?)?;
        let push = Request::PushCopy { send, to: to.clone(), copy: copy.clone() };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let session = self.dialler.connect_ahead(from, &ahead)?;
        connect::keep_revocations(&self.context.home()?, &session);
        let mut found = false;
        let patience = SlowConnectReporter::new(&connect::tell());
        patience
            .trying(format!("{to} does not answer {from} yet; `renkei route {from} {to}` tests the ways"));
        let mut patience = Some(patience);
        let pushed = self.between(session, push, |destination| {
            (*connected, patience, found) = (true, None, true);
            self.keep_intent(destination.layout(&copy)?)
        });
        match pushed {
            Err(error) if !found && wants_the_user(error.code) => Ok(None),
            pushed => pushed.map(Some),
        }
    }

    /// Follows a push to its end; `on_found` gets the report of its destination, and its result is held meanwhile.
    fn between(
        &self,
        mut session: Session,
        push: Request,
        mut on_found: impl FnMut(DestinationReport) -> Result<Option<File>, Error>,
    ) -> Result<Summary, Error> {
        match session.ask(push)? {
            Reply::Pushing => {}
            other => return Err(unexpected(&other)),
        }
        let link = session.control.sender();
        let _hook = self.stop.on_stop(move |error| drop(link.send(&Control::Abort(error))));
        let mut _marker = None;
        loop {
            match session.control.recv()? {
                Control::Layout(layout) => _marker = on_found(DestinationReport::Layout(layout))?,
                Control::Found(found) => _marker = on_found(DestinationReport::Found(found))?,
                Control::Progress(progress) => self.watch.set(progress),
                Control::Removed(paths) => self.watch.note_removed(paths),
                Control::WouldSend(paths) => self.watch.note_would_send(paths),
                Control::Arrived(paths) => self.watch.note_arrived(paths),
                // The summary lists the first of them.
                Control::Failures(_) => {}
                Control::Finished(ended) => return ended,
                other => return Err(renkei_core::wire::violation("push", format_args!("{other:?}"))),
            }
        }
    }

    fn compares_content(&self) -> bool {
        self.job.options.existing == Existing::SameContent
    }

    fn open_send(&self, offers: bool, targets: Vec<RelPath>) -> Result<OpenSend, Error> {
        let source = |((spec, listed), to): ((&Spec, Option<&Listed>), RelPath)| match spec {
            Spec::Remote(path) => {
                let mut from = place_of(path)?;
                if let Some(listed) = listed {
                    from.path = from.path.join(&listed.path)?;
                }
                Ok(Source { from, to, alone: listed.is_some_and(|listed| listed.alone) })
            }
            Spec::Local { .. } => {
                Err(Error::new(Code::UsageInvalid, "copy", spec.shown(), "not a place at a site"))
            }
        };
        Ok(self.send_of(offers, self.parts().zip(targets).map(source).collect::<Result<_, _>>()?))
    }

    /// The open request for sources at a site.
    pub(crate) fn send_of(&self, offers: bool, sources: Vec<Source>) -> OpenSend {
        OpenSend {
            transfer: self.transfer,
            sources,
            recursive: self.job.recursive,
            offers,
            digests: self.compares_content(),
            dry_run: self.job.options.dry_run,
            limit: self.job.common.limit,
            class: self.job.common.class(),
            max_streams: self.job.common.max_streams(),
            on_error: self.job.common.on_error(),
            onto: None,
            filter: self.filter.clone(),
            tell_names: self.watch.notes_names(),
        }
    }

    /// Key of the job: the same command from the same machine is the same job.
    pub(crate) fn key(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        let host = rustix::system::uname();
        let local = matches!(self.direction, Direction::Up(_));
        hasher.update(if local { host.nodename().to_bytes() } else { b"" });
        for source in &self.sources {
            hasher.update(source.identity().as_bytes());
            hasher.update(b"\0");
        }
        hasher.update(self.destination.identity().as_bytes());
        u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("32 bytes"))
    }

    /// The copy, for a destination at a site to resolve.
    fn open_copy(&self) -> Result<OpenCopy, Error> {
        let to = self.remote_destination()?;
        Ok(OpenCopy {
            transfer: self.transfer,
            job: self.key(),
            form: self.form()?,
            beside: self.beside()?,
            to,
            options: ReceiveOptions { filter: self.filter.clone(), ..self.job.options.clone() },
            class: self.job.common.class(),
            max_streams: self.job.common.max_streams(),
            rules: Vec::new(),
        })
    }

    /// The sources that are at the site of the destination, with their names.
    fn beside(&self) -> Result<Vec<(Place, RelPath)>, Error> {
        match &self.direction {
            Direction::Between(from, to) if from == to => {
                let sources = self.open_send(false, self.names()?)?.sources;
                Ok(sources.into_iter().map(|source| (source.from, source.to)).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn form(&self) -> Result<CopyForm, Error> {
        let is_sync = self.job.verb == Verb::Sync || self.listed.is_some();
        let form = form_of(&self.sources, &self.destination);
        let resumed = !is_sync && self.intent()?.exists();
        Ok(CopyForm { directory: form.directory || is_sync, resumed, ..form })
    }

    /// The name of each source in a destination directory.
    pub(crate) fn names(&self) -> Result<Vec<RelPath>, Error> {
        match &self.listed {
            Some(listed) => Ok(listed.iter().map(|one| one.path.clone()).collect()),
            None if self.job.verb == Verb::Sync => Ok(vec![RelPath::root()]),
            None => source_names(&self.sources),
        }
    }

    /// Each source or, with `--files-from`, each listed name of the only one.
    fn parts(&self) -> Box<dyn Iterator<Item = (&Spec, Option<&Listed>)> + '_> {
        match (&self.listed, self.sources.first()) {
            (Some(listed), Some(source)) => Box::new(listed.iter().map(move |one| (source, Some(one)))),
            _ => Box::new(self.sources.iter().map(|source| (source, None))),
        }
    }

    /// Keeps the marker of a copy whose source becomes its destination, which a retry must know.
    fn keep_intent(&self, layout: CopyLayout) -> Result<Option<File>, Error> {
        let becomes = layout == CopyLayout::As && self.job.recursive && !self.job.options.dry_run;
        self.intent()?.keep(becomes)
    }

    fn intent(&self) -> Result<Intent, Error> {
        Ok(Intent::new(&self.context.home()?.journal_dir(), self.key()))
    }

    fn lay_out_local(&self, path: &Path) -> Result<LocalDestination, Error> {
        let here = self.look_at_local(path)?;
        if here.make {
            std::fs::create_dir(path).map_err(|error| {
                renkei_config::home::file_error("make directory", path, &error).at("client")
            })?;
        }
        Ok(here)
    }

    fn look_at_local(&self, path: &Path) -> Result<LocalDestination, Error> {
        let found = match std::fs::metadata(path) {
            Ok(data) if data.is_dir() => Found::Dir,
            Ok(_) => Found::Other,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Found::Nothing,
            Err(error) => return Err(renkei_config::home::file_error("look at", path, &error).at("client")),
        };
        let (parent, name) = split_local(path);
        let resolved = self.form()?.resolve(found, name.is_none(), self.job.options.dry_run);
        let resolved = resolved.map_err(|error| Error { subject: self.destination.shown(), ..error })?;
        let targets = resolved.layout.targets(&self.names()?, name.as_deref())?;
        let base = if resolved.layout == CopyLayout::Into { path.to_path_buf() } else { parent };
        Ok(LocalDestination { base, layout: resolved.layout, make: resolved.make, targets })
    }

    fn options(&self, layout: CopyLayout) -> ReceiveOptions {
        let options = self.job.options.clone();
        let delete = options.delete && layout.removes();
        ReceiveOptions { delete, filter: self.filter.clone(), ..options }
    }

    pub(crate) fn local_roots(&self, targets: Vec<RelPath>) -> Result<Vec<Root>, Error> {
        let mut sources = Sources::default();
        let root = |((spec, listed), to): ((&Spec, Option<&Listed>), RelPath)| match spec {
            Spec::Local { path, .. } => {
                let contents = self.job.means_contents(spec);
                let root = sources.root(path, contents, self.job.recursive, to);
                let root = root.map_err(|error| error.at("client"))?;
                Ok(match listed {
                    Some(Listed { path, alone }) => Root { from: path.clone(), alone: *alone, ..root },
                    None => root,
                })
            }
            Spec::Remote(_) => Err(Error::new(Code::UsageInvalid, "copy", spec.shown(), "not a local path")),
        };
        self.parts().zip(targets).map(root).collect()
    }

    fn open_journal(
        &self,
        base: &Path,
    ) -> Result<Option<(Journal, renkei_core::mover::journal::State)>, Error> {
        if self.job.options.dry_run {
            return Ok(None);
        }
        let local = std::path::absolute(base).unwrap_or_else(|_| base.to_path_buf());
        let header = Header {
            version: VERSION,
            job: self.key(),
            boot: boot_id(),
            to: None,
            local: local.as_os_str().as_bytes().to_vec(),
            account: Account::own()?.name,
        };
        let (mut journal, state) =
            Journal::open(&self.context.home()?.journal_dir(), &header, &*unlimited())?;
        journal.name(&state, self.transfer)?;
        Ok(Some((journal, state)))
    }
}

/// The destination as the sending site needs it to detect a copy onto itself; the same before and after it is
/// created.
fn onto(here: &LocalDestination, options: &ReceiveOptions) -> Option<Onto> {
    let there = if here.make { split_local(&here.base).0 } else { here.base.clone() };
    let there = LocalStore::open(&there, AccessMode::ReadOnly).and_then(|store| store.root()).ok()?;
    if here.make { self_copy::tell_within(&*there) } else { self_copy::tell(&*there, options.delete) }
}

fn place_of(path: &EndpointPath) -> Result<Place, Error> {
    let cause = "name a storage: SITE:/STORAGE/PATH";
    path.place.clone().ok_or_else(|| Error::new(Code::BadPath, "copy", path, cause))
}

/// Whether a PoP that may not ask in the user's name, or does not know how, leaves it to the user.
fn wants_the_user(code: Code) -> bool {
    matches!(code, Code::NotAllowed | Code::ProtocolViolation)
}

/// Whether the error is transient: also when a PoP's memory was exhausted as the transfer was opened.
fn is_passing(error: &Error) -> bool {
    let full = error.code == Code::OutOfMemory && error.op == "open";
    full || error.kind() == Kind::Unavailable
        || matches!(error.code, Code::TransferBusy | Code::TooManySessions)
}

/// The transfer that Ctrl-C stops, and its destination site.
static STOPPED_BY_SIGNAL: Mutex<Option<(Stop, String)>> = Mutex::new(None);

/// Ctrl-C and SIGTERM stop the transfer to a site in order; the second one ends the process.
fn stop_on_signal(stop: Stop, to: String) -> Result<(), Error> {
    let signalled =
        || STOPPED_BY_SIGNAL.lock().expect("no thread panics while it holds the lock: a panic aborts");
    if signalled().replace((stop, to)).is_some() {
        return Ok(());
    }
    let handler = move || {
        let Some((stop, to)) = signalled().clone() else { return };
        if stop.stopped().is_some() {
            super::progress::show_keys();
            std::process::exit(130);
        }
        let error = Error::new(Code::Cancelled, "copy", &to, "interrupted").at("client");
        std::thread::spawn(move || stop.stop(error));
    };
    ctrlc::set_handler(handler).map_err(|error| Error::new(Code::SystemCall, "handle signals", "", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_busy_pop_are_retried() {
        let error = |code, op: &str| Error::new(code, op, "data streams", "");
        assert!(is_passing(&error(Code::OutOfMemory, "open")));
        assert!(is_passing(&error(Code::TooManySessions, "greet")));
        assert!(!is_passing(&error(Code::OutOfMemory, "receive")));
        assert!(!is_passing(&error(Code::Cancelled, "open")));
    }
}
