//! The parts of a transfer at this site: its entry in the list, the sources that it sends, its journal, and its end.

use super::active::{ActiveTransfers, Judged, Running};
use super::history::Trace;
use super::{Stop, Watch};
use crate::access::Access;
use crate::snapshot::Snapshot;
use crate::{Context, Counters};
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::{Header, State, VERSION};
use renkei_core::path::{Place, RelPath, SiteName, first_names};
use renkei_core::wire::copy::check_sources;
use renkei_core::wire::message::{Class, OpenReceive, OpenSend, Progress, Source, Summary, TransferStatus};
use renkei_mover::hex;
use renkei_mover::journal::{Allow, Journal, boot_id, check_unfinished};
use renkei_mover::send::SendJob;
use renkei_mover::walk::Root;
use renkei_net::identity::account::Account;
use renkei_store::{Dir, Store};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum journals of unfinished transfers of one principal; they are kept for a week.
const MAX_UNFINISHED: usize = 4096;

/// The entry of the list of active transfers for a transfer that works in `storages` of this site.
pub(crate) fn running(
    access: &Access,
    id: [u8; 16],
    direction: &str,
    (place, storages): (String, Vec<String>),
    class: Class,
    (watch, stop): (&Watch, &Stop),
) -> Running {
    let status = TransferStatus {
        id: hex(&id),
        principal: access.principal.to_string(),
        direction: direction.into(),
        place,
        class,
        progress: Progress::default(),
    };
    let judge = {
        let access = access.clone();
        Arc::new(move |now: &Arc<Snapshot>| access.judge_again(now))
    };
    let (watch, judged, trace) = (watch.clone(), Judged::default(), Trace::begin(access.peer_site()));
    Running { status, watch, stop: stop.clone(), judge, judged, trace, storages }
}

/// The sources at this site, for display.
pub(crate) fn places(open: &OpenSend) -> String {
    first_names(open.sources.iter().map(|source| source.from.to_string()))
}

/// The sources at a named site, for display.
pub(crate) fn places_at(site: &SiteName, open: &OpenSend) -> String {
    first_names(open.sources.iter().map(|source| format!("{site}:{}", source.from)))
}

/// The storages of the sources.
pub(crate) fn storages(open: &OpenSend) -> Vec<String> {
    let mut names: Vec<String> = open.sources.iter().map(|source| source.from.storage.clone()).collect();
    names.dedup();
    names
}

pub(crate) fn send_job(access: &Access, open: &OpenSend, offers: bool) -> Result<SendJob, Error> {
    check_sources(open.sources.len())?;
    let mut account: Option<Account> = None;
    let mut roots: Vec<Root> = Vec::new();
    let mut found = HashMap::new();
    for source in &open.sources {
        let place = access.open(&source.from, false)?;
        // One account reads all sources: a storage's own account must not read another storage.
        if account.as_ref().is_some_and(|account| account.uid != place.account.uid) {
            let cause = "its storage is read by another account than the source before; copy them separately";
            return Err(Error::new(Code::NotAllowed, "open", &source.from, cause));
        }
        account = Some(place.account.clone());
        let root = match within(&found, source) {
            Some(root) => root,
            None => open_root(place, source)?,
        };
        if source.alone {
            found.insert(&source.from, (root.dir.clone(), root.from.clone()));
        }
        roots.push(root);
    }
    let account = account.unwrap_or_else(|| access.account.clone());
    Ok(SendJob {
        roots,
        recursive: open.recursive,
        offers,
        digests: open.digests,
        dry_run: open.dry_run,
        limit: open.limit,
        class: open.class,
        on_error: open.on_error,
        onto: open.onto.clone(),
        filter: open.filter.clone(),
        account,
        side: access.site().into(),
        keep: None,
        compare: access.compare_buffered(open)?,
    })
}

/// The opened directory and path of each source that is a directory by itself.
type Directories<'s> = HashMap<&'s Place, (Arc<dyn Dir>, RelPath)>;

/// A source that lies in another source's directory. It is opened relative to that source's parent: if the
/// directory has been removed or replaced by a link by then, this source fails and not the whole transfer.
fn within(found: &Directories<'_>, source: &Source) -> Option<Root> {
    let Source { from, to, alone } = source;
    let parent = Place { storage: from.storage.clone(), path: from.path.parent()? };
    let (dir, above) = found.get(&parent)?;
    let below = above.child(from.path.name()?).ok()?;
    Some(Root {
        dir: dir.clone(),
        from: below,
        to: to.clone(),
        alone: *alone,
        shown: format!("/{}", from.storage),
    })
}

/// Opens the parent directory of a source; symbolic links on the way are followed within the storage.
fn open_root(place: crate::access::Opened, source: &Source) -> Result<Root, Error> {
    let Source { from, to, alone } = source.clone();
    let below = match from.path.name() {
        Some(name) => RelPath::parse(name)?,
        None => RelPath::root(),
    };
    let open = |store: &dyn Store, path: &RelPath| -> Result<Arc<dyn Dir>, Error> {
        store.dir(&path.parent().unwrap_or_default())
    };
    let dir = place.run("open", open).map_err(|error| error.under(&format!("/{}", from.storage)))?;
    Ok(Root { dir, from: below, to, alone, shown: format!("/{}", from.storage) })
}

/// Opens the job's journal, which names `account`: the account that writes the files also cleans them up.
pub(crate) fn open_journal(
    context: &Context,
    access: &Access,
    account: &Account,
    open: &OpenReceive,
    job: u64,
    memory: Allow<'_>,
) -> Result<Option<(Journal, State)>, Error> {
    if open.options.dry_run {
        return Ok(None);
    }
    let header = Header {
        version: VERSION,
        job,
        boot: boot_id(),
        to: Some(open.to.clone()),
        local: Vec::new(),
        account: account.name.clone(),
    };
    let folder = context.home().journal_dir();
    let owner = access.principal.to_string();
    check_unfinished(&folder, &header, &owner, MAX_UNFINISHED)?;
    let (mut journal, state) = Journal::open(&folder, &header, memory)?;
    journal.sign(&state, &owner)?;
    journal.name(&state, open.transfer)?;
    Ok(Some((journal, state)))
}

pub(crate) fn note_end(
    context: &Context,
    transfers: &ActiveTransfers,
    id: &str,
    direction: &str,
    result: &Result<Summary, Error>,
) {
    transfers.ended(id, direction, result);
    let counters = &context.counters;
    match result {
        Ok(summary) => {
            Counters::add(&counters.transfers_done, 1);
            Counters::add(&counters.files_total, summary.files);
            Counters::add(&counters.bytes_total, summary.bytes_moved);
            let Summary { files, bytes, failed, .. } = summary;
            tracing::info!(files, bytes, failed, "finished");
        }
        Err(error) => {
            Counters::add(&counters.transfers_failed, 1);
            tracing::warn!(%error, "failed");
        }
    }
}
