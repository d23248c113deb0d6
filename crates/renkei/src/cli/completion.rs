//! `renkei completion`: the shell's completion script, and the candidates it asks for.
//!
//! The printed script has the shell call renkei itself (with the variable `COMPLETE`), because only renkei knows the
//! sites, the files at them, and the user's transfers. A site that does not answer in time is left out, so that a
//! completion never blocks.

use super::asker::Asker;
use super::connect::{own_site, site_or_place};
use super::many::Many;
use super::output::{Output, print};
use super::{Context, command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::Shells;
use renkei_config::Config;
use renkei_core::entry::EntryKind;
use renkei_core::error::Error;
use renkei_core::wire::message::Request;
use renkei_core::wire::queue::Listed;
use renkei_mover::hex;
use renkei_net::identity::trust::Trust;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::mpsc;
use std::time::Duration;

/// The variable by which the shell's script asks, with the name of the shell.
const ASKS: &str = "COMPLETE";
/// Timeout for a site to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Characters of a transfer's id that are offered; any unique prefix is accepted.
const ID_CHARS: usize = 8;

/// Print a script that completes verbs, options, sites, places and transfers
///
/// The packages install it. By hand: `source <(renkei completion bash)` in ~/.bashrc, `source <(renkei completion zsh)` in
/// ~/.zshrc, `renkei completion fish | source` in ~/.config/fish/config.fish.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// The shells that can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Shell {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

pub(super) fn run(args: &Args, _: &Context) -> Result<u8, Error> {
    let script = script(args.shell).expect("nothing is written but to memory");
    print(script.as_bytes())?;
    Ok(0)
}

/// The script for a shell.
pub(super) fn script(shell: Shell) -> io::Result<String> {
    let name = match shell {
        Shell::Bash => "bash",
        Shell::Zsh => "zsh",
        Shell::Fish => "fish",
    };
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(name).expect("the library knows these shells");
    completer.write_registration(ASKS, "renkei", "renkei", "renkei", &mut script)?;
    if shell == Shell::Bash {
        // Bash would otherwise split SITE:/PATH into three words.
        script.extend(b"COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n");
    }
    // Bash quotes names if it takes them for file names; the other shells do by themselves.
    let script = String::from_utf8_lossy(&script);
    Ok(script.replace("complete -o nospace ", "complete -o nospace -o filenames "))
}

/// Answers a completion request of a shell, and ends the process then.
pub(super) fn answer_shell() {
    let asked = std::env::args_os().scan(false, |is_behind, word| {
        let told = if *is_behind { unquoted(&word) } else { word };
        *is_behind |= told == "--";
        Some(told)
    });
    let here = std::env::current_dir().ok();
    let completer = CompleteEnv::with_factory(|| with_completers(command())).var(ASKS);
    match completer.try_complete(asked, here.as_deref()) {
        Ok(false) => {}
        Ok(true) => std::process::exit(0),
        Err(error) => error.exit(),
    }
}

/// A word without its quoting: shells pass it as typed, with quotes and backslashes.
fn unquoted(word: &OsStr) -> OsString {
    let (mut bytes, mut quote, mut is_escaped) = (Vec::new(), None, false);
    for &byte in word.as_bytes() {
        match (quote, byte) {
            _ if std::mem::take(&mut is_escaped) => bytes.push(byte),
            (None | Some(b'"'), b'\\') => is_escaped = true,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => bytes.push(byte),
        }
    }
    OsString::from_vec(bytes)
}

/// The command with a completer for each argument, by the argument's name.
fn with_completers(command: clap::Command) -> clap::Command {
    let verb = command.get_name().to_owned();
    command.mut_subcommands(with_completers).mut_args(|argument| {
        let name = argument.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
        let completer = match name.as_deref() {
            Some("SOURCE" | "DESTINATION") if verb != "mv" => ArgValueCompleter::new(anywhere),
            Some("PATH" | "PLACE" | "SOURCE" | "DESTINATION" | "LINK") => ArgValueCompleter::new(places),
            Some("SITE") => ArgValueCompleter::new(sites),
            Some("ID") => ArgValueCompleter::new(transfers),
            Some("STORAGE") => ArgValueCompleter::new(storages),
            _ => return argument,
        };
        argument.add(completer)
    })
}

fn context() -> Context {
    Context { output: Output::new(false, true), ..Context::default() }
}

/// The result of `find`, within the timeout.
fn soon(find: impl FnOnce() -> Result<Vec<OsString>, Error> + Send + 'static) -> Vec<OsString> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(find().unwrap_or_default()));
    told.recv_timeout(PATIENCE).unwrap_or_default()
}

fn candidates(found: Vec<OsString>, current: &OsStr) -> Vec<CompletionCandidate> {
    let begins = |name: &OsString| name.as_bytes().starts_with(current.as_bytes());
    found.into_iter().filter(begins).map(CompletionCandidate::new).collect()
}

fn site_names(end: &str) -> Vec<OsString> {
    let Ok(trust) = context().home().and_then(|home| Trust::load(&home)) else { return Vec::new() };
    trust.list().map(|card| format!("{}{end}", card.site).into()).collect()
}

fn sites(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(site_names(""), current)
}

fn storages(current: &OsStr) -> Vec<CompletionCandidate> {
    let config = context().home().and_then(|home| Config::load(&home));
    let names = config.map(|config| config.storage.keys().map(OsString::from).collect());
    candidates(names.unwrap_or_default(), current)
}

fn transfers(current: &OsStr) -> Vec<CompletionCandidate> {
    let ids = soon(|| {
        let context = context();
        let listed = Asker::new(&context, false).transfers(&Listed { ended: true, ..Listed::default() })?;
        Ok(listed.iter().map(|transfer| hex(&transfer.id)[..ID_CHARS].into()).collect())
    });
    candidates(ids, current)
}

/// Places at sites, and local files.
fn anywhere(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(current);
    found.extend(places(current));
    found
}

/// Places at sites: `SITE:/`, then the names in the directory typed so far.
fn places(current: &OsStr) -> Vec<CompletionCandidate> {
    let bytes = current.as_bytes();
    let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else {
        return candidates(site_names(":/"), current);
    };
    let dir = OsString::from_vec(bytes[..=slash].to_vec());
    candidates(soon(move || listed(&dir)), current)
}

/// The names in a directory at a site, as they are typed behind it.
fn listed(dir: &OsStr) -> Result<Vec<OsString>, Error> {
    let context = context();
    let path = match dir.as_bytes() {
        b"/" => site_or_place(format!("{}:/", own_site(&context)?).as_ref(), &context)?,
        _ => site_or_place(dir, &context)?,
    };
    let mut found = Vec::new();
    Many::new(&context).session(&path.site)?.ask_parts(Request::List(path.place.clone()), |part| {
        for entry in part {
            let slash: &[u8] = if entry.kind == EntryKind::Dir { b"/" } else { b"" };
            let bytes = [dir.as_bytes(), entry.path.as_bytes(), slash].concat();
            found.push(OsString::from_vec(bytes));
        }
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_with_completers_is_valid() {
        with_completers(command()).debug_assert();
    }

    #[test]
    fn words_are_split_as_by_the_shell() {
        for (typed, meant) in [
            ("a\\ b/", "a b/"),
            ("'a b", "a b"),
            ("\"it's\\\" \"x", "it's\" x"),
            ("\\[x\\]", "[x]"),
            ("plain:/x", "plain:/x"),
        ] {
            assert_eq!(unquoted(typed.as_ref()), meant, "{typed}");
        }
    }

    #[test]
    fn each_shell_gets_a_completion_script() {
        for (shell, word) in
            [(Shell::Bash, "COMP_WORDBREAKS"), (Shell::Zsh, "compdef"), (Shell::Fish, "complete ")]
        {
            let script = script(shell).unwrap();
            assert!(script.contains(word) && script.contains("COMPLETE"), "{script}");
        }
    }
}
