//! Runs one copy or sync: prepares it, opens the sessions, reports.

use super::copy_plan::{Direction, Spec, direction, form_of, source_names};
use super::detach::hand_over;
use super::files_from::{self, Listed};
use super::intent::Intent;
use super::options::{Common, Verb};
use super::progress::Display;
use super::report;
use super::signals::stop_on_signal;
use crate::cli::Context;
use crate::cli::connect;
use crate::cli::glob;
use crate::cli::volume_path::Namespace;
use renkei_core::error::{Code, Error};
use renkei_core::mover::filter::Filter;
use renkei_core::mover::layout::{CopyForm, CopyLayout};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::copy::{CopySender, OpenCopy, check_sources};
use renkei_core::wire::message::{
    EntryFailure, Existing, OpenSend, ReceiveOptions, Request, Source, Summary, TransferId,
};
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_mover::fd_limit::raise_limit;
use renkei_mover::progress::{Note, Watch};
use renkei_mover::{Stop, fresh_id};
use renkei_site::transfer::cleanup;
use std::ffi::OsString;
use std::fs::File;
use std::time::{Duration, Instant};

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
    pub(super) fn means_contents(&self, source: &Spec) -> bool {
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

/// A transfer in progress, over all its attempts.
pub(crate) struct Run<'a> {
    pub(crate) job: &'a Job,
    pub(crate) context: &'a Context,
    pub(crate) sources: Vec<Spec>,
    pub(super) destination: Spec,
    pub(crate) direction: Direction,
    pub(super) dialler: Dialler,
    pub(crate) transfer: TransferId,
    pub(crate) watch: Watch,
    pub(crate) stop: Stop,
    /// The filter on names of the sources.
    pub(super) filter: Filter,
    /// The listed names below the only source, with `--files-from`.
    pub(super) listed: Option<Vec<Listed>>,
    /// The site of the PoP to whose buffer it is sent, in place of its destination.
    pub(crate) buffer: Option<SiteName>,
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
        let transfer = job.common.detach.id.map_or_else(fresh_id, Ok)?;
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
            buffer: None,
        })
    }

    /// Redirects the sources to the buffer of a PoP.
    pub(crate) fn send_to_buffer(&mut self, home: &SiteName) -> Result<(), Error> {
        self.dialler = connect::dialler(self.context, &[home])?;
        self.buffer = Some(home.clone());
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

    /// Opens a session with a site.
    pub(super) fn connect(&self, site: &SiteName, ahead: &DialHints) -> Result<Session, Error> {
        let session = self.dialler.connect_ahead(site, ahead)?;
        connect::keep_revocations(&self.context.home()?, &session);
        Ok(session)
    }

    /// Tries once; `connected` is set when the sites were reached.
    pub(super) fn attempt(&self, connected: &mut bool) -> Result<Summary, Error> {
        let streams = self.job.common.max_streams();
        let mut open = |site: &SiteName, sends: bool, request: Option<Request>| {
            let session = self.connect(site, &DialHints { streams, sends, request })?;
            *connected = true;
            Ok::<_, Error>(session)
        };
        if let Some(home) = &self.buffer {
            return self.up_to_buffer(open(home, true, None)?);
        }
        match &self.direction {
            Direction::Up(site) => {
                // Sources that cannot be opened are reported before the destination is touched.
                let roots = self.local_roots(self.names()?)?;
                let copy = self.open_copy()?;
                let request = Request::OpenCopy { copy: copy.clone(), by: CopySender::Asker };
                self.up(open(site, true, Some(request))?, &copy, roots)
            }
            Direction::Down(site) => {
                let request = self.likely_open_send();
                self.down(open(site, false, request.clone())?, request)
            }
            Direction::Between(from, to) => self.between(from, to, connected),
        }
    }

    pub(super) fn compares_content(&self) -> bool {
        self.job.options.existing == Existing::SameContent
    }

    pub(super) fn open_send(&self, offers: bool, targets: Vec<RelPath>) -> Result<OpenSend, Error> {
        let source = |((spec, listed), to): ((&Spec, Option<&Listed>), RelPath)| {
            let mut from = spec.place()?;
            if let Some(listed) = listed {
                from.path = from.path.join(&listed.path)?;
            }
            Ok::<_, Error>(Source { from, to, alone: listed.is_some_and(|listed| listed.alone) })
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
    pub(super) fn open_copy(&self) -> Result<OpenCopy, Error> {
        Ok(OpenCopy {
            transfer: self.transfer,
            job: self.key(),
            form: self.form()?,
            beside: self.beside()?,
            to: self.destination.place()?,
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

    pub(super) fn form(&self) -> Result<CopyForm, Error> {
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
    pub(super) fn parts(&self) -> Box<dyn Iterator<Item = (&Spec, Option<&Listed>)> + '_> {
        match (&self.listed, self.sources.first()) {
            (Some(listed), Some(source)) => Box::new(listed.iter().map(move |one| (source, Some(one)))),
            _ => Box::new(self.sources.iter().map(|source| (source, None))),
        }
    }

    /// Keeps the marker of a copy whose source becomes its destination, which a retry must know.
    pub(super) fn keep_intent(&self, layout: CopyLayout) -> Result<Option<File>, Error> {
        let becomes = layout == CopyLayout::As && self.job.recursive && !self.job.options.dry_run;
        self.intent()?.keep(becomes)
    }

    pub(super) fn intent(&self) -> Result<Intent, Error> {
        Ok(Intent::new(&self.context.home()?.journal_dir(), self.key()))
    }
}
