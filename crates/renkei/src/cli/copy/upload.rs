//! `--detach` with local files: they go to the buffer of the user's own PoP, which forwards them.
//!
//! Space is reserved first, waiting if necessary; then the files are sent as to any other place; then the transfer is
//! submitted, with the buffer as its source. Until that is done a marker beside the journals has the transfer's id,
//! so that the same command resumes, after a lost connection as after a crash.

use super::copy_plan::Direction;
use super::detach::hand_in;
use super::options::{Detach, Verb};
use super::progress::Display;
use super::transfer::Run;
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::connect::own_site;
use renkei_catalogue::{hex_id, parse_id};
use renkei_config::home::{make_dir, read_text, write_file};
use renkei_core::buffer::source;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::mover::filter::Filter;
use renkei_core::path::{SiteName, first_names};
use renkei_core::wire::buffer::{Room, RoomState};
use renkei_core::wire::message::{Source, TransferId};
use renkei_core::wire::queue::{MAX_ORIGIN_BYTES, Submission, Terms};
use renkei_mover::Stop;
use renkei_mover::walk::Root;
use renkei_store::Detail;
use renkei_store::tree::disk_usage;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval of reservation requests while waiting.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Sends the files to the buffer, submits the transfer and prints its id.
pub(crate) fn hand_over(mut run: Run<'_>, detach: &Detach, context: &Context) -> Result<u8, Error> {
    let home = own_site(context)?;
    if run.direction == Direction::Up(home.clone()) && detach.after.is_empty() {
        // The buffer's site is the destination: a direct copy leaves nothing to do later.
        return run.to_end();
    }
    let marker = Marker::new(&run, context)?;
    let fresh = run.transfer;
    if let Some(earlier) = marker.read()?.filter(|_| detach.id.is_none()) {
        run.transfer = earlier;
        match send_and_hand_in(&mut run, detach, &home, &marker) {
            // It was submitted, and has ended since: a new transfer is made.
            Err(error) if error.code == Code::SubmissionConflict => marker.forget(),
            outcome => return outcome,
        }
    }
    run.transfer = fresh;
    send_and_hand_in(&mut run, detach, &home, &marker)
}

fn send_and_hand_in(
    run: &mut Run<'_>,
    detach: &Detach,
    home: &SiteName,
    marker: &Marker,
) -> Result<u8, Error> {
    let mut asker = Asker::new(run.context, false);
    let terms = Terms { origin: origin(run), ..detach.terms(&mut asker, run.context)? };
    let submission = Submission { terms, ..submission(run, home)? };
    let bytes = bytes_of(&run.local_roots(run.names()?)?, run.job.recursive, &run.stop)?;
    marker.write(&run.transfer)?;
    if !reserve(run, &mut asker, bytes, home, !detach.no_wait)? {
        run.send_to_buffer(home)?;
        if let Some(status) = upload(run, home)? {
            return Ok(status);
        }
    }
    let status = hand_in(&mut asker, &submission, run.context)?;
    marker.forget();
    Ok(status)
}

/// The submission of the transfer from the buffer.
fn submission(run: &Run<'_>, home: &SiteName) -> Result<Submission, Error> {
    let from = |(number, to)| Source { from: source(&run.transfer, number), to, alone: false };
    let sources = run.names()?.into_iter().enumerate().map(from).collect();
    let mut submission = run.submission_from(home, run.send_of(false, sources))?;
    if run.job.verb == Verb::Cp {
        // Filtered files are not sent to the buffer, where sources have other names.
        submission.set_filter(&Filter::default());
    }
    Ok(submission)
}

/// Requests space until it is granted; true if the transfer was submitted already.
fn reserve(
    run: &Run<'_>,
    asker: &mut Asker<'_>,
    bytes: u64,
    home: &SiteName,
    waits: bool,
) -> Result<bool, Error> {
    let (mut told, mut lost_since) = (String::new(), None);
    loop {
        run.stop.check()?;
        match asker.reserve(run.transfer, bytes, waits) {
            Ok(Room { standing: RoomState::Granted, .. }) => return Ok(false),
            Ok(Room { standing: RoomState::HandedIn, .. }) => return Ok(true),
            Ok(room) => {
                lost_since = None;
                let text = room.waits(home).unwrap_or_default();
                if !waits {
                    return Err(Error::new(Code::BufferFull, "reserve", home, text).at(home.as_str()));
                }
                if text != told {
                    run.context.output.notice(&text);
                    told = text;
                }
            }
            Err(error) if error.kind() == Kind::Unavailable && !told.is_empty() => {
                let since = *lost_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= run.job.common.retry_for() {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// Sends the files; returns an exit status if some failed, and then nothing is submitted.
fn upload(run: &Run<'_>, home: &SiteName) -> Result<Option<u8>, Error> {
    let started = Instant::now();
    let display = Display::start(&run.context.output, run.watch.clone());
    let ended = run.try_until_done(&display);
    let notes = display.finish();
    let summary = ended.map_err(|error| match error.code {
        Code::NoSpace | Code::QuotaExceeded if error.side == home.as_str() => {
            Error { code: Code::BufferDiskFull, ..error }
        }
        _ => error,
    })?;
    if summary.failed == 0 {
        if summary.special > 0 {
            let text = format!("{} devices, FIFOs or sockets were passed over", summary.special);
            run.context.output.notice(&text);
        }
        return Ok(None);
    }
    let text =
        "nothing was submitted; run the command again within a day when this is corrected, and it resumes";
    run.context.output.notice(text);
    run.report(&summary, notes, started.elapsed()).map(Some)
}

/// Bytes of content to be sent, hard links counted once.
fn bytes_of(roots: &[Root], recursive: bool, stop: &Stop) -> Result<u64, Error> {
    let mut bytes = 0_u64;
    for root in roots {
        let size = size_of(root, recursive, stop).map_err(|error| error.at("client"))?;
        bytes = bytes.saturating_add(size);
    }
    Ok(bytes)
}

fn size_of(root: &Root, recursive: bool, stop: &Stop) -> Result<u64, Error> {
    let usage = |dir| disk_usage(&dir, &|| stop.check()).map(|usage| usage.bytes);
    let Some(name) = root.from.name() else { return usage(root.dir.clone()) };
    match root.dir.entry(name, Detail::Basic)?.0.kind {
        EntryKind::Dir if recursive => usage(root.dir.child(name)?),
        EntryKind::File { stamp, .. } => Ok(stamp.size),
        _ => Ok(0),
    }
}

/// The description of the sources where they come from.
fn origin(run: &Run<'_>) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let contents = if run.job.verb == Verb::Sync { "/" } else { "" };
    let names = run.sources.iter().map(|source| format!("{}{contents}", source.shown()));
    let whole = format!("[{host}] {}", first_names(names));
    let end = (0..=MAX_ORIGIN_BYTES.min(whole.len())).rev().find(|end| whole.is_char_boundary(*end));
    whole[..end.unwrap_or(0)].to_owned()
}

/// The file that has the transfer's id until it is submitted.
struct Marker(PathBuf);

impl Marker {
    fn new(run: &Run<'_>, context: &Context) -> Result<Self, Error> {
        Ok(Marker(context.home()?.journal_dir().join(format!("{:016x}.buffered", run.key()))))
    }

    fn read(&self) -> Result<Option<TransferId>, Error> {
        Ok(read_text(&self.0, 100)?.and_then(|text| parse_id(text.trim())))
    }

    fn write(&self, id: &TransferId) -> Result<(), Error> {
        make_dir(self.0.parent().unwrap_or(&self.0), 0o700)?;
        write_file(&self.0, format!("{}\n", hex_id(id)).as_bytes(), 0o600)
    }

    fn forget(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
