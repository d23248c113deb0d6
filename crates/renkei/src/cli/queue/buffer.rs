//! `renkei buffer`: the content of the buffer of the user's own PoP.

use super::queued::{SHORT, moment, until};
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::output::Report;
use crate::cli::quantity::{human, span};
use renkei_catalogue::hex_id;
use renkei_core::buffer::Shortage;
use renkei_core::error::Error;
use renkei_core::wire::buffer::{BufferStatus, Piece, Stage, Waiter};
use renkei_net::unix_ms;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Show the buffer of your site's PoP: room, who has it, and files of transfers on their way
///
/// Your own transfers; with --all everybody's. What was sent there and not handed in is removed after a day, or at once
/// by `renkei cancel ID`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei buffer          your transfers in it\n  renkei buffer --all    everybody's, as the administrator of the PoP of this machine"
)]
pub struct Args {
    /// Everybody's: for the administrator, on the PoP's machine
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Shown {
    site: String,
    size: u64,
    per_user: u64,
    reserved: u64,
    used: u64,
    owners: Vec<Value>,
    transfers: Vec<Value>,
    waiting: Vec<Value>,
    #[serde(skip)]
    raw: BufferStatus,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let status = Asker::new(context, args.all).buffer()?;
    context.output.answer(&Shown::new(status))?;
    Ok(0)
}

impl Shown {
    fn new(raw: BufferStatus) -> Self {
        let owners = raw.owners.iter().map(|(owner, bytes)| json!({"owner": owner, "reserved": bytes}));
        Shown {
            site: raw.site.to_string(),
            size: raw.size,
            per_user: raw.quota,
            reserved: raw.charged,
            used: raw.written,
            owners: owners.collect(),
            transfers: raw.pieces.iter().map(piece_json).collect(),
            waiting: raw.waiting.iter().map(waiter_json).collect(),
            raw,
        }
    }
}

fn piece_json(piece: &Piece) -> Value {
    json!({
        "id": hex_id(&piece.id),
        "owner": piece.owner,
        "reserved": piece.charged,
        "used": piece.written,
        "since": moment(piece.since_ms),
        "until": moment(piece.until_ms),
        "stage": piece.stage,
    })
}

fn waiter_json(waiter: &Waiter) -> Value {
    let (why, missing) = match waiter.shortage {
        Shortage::Space(missing) => ("space", Some(missing)),
        Shortage::Quota(missing) => ("quota", Some(missing)),
        Shortage::Turn => ("turn", None),
    };
    let (id, owner, bytes) = (hex_id(&waiter.id), &waiter.owner, waiter.bytes);
    json!({"id": id, "owner": owner, "bytes": bytes, "waits_for": why, "missing": missing})
}

impl Report for Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let BufferStatus { site, size, quota, charged, written, owners, pieces, waiting } = &self.raw;
        writeln!(
            out,
            "buffer at {site}: {} reserved of {}, {} there; one user may have {}",
            human(*charged),
            human(*size),
            human(*written),
            human(*quota)
        )?;
        for (owner, bytes) in owners {
            writeln!(out, "  {:<24} {:>8}", named(owner), human(*bytes))?;
        }
        pieces.iter().try_for_each(|piece| write_piece(piece, out))?;
        waiting.iter().try_for_each(|waiter| write_waiter(waiter, out))
    }
}

fn named(owner: &str) -> &str {
    if owner.is_empty() { "nobody" } else { owner }
}

fn write_piece(piece: &Piece, out: &mut dyn Write) -> io::Result<()> {
    let id = hex_id(&piece.id);
    // A transfer that is not in the queue has its full id, needed to cancel it.
    let (id, stage) = match piece.stage {
        Stage::Filling => (&id[..], "coming"),
        Stage::Whole => (&id[..SHORT], "to be forwarded"),
        Stage::Leaving => (&id[..SHORT], "being removed"),
    };
    let age = Duration::from_millis(unix_ms(SystemTime::now()).saturating_sub(piece.since_ms));
    let (there, charged, owner) = (human(piece.written), human(piece.charged), named(&piece.owner));
    let (age, left) = (span(age), span(until(piece.until_ms)));
    writeln!(out, "{id}  {stage}  {there} of {charged}  {owner}  for {age}, {left} left")
}

fn write_waiter(waiter: &Waiter, out: &mut dyn Write) -> io::Result<()> {
    let (id, owner) = (&hex_id(&waiter.id)[..SHORT], &waiter.owner);
    let why = match waiter.shortage {
        Shortage::Space(missing) => format!("{} more must be free", human(missing)),
        Shortage::Quota(missing) => format!("{} less of the user's own", human(missing)),
        Shortage::Turn => "others asked before".into(),
    };
    writeln!(out, "{id}  waits for {}  {owner}  {why}", human(waiter.bytes))
}
