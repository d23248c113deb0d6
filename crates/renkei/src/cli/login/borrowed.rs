//! Logins with an identity of another kind: a token, a proxy, a Kerberos ticket, a login at a provider.

use super::Args;
use crate::cli::Context;
use crate::cli::chosen_identity::with_environment;
use crate::cli::login_origin::{self, LoginOrigin, Refreshed};
use crate::cli::pop_doors::{doors, take};
use renkei_core::error::{Code, Error};
use renkei_net::identity::borrowed::device::{Prompt, Provider};
use renkei_net::identity::borrowed::discovery::{Found, Kinds, proxy_file, ticket, token, token_file};
use renkei_net::identity::kerberos;
use renkei_net::identity::login::LoggedIn;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest token read from standard input.
const MAX_INPUT_BYTES: u64 = 64 << 10;

/// Logs in, and records how.
pub(super) fn login(args: &Args, context: &Context) -> Result<LoggedIn, Error> {
    let home = context.home()?;
    let doors = doors(&home, args.at.as_deref())?;
    let (found, mut made) = match (&args.oidc, &args.token, &args.proxy) {
        _ if args.kerberos => (ticket(kerberos::held(context.now())?), LoginOrigin::default()),
        (Some(issuer), _, _) => at_provider(args, issuer)?,
        (_, Some(file), _) => (found_token(file.as_deref(), context)?, LoginOrigin::default()),
        (_, _, Some(Some(file))) => (proxy_file(&absolute(file)?)?, LoginOrigin::default()),
        _ => (found(Kinds::Proxy, context)?, LoginOrigin::default()),
    };
    let got = take(&doors, &found.shown()?, &home, &home.user_credential(), context.now())?;
    made.origin = Some(found.origin);
    made.at = args.at.clone();
    login_origin::keep(&home, &made)?;
    Ok(got)
}

/// The token of a file, of standard input, or the one that is found.
fn found_token(file: Option<&Path>, context: &Context) -> Result<Found, Error> {
    let Some(file) = file else { return found(Kinds::Token, context) };
    if file != Path::new("-") {
        return token_file(&absolute(file)?);
    }
    let mut text = String::new();
    let read = io::stdin().take(MAX_INPUT_BYTES).read_to_string(&mut text);
    read.map_err(|error| Error::new(Code::UsageInvalid, "read token", "standard input", error))?;
    Ok(token(text.trim().to_owned(), "standard input".into(), true))
}

fn absolute(file: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(file)
        .map_err(|error| Error::new(Code::UsageInvalid, "find identity", file.display(), error))
}

fn found(kinds: Kinds, context: &Context) -> Result<Found, Error> {
    let named = with_environment(|machine| machine.named(kinds))?;
    let found = named.or_else(|| with_environment(|machine| machine.lying_about(kinds, context.now())));
    let none = || {
        Error::new(Code::NoSuchIdentity, "find identity", "client", "neither a variable nor a file has one")
    };
    found.ok_or_else(none)
}

/// Logs in at a provider; the prompt goes to standard error, so that `--json` prints one object.
fn at_provider(args: &Args, issuer: &str) -> Result<(Found, LoginOrigin), Error> {
    let provider = Provider::find(issuer, &args.client)?;
    let prompt = provider.begin(&args.scope, args.audience.as_deref())?;
    show(&prompt);
    let tokens = provider.wait(&prompt, &std::thread::sleep)?;
    let refreshed =
        tokens.refresh.map(|token| Refreshed { issuer: issuer.into(), client: args.client.clone(), token });
    Ok((token(tokens.access, issuer.into(), true), LoginOrigin { refreshed, ..LoginOrigin::default() }))
}

fn show(prompt: &Prompt) {
    eprintln!("open {} in a browser and confirm the code {}", prompt.verification_uri, prompt.user_code);
    if let Some(whole) = &prompt.verification_uri_complete {
        eprintln!("or open {whole}");
    }
}
