//! Shows how far a transfer is: a bar on a terminal, a line now and then elsewhere.

use super::output::Output;
use crate::mover::progress::{Note, Watch};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use renkei_core::wire::message::Progress;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);
/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A display that runs beside a transfer.
pub(super) struct Display {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Note>>,
    bar: Option<ProgressBar>,
    lines: bool,
}

impl Display {
    /// Starts showing `watch`; shows nothing with `--quiet` or `--json`.
    pub(super) fn start(output: &Output, watch: Watch) -> Self {
        let shown = !output.is_quiet() && !output.is_json();
        let bar = (shown && std::io::stderr().is_terminal()).then(bar);
        if bar.is_some() {
            hide_keys();
        }
        let lines = shown && bar.is_none();
        let (stop, stopped) = channel();
        let shown_bar = bar.clone();
        let thread = std::thread::spawn(move || {
            let (mut notes, mut last) = (Vec::new(), Instant::now());
            let mut position = Position::default();
            let started = Instant::now();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                notes.extend(watch.take_notes());
                let progress = watch.look();
                if let Some(bar) = &shown_bar {
                    show(bar, &progress, &mut position);
                } else if lines && progress.files_found > 0 && last.elapsed() >= LINE_EVERY {
                    last = Instant::now();
                    eprintln!("{}", line(&progress, position.of(&progress), started.elapsed()));
                }
            }
            notes.extend(watch.take_notes());
            notes
        });
        Display { stop, thread, bar, lines }
    }

    /// Says something beside the progress.
    pub(super) fn notice(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("renkei: {text}")),
            None if self.lines => eprintln!("renkei: {text}"),
            None => {}
        }
    }

    /// Ends the display and gives the notes that came up.
    pub(super) fn finish(self) -> Vec<Note> {
        drop(self.stop);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            show_keys();
        }
        self.thread.join().expect("a panic aborts the process")
    }
}

/// How the terminal was before [`hide_keys`].
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Has the terminal not show `^C`: the bar ends at its right edge, and would be pushed out of its line and stay.
fn hide_keys() {
    let mut before = BEFORE.lock().expect("no thread panics with it: a panic aborts");
    if let (None, true, Ok(found)) = (before.as_ref(), in_foreground(), tcgetattr(std::io::stderr())) {
        let mut hidden = found.clone();
        hidden.local_modes.remove(LocalModes::ECHOCTL);
        let _ = tcsetattr(std::io::stderr(), OptionalActions::Now, &hidden);
        *before = Some(found);
    }
}

/// Leaves the terminal as it was; to be called before the process ends early, too.
pub(super) fn show_keys() {
    let before = BEFORE.lock().expect("no thread panics with it: a panic aborts").take();
    if let Some(before) = before.filter(|_| in_foreground()) {
        let _ = tcsetattr(std::io::stderr(), OptionalActions::Now, &before);
    }
}

/// Whoever changes a terminal from the background is stopped.
fn in_foreground() -> bool {
    tcgetpgrp(std::io::stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
}

fn bar() -> ProgressBar {
    let template = "{bar:24} {percent:>3}% {bytes}/{total_bytes} {msg} {binary_bytes_per_sec} ETA {eta}";
    let style = ProgressStyle::with_template(template).expect("the template is sound");
    ProgressBar::new(0).with_style(style)
}

/// How far a transfer is, counting what an earlier run brought or was there already.
#[derive(Default)]
struct Position {
    before: u64,
    is_shown: bool,
}

impl Position {
    fn of(&mut self, progress: &Progress) -> u64 {
        self.before = self.before.max(progress.bytes_done.saturating_sub(progress.bytes_moved));
        (self.before + progress.bytes_moved).min(progress.bytes_found)
    }
}

fn show(bar: &ProgressBar, progress: &Progress, position: &mut Position) {
    if progress.files_found == 0 {
        return;
    }
    bar.set_length(progress.bytes_found);
    bar.set_position(position.of(progress));
    if !std::mem::replace(&mut position.is_shown, true) {
        // What was there before came at no rate.
        bar.reset_eta();
    }
    let more = if progress.walk_done { "" } else { "+" };
    bar.set_message(format!("{}/{}{more} files", progress.files_done, progress.files_found));
}

fn line(progress: &Progress, position: u64, elapsed: Duration) -> String {
    let rate = progress.bytes_moved as f64 / elapsed.as_secs_f64();
    let more = if progress.walk_done { "" } else { " so far" };
    format!(
        "{} of {} files, {} of {}{more}, {}/s",
        progress.files_done,
        progress.files_found,
        HumanBytes(position),
        HumanBytes(progress.bytes_found),
        HumanBytes(rate as u64),
    )
}
