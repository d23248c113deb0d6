//! The command line: one file per verb.
//!
//! A verb is a `clap` struct and a function `run(&args, &context) -> Result<u8, Error>` that returns the exit
//! status. Its output is one serialisable struct (see [`output`]), so that text and `--json` cannot differ.
//! To add a verb: a file, a line in `Command`, a line in `Command::run`.
//! The files here are used by the verbs of all folders: `connect` opens sessions, `asker` sends requests to the PoP that
//! has the queue, `many` goes on after the failure of a path, `volume_path` knows which paths are in volumes;
//! `chosen_identity` finds the credential that a verb works with, with `login_origin` and `pop_doors`.

mod admin;
mod asker;
mod chosen_identity;
mod completion;
mod confirm;
mod connect;
mod context;
mod copy;
mod docs;
mod doctor;
mod files;
mod glob;
mod grid;
mod lab;
mod login;
mod login_origin;
mod man;
mod many;
mod mount;
pub mod output;
mod path_rights;
mod pop_doors;
mod quantity;
mod queue;
mod remedy;
mod route;
mod s3;
mod time;
mod token;
mod volume;
mod volume_path;

pub use context::Context;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use output::Output;
use renkei_core::error::{Code, Error};
use renkei_core::queue::Change;
use renkei_net::identity::trust::former_names;
use std::path::PathBuf;
use std::process::ExitCode;

/// A point of presence for research data: moves, shares, stages and serves data between sites.
#[derive(Debug, Parser)]
#[command(name = "renkei", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options that every verb takes, before or after it.
#[derive(Clone, Debug, clap::Args)]
pub struct Global {
    /// Directory of the PoP or user; also RENKEI_DIR. Default: /etc/renkei and /var/lib/renkei as root, the XDG
    /// folders otherwise
    #[arg(long, global = true, help_heading = "Global options", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Which of your identities: each has a login of its own; also RENKEI_IDENTITY. Default: the one without a name
    #[arg(long, global = true, help_heading = "Global options", value_name = "NAME")]
    identity: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// Print only the requested output
    #[arg(short, long, global = true, help_heading = "Global options")]
    quiet: bool,
    /// Print more; twice for even more
    #[arg(short, long, global = true, help_heading = "Global options", action = clap::ArgAction::Count)]
    verbose: u8,
}

/// The verbs.
#[derive(Debug, Subcommand)]
enum Command {
    Init(admin::init::Args),
    Serve(admin::serve::Args),
    Site(admin::site::Args),
    Agent(admin::agent::Args),
    Storage(admin::storage::Args),
    Volume(volume::Args),
    Rule(queue::rule::Args),
    Trust(admin::trust::Args),
    Invite(admin::invite::Args),
    Join(admin::join::Args),
    Map(admin::map::Args),
    Issuer(token::issuer::Args),
    Login(login::Args),
    Logout(login::logout::Args),
    Token(token::Args),
    Link(files::link::Args),
    S3(s3::Args),
    Cp(copy::cp::Args),
    Sync(copy::sync::Args),
    Ls(files::ls::Args),
    Stat(files::stat::Args),
    Find(files::find::Args),
    Mkdir(files::mkdir::Args),
    Rm(files::rm::Args),
    Rmdir(files::rmdir::Args),
    Chmod(files::chmod::Args),
    Ln(files::ln::Args),
    Mv(files::mv::Args),
    Cat(files::cat::Args),
    Put(files::put::Args),
    Du(files::du::Args),
    Where(volume::replica_locations::Args),
    Replicate(volume::replicate::Args),
    Evict(volume::evict::Args),
    Verify(volume::verify::Args),
    Df(files::df::Args),
    Checksum(files::checksum::Args),
    Whoami(login::whoami::Args),
    Status(admin::status::Args),
    Console(admin::console::Args),
    Doctor(doctor::Args),
    Transfers(queue::transfers::Args),
    Why(queue::why::Args),
    /// Give queued transfers up; one that runs is stopped
    Cancel(queue::change::Args),
    /// Hold queued transfers back; one that runs is stopped and resumes at the block
    Pause(queue::change::Args),
    /// Let transfers that were paused go on
    Resume(queue::change::Args),
    /// Try queued transfers again now, also those that failed or were cancelled
    Retry(queue::change::Args),
    Wait(queue::wait::Args),
    Buffer(queue::buffer::Args),
    Unfinished(queue::unfinished::Args),
    Route(route::Args),
    Revoke(admin::revoke::Args),
    Renew(admin::renew::Args),
    Backup(admin::backup::Args),
    Restore(admin::restore::Args),
    Lab(lab::Args),
    Mount(mount::Args),
    MountCredential(mount::credential::Args),
    Umount(mount::umount::Args),
    Completion(completion::Args),
    #[command(hide = true)]
    Docs(docs::Args),
}

impl Command {
    fn run(&self, context: &Context) -> Result<u8, Error> {
        match self {
            Command::Init(args) => admin::init::run(args, context),
            Command::Serve(args) => admin::serve::run(args, context),
            Command::Site(args) => admin::site::run(args, context),
            Command::Agent(args) => admin::agent::run(args, context),
            Command::Storage(args) => admin::storage::run(args, context),
            Command::Volume(args) => volume::run(args, context),
            Command::Rule(args) => queue::rule::run(args, context),
            Command::Trust(args) => admin::trust::run(args, context),
            Command::Invite(args) => admin::invite::run(args, context),
            Command::Join(args) => admin::join::run(args, context),
            Command::Map(args) => admin::map::run(args, context),
            Command::Issuer(args) => token::issuer::run(args, context),
            Command::Login(args) => login::run(args, context),
            Command::Logout(args) => login::logout::run(args, context),
            Command::Token(args) => token::run(args, context),
            Command::Link(args) => files::link::run(args, context),
            Command::S3(args) => s3::run(args, context),
            Command::Cp(args) => copy::cp::run(args, context),
            Command::Sync(args) => copy::sync::run(args, context),
            Command::Ls(args) => files::ls::run(args, context),
            Command::Stat(args) => files::stat::run(args, context),
            Command::Find(args) => files::find::run(args, context),
            Command::Mkdir(args) => files::mkdir::run(args, context),
            Command::Rm(args) => files::rm::run(args, context),
            Command::Rmdir(args) => files::rmdir::run(args, context),
            Command::Chmod(args) => files::chmod::run(args, context),
            Command::Ln(args) => files::ln::run(args, context),
            Command::Mv(args) => files::mv::run(args, context),
            Command::Cat(args) => files::cat::run(args, context),
            Command::Put(args) => files::put::run(args, context),
            Command::Du(args) => files::du::run(args, context),
            Command::Where(args) => volume::replica_locations::run(args, context),
            Command::Replicate(args) => volume::replicate::run(args, context),
            Command::Evict(args) => volume::evict::run(args, context),
            Command::Verify(args) => volume::verify::run(args, context),
            Command::Df(args) => files::df::run(args, context),
            Command::Checksum(args) => files::checksum::run(args, context),
            Command::Status(args) => admin::status::run(args, context),
            Command::Console(args) => admin::console::run(args, context),
            Command::Doctor(args) => doctor::run(args, context),
            Command::Transfers(args) => queue::transfers::run(args, context),
            Command::Why(args) => queue::why::run(args, context),
            Command::Cancel(args) => queue::change::run(Change::Cancel, args, context),
            Command::Pause(args) => queue::change::run(Change::Pause, args, context),
            Command::Resume(args) => queue::change::run(Change::Resume, args, context),
            Command::Retry(args) => queue::change::run(Change::Retry, args, context),
            Command::Wait(args) => queue::wait::run(args, context),
            Command::Buffer(args) => queue::buffer::run(args, context),
            Command::Unfinished(args) => queue::unfinished::run(args, context),
            Command::Route(args) => route::run(args, context),
            Command::Whoami(args) => login::whoami::run(args, context),
            Command::Revoke(args) => admin::revoke::run(args, context),
            Command::Renew(args) => admin::renew::run(args, context),
            Command::Backup(args) => admin::backup::run(args, context),
            Command::Restore(args) => admin::restore::run(args, context),
            Command::Lab(args) => lab::run(args, context),
            Command::Mount(args) => mount::run(args, context),
            Command::MountCredential(args) => mount::credential::run(args, context),
            Command::Umount(args) => mount::umount::run(args, context),
            Command::Completion(args) => completion::run(args, context),
            Command::Docs(args) => docs::run(args, context),
        }
    }
}

/// The whole command with all verbs, for man pages and completions.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    remedy::find_verb_by(verb);
    completion::answer_shell();
    let words: Vec<_> = std::env::args_os().collect();
    let words = mount::fstab::translated(&words).unwrap_or(words);
    let words = files::find::translated(words);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output::new(cli.global.json, cli.global.quiet);
    if !matches!(cli.command, Command::Serve(_) | Command::Agent(_)) {
        let lives_on = matches!(&cli.command, Command::Mount(args) if args.stays());
        renkei_config::telemetry::start_for_command(cli.global.verbose, lives_on);
    }
    let context =
        Context { dir: cli.global.dir, identity: cli.global.identity, output, verbose: cli.global.verbose };
    if let Ok(home) = context.home() {
        // Without permission to read it, commands that need more report the error.
        let installed = former_names::install(&home);
        if let Some(error) = installed.as_ref().err().filter(|error| error.code != Code::PermissionDenied) {
            return ExitCode::from(context.output.error(error));
        }
        remedy::read_by(home, context.option());
    }
    let outcome = cli.command.run(&context);
    ExitCode::from(outcome.unwrap_or_else(|error| context.output.error(&error)))
}

/// The verb of this process's command line: `storage add`.
fn verb() -> String {
    let (mut at, mut names) = (Cli::command(), Vec::new());
    for word in std::env::args_os().skip(1) {
        if let Some(below) = at.find_subcommand(&word).cloned() {
            names.push(below.get_name().to_owned());
            at = below;
        }
    }
    names.join(" ")
}

/// Help and version go to standard output; an error in the arguments is reported as every other error.
fn usage(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    // A command without its subcommand is answered by its help.
    let answered = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json;
    if answered || !error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    ExitCode::from(Output::new(json, false).error(&misuse(error)))
}

/// An error in the arguments, with the parser's message.
fn misuse(error: &clap::Error) -> Error {
    let text = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing".into(),
        _ => error.render().to_string(),
    };
    let (mut cause, mut usage) = (Vec::new(), "");
    for part in text.split("\n\n").map(str::trim) {
        match part.strip_prefix("Usage: ") {
            Some(found) => usage = found,
            None if part.starts_with("For more information") => {}
            None => cause.push(joined(part.trim_start_matches("error: ").trim_start_matches("tip: "))),
        }
    }
    if !usage.is_empty() {
        cause.push(format!("usage: {}", joined(usage)));
    }
    Error::new(Code::UsageInvalid, "parse arguments", "", cause.join("; "))
}

/// Joins lines into one.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn global_options_go_before_and_after_the_verb() {
        for line in
            [["renkei", "--dir", "/x", "whoami", "--json"], ["renkei", "--json", "whoami", "--dir", "/x"]]
        {
            let cli = Cli::try_parse_from(line).unwrap();
            assert!(cli.global.json && cli.global.dir == Some("/x".into()));
        }
    }

    #[test]
    fn a_mistake_is_reported_in_one_line() {
        let cause = |line: &str| misuse(&Cli::try_parse_from(line.split(' ')).unwrap_err()).cause;
        let unknown = cause("renkei cp --recursiv a b");
        assert!(unknown.starts_with("unexpected argument '--recursiv' found; "), "{unknown}");
        assert!(unknown.contains("'--recursive'") && unknown.contains("; usage: renkei cp "), "{unknown}");
        let missing = cause("renkei cp");
        assert!(missing.contains("required arguments were not provided: <SOURCE>"), "{missing}");
        assert_eq!(cause("renkei trust"), "a command is missing");
        for line in
            ["renkei frobnicate", "renkei cp --limit x a b", "renkei ls -R -d kek:", "renkei init --listen x"]
        {
            let cause = cause(line);
            assert!(!cause.contains('\n') && !cause.contains("error:") && !cause.contains("tip:"), "{cause}");
        }
    }

    #[test]
    fn every_verb_and_option_is_explained() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let built_in = ["help", "version"].contains(&argument.get_id().as_str());
                assert!(built_in || argument.get_help().is_some(), "{} {argument}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}
