//! Progress display of a transfer: a bar on a terminal, an occasional line elsewhere.

use crate::cli::output::Output;
use crate::cli::output::print;
use crate::cli::quantity::{counted, human, span};
use crate::cli::queue::pace::rate;
use indicatif::{ProgressBar, ProgressStyle};
use renkei_core::wire::message::Progress;
use renkei_mover::progress::{Note, Watch};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Update interval of the bar.
const TICK: Duration = Duration::from_millis(200);
/// Interval of lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// After so long without progress the silence is shown in place of a rate.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// A display that runs beside a transfer.
pub(crate) struct Display {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Note>>,
    bar: Option<ProgressBar>,
    lines: bool,
}

impl Display {
    /// Starts showing `watch`; shows nothing with `--quiet` or `--json`.
    pub(crate) fn start(output: &Output, watch: Watch) -> Self {
        let shown = !output.is_quiet() && !output.is_json();
        let bar = (shown && std::io::stderr().is_terminal()).then(bar);
        if bar.is_some() {
            hide_keys();
        }
        let lines = shown && bar.is_none();
        let (stop, stopped) = channel();
        let shown_bar = bar.clone();
        let thread = std::thread::spawn(move || {
            let mut shown = Shown { bar: shown_bar, lines, notes: Vec::new(), rate: RateEstimate::new() };
            let mut last = Instant::now();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                shown.take_notes(&watch);
                shown.look(&watch.look(), &mut last);
            }
            shown.take_notes(&watch);
            shown.notes
        });
        Display { stop, thread, bar, lines }
    }

    /// Prints a message beside the progress.
    pub(crate) fn notice(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("renkei: {text}")),
            None if self.lines => eprintln!("renkei: {text}"),
            None => {}
        }
    }

    /// Ends the display and returns the notes that accumulated.
    pub(crate) fn finish(self) -> Vec<Note> {
        drop(self.stop);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            show_keys();
        }
        self.thread.join().expect("a panic aborts the process")
    }
}

/// The terminal settings before [`hide_keys`].
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Disables the echo of `^C`: the bar ends at the right edge, and the echo would wrap it and leave it behind.
fn hide_keys() {
    let mut before = BEFORE.lock().expect("no thread panics with it: a panic aborts");
    if let (None, true, Ok(found)) = (before.as_ref(), in_foreground(), tcgetattr(std::io::stderr())) {
        let mut hidden = found.clone();
        hidden.local_modes.remove(LocalModes::ECHOCTL);
        let _ = tcsetattr(std::io::stderr(), OptionalActions::Now, &hidden);
        *before = Some(found);
    }
}

/// Restores the terminal settings; to be called before the process exits early, too.
pub(crate) fn show_keys() {
    let before = BEFORE.lock().expect("no thread panics with it: a panic aborts").take();
    if let Some(before) = before.filter(|_| in_foreground()) {
        let _ = tcsetattr(std::io::stderr(), OptionalActions::Now, &before);
    }
}

/// A process that changes a terminal from the background is stopped (SIGTTOU).
fn in_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}% {msg}").expect("the template is sound");
    ProgressBar::new(0).with_style(style)
}

/// The state of the display's thread.
struct Shown {
    bar: Option<ProgressBar>,
    lines: bool,
    notes: Vec<Note>,
    rate: RateEstimate,
}

impl Shown {
    /// Collects new notes; the names of files that arrived are printed and not kept.
    fn take_notes(&mut self, watch: &Watch) {
        let mut names = String::new();
        for note in watch.take_notes() {
            match note {
                Note::Arrived(path) => names.extend([&path.to_string(), "\n"]),
                note => self.notes.push(note),
            }
        }
        if names.is_empty() {
            return;
        }
        let print_names = || drop(print(names.as_bytes()));
        match &self.bar {
            Some(bar) => bar.suspend(print_names),
            None => print_names(),
        }
    }

    fn look(&mut self, progress: &Progress, last: &mut Instant) {
        if progress.files_found == 0 {
            return;
        }
        self.rate.see(progress, Instant::now());
        match &self.bar {
            Some(bar) => self.rate.show(bar, progress),
            None if self.lines && last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{}", self.rate.text(progress, self.rate.mean_rate()));
            }
            None => {}
        }
    }
}

/// The progress of a transfer, including bytes of an earlier run or already there.
struct RateEstimate {
    started: Instant,
    before: u64,
    moved: u64,
    is_shown: bool,
    /// The values at the last change, and its time.
    last: (u64, u64),
    changed: Instant,
    silence: Duration,
}

impl RateEstimate {
    fn new() -> Self {
        let now = Instant::now();
        let silence = Duration::ZERO;
        RateEstimate {
            started: now,
            before: 0,
            moved: 0,
            is_shown: false,
            last: (0, 0),
            changed: now,
            silence,
        }
    }

    fn see(&mut self, progress: &Progress, now: Instant) {
        self.before = self.before.max(progress.bytes_done.saturating_sub(progress.bytes_moved));
        self.moved = progress.bytes_moved;
        let seen = (progress.bytes_moved, progress.files_done);
        if seen != self.last {
            (self.last, self.changed) = (seen, now);
        }
        self.silence = now - self.changed;
    }

    fn position(&self, progress: &Progress) -> u64 {
        (self.before + progress.bytes_moved).min(progress.bytes_found)
    }

    fn mean_rate(&self) -> u64 {
        rate(self.moved, self.started.elapsed()).unwrap_or(0)
    }

    fn show(&mut self, bar: &ProgressBar, progress: &Progress) {
        bar.set_length(progress.bytes_found);
        bar.set_position(self.position(progress));
        if !std::mem::replace(&mut self.is_shown, true) {
            // Bytes already there do not count for the rate.
            bar.reset_eta();
        }
        bar.set_message(self.text(progress, bar.per_sec() as u64));
    }

    fn text(&self, progress: &Progress, rate: u64) -> String {
        let position = self.position(progress);
        let more = if progress.walk_done { "" } else { "+" };
        let (done, found) = (progress.files_done, progress.files_found);
        let left = progress.bytes_found - position;
        let pace = match self.silence {
            silence if silence >= SILENT_AFTER && left > 0 => {
                format!("no data for {}", span(silence))
            }
            silence if silence >= SILENT_AFTER => format!("storing the last files, {}", span(silence)),
            _ if rate > 0 && progress.walk_done => {
                format!("{}/s ETA {}", human(rate), span(Duration::from_secs(left / rate)))
            }
            _ => format!("{}/s", human(rate)),
        };
        let found = counted(format_args!("{found}{more}"), "file", "files");
        format!("{}/{}{more} {done}/{found} {pace}", human(position), human(progress.bytes_found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_shown_in_place_of_a_fading_rate() {
        let mut rate = RateEstimate::new();
        let now = rate.started;
        let progress = Progress {
            files_found: 2,
            bytes_found: 10 << 20,
            bytes_moved: 2 << 20,
            bytes_done: 3 << 20,
            walk_done: true,
            ..Progress::default()
        };
        rate.see(&progress, now + Duration::from_secs(1));
        assert_eq!(rate.text(&progress, 1 << 20), "3.0M/10M 0/2 files 1.0M/s ETA 7 s");
        rate.see(&progress, now + Duration::from_secs(6));
        assert_eq!(rate.text(&progress, 1 << 20), "3.0M/10M 0/2 files no data for 5 s");
        let whole = Progress { bytes_moved: 10 << 20, ..progress };
        rate.see(&whole, now + Duration::from_secs(7));
        rate.see(&whole, now + Duration::from_secs(11));
        assert_eq!(rate.text(&whole, 1), "10M/10M 0/2 files storing the last files, 4 s");
        assert!(rate.text(&Progress { walk_done: false, ..progress }, 5).starts_with("3.0M/10M+ 0/2+ files"));
    }
}
