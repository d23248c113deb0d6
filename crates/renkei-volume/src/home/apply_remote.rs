//! Application of remote changes: the reconciler decides changes of followers, and takes in files that were fetched
//! from them.
//!
//! First the names concerned are reconciled, so that a change is decided against the current plain tree. Then a batch
//! of changes is decided and materialised in the plain tree. The intent is stored before: after a kill it is carried
//! out again before anything is compared. Guarantee: a comparison never sees a change that is decided and not
//! materialised.

use super::dirty_names::ReconcileRequest;
use super::materialise::{Done, Failed, Plan};
use super::node_paths::NodePaths;
use super::reconciler::{PAUSE, Reconciler};
use super::remote_content::INCOMING;
use crate::reconciler_requests::{Arrived, Ask};
use renkei_catalogue::{OWN, TreeNote};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Change, Dentry, Kind, NewKind, NodeId, Record, SequencedChange};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use renkei_core::wire::file::Changed;
use renkei_store::{Detail, Dir};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

/// The note with the record after which records may not be materialised.
pub(crate) const BEGUN: TreeNote<u64> = TreeNote::of("begun", &[decode]);
/// The note with plain files that are being moved to their names.
pub(crate) const PLACING: TreeNote<Vec<Placing>> = TreeNote::of("placing", &[decode]);
/// A plain file that is being moved to its names: the node, the version, and the inode number.
pub(crate) type Placing = (NodeId, u64, u64);
/// Records or nodes read at once.
const PAGE: usize = 1000;

impl Reconciler {
    /// Handles a request and answers it.
    pub(crate) fn on_ask(&mut self, asked: ReconcileRequest) {
        let done = self.compare.commit().and_then(|()| match asked.ask {
            Ask::Submit(changes) => self.submit(&changes),
            Ask::Own(change) => self.change_away(change),
            Ask::Place(arrived) => self.place(arrived),
            Ask::Judge(judged) => self.judge(judged),
        });
        self.compare.forget_dirs();
        let failed = done.as_ref().err().filter(|error| error.code == Code::CatalogueFailed).cloned();
        // Its effects in the plain tree are not reported name by name.
        self.shared.leases.changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        // The caller may have given up waiting.
        let _ = asked.answer.send(done);
        if let Some(error) = failed {
            self.give_up(&error);
            self.recover_at_last();
        }
    }

    /// Retries the recovery until it succeeds; returns whether the volume is still open.
    pub(crate) fn recover_at_last(&mut self) -> bool {
        while let Err(error) = self.recover() {
            tracing::warn!(volume = self.shared.name, %error, "what sites that follow changed is not done");
            self.set_trouble(Some(error));
            if !self.shared.notes.pause(PAUSE) {
                return false;
            }
        }
        true
    }

    /// Repeats what a killed PoP had begun, and reads the list of remote content.
    pub(crate) fn recover(&mut self) -> Result<(), Error> {
        self.compare.uid = self.shared.hands.uid().ok();
        if let Some(placing) = PLACING.read(&self.tree)? {
            self.expect_placed(placing);
        }
        self.compare.replacing.recall(&self.tree)?;
        if let Some(after) = self.begun()? {
            let (mut after, mut all) = (after, Vec::new());
            loop {
                let records = match self.tree.log(after, PAGE) {
                    // The log was trimmed since: only a scan of both trees is left.
                    Err(error) if error.code == Code::RecordsForgotten => break,
                    records => records?,
                };
                let Some(last) = records.last() else { break };
                after = last.seq;
                all.extend(records);
            }
            let (mut failed, mut done) = (Vec::new(), 0);
            for run in all.chunk_by(|a, b| !moves_dir(a) && !moves_dir(b)) {
                done += run.len();
                failed.extend(self.carry_out(run, &all[done..])?);
            }
            self.undo(failed)?;
            self.end()?;
        }
        let mut after = 0;
        loop {
            let away = self.tree.away(after, PAGE)?;
            let Some(last) = away.last() else { break };
            after = last.version;
            self.forget_right(&away)?;
            let ids: Vec<NodeId> = away.iter().map(|away| away.id).collect();
            let named = self.tree.names_of(&ids)?;
            self.shared.away.add(named.values().flatten().map(|spot| spot.dir));
            for id in ids {
                let is_file = self.tree.node(id)?.is_none_or(|node| matches!(node.kind, Kind::File(_)));
                if !is_file {
                    self.compare.unplaced.insert(id);
                }
            }
        }
        self.shared.away.add([]);
        Ok(())
    }

    fn begun(&self) -> Result<Option<u64>, Error> {
        BEGUN.read(&self.tree)
    }

    fn begin(&self) -> Result<(), Error> {
        match self.begun()? {
            Some(_) => Ok(()),
            None => BEGUN.write(&self.tree, &self.tree.position()?.seq),
        }
    }

    fn end(&self) -> Result<(), Error> {
        self.forget_if_none()?;
        self.tree.set_note(BEGUN.key(), &[])
    }

    /// Clears the set of directories with remote content if none is left.
    pub(crate) fn forget_if_none(&self) -> Result<(), Error> {
        if self.tree.away(0, 1)?.is_empty() {
            self.shared.away.clear();
        }
        Ok(())
    }

    // ---- changes -----------------------------------------------------------------------------------------------------

    fn submit(&mut self, changes: &[SequencedChange]) -> Result<(), Error> {
        let Some(origin) = changes.first().map(|change| change.origin) else { return Ok(()) };
        let taken = self.tree.position()?.taken.get(&origin).copied().unwrap_or_default();
        let begin = changes.iter().position(|made| made.number > taken).unwrap_or(changes.len());
        let changes = &changes[begin..];
        if changes.is_empty() {
            return Ok(());
        }
        self.bring_named(&changes.iter().map(|made| &made.change).collect::<Vec<_>>())?;
        self.begin()?;
        for run in self.runs(changes)? {
            let records = self.shared.quotas.decide(&self.tree, run)?;
            let failed = self.carry_out(&records, &[])?;
            // Before the next run, which depends on the directories of the catalogue and the plain tree being equal.
            self.undo(failed)?;
        }
        self.end()
    }

    /// Reverts changes in the catalogue that failed in the plain tree: followers receive these records, and keep what
    /// they hold.
    fn undo(&mut self, failed: Vec<Failed>) -> Result<(), Error> {
        for back in failed.iter().filter_map(|failed| failed.back.clone()) {
            self.compare.decide_one(back)?;
            self.compare.forget_dirs();
        }
        let names: Vec<RelPath> = failed.into_iter().map(|failed| failed.path).collect();
        self.bring(&names)
    }

    fn change_away(&mut self, change: Change) -> Result<(), Error> {
        self.bring_named(&[&change])?;
        self.begin()?;
        let record = self.compare.decide_one(change)?;
        if let Some(record) = &record {
            let failed = self.carry_out(std::slice::from_ref(record), &[])?;
            self.undo(failed)?;
        }
        self.end()?;
        record.map_or(Ok(()), |record| record.outcome.map(drop))
    }

    /// Reconciles the names that changes refer to, as far as the tree has their directories.
    fn bring_named(&mut self, changes: &[&Change]) -> Result<(), Error> {
        let (mut spots, mut ids) = (BTreeSet::new(), Vec::new());
        for change in changes {
            match change {
                Change::SetAttributes { id, .. }
                | Change::SetContent { id, .. }
                | Change::SetXattr { id, .. } => ids.push(*id),
                change => spots.extend(change.spots().into_iter().cloned()),
            }
        }
        let dirs: Vec<NodeId> = spots.iter().map(|at| at.dir).collect::<BTreeSet<_>>().into_iter().collect();
        let known = self.tree.nodes(&dirs)?.into_iter();
        let mut merged: HashMap<NodeId, NodeId> =
            known.filter_map(|(id, node)| Some((id, node.merged_into()?))).collect();
        let mut now: BTreeSet<Dentry> = spots.iter().map(|at| meant(&merged, at)).collect();
        now.extend(self.tree.names_of(&ids)?.into_values().flatten());
        while !now.is_empty() {
            self.bring_spots(&now)?;
            let new = self.merging(changes, &merged)?;
            merged.extend(&new);
            now = spots.iter().filter(|at| new.contains_key(&at.dir)).map(|at| meant(&merged, at)).collect();
        }
        Ok(())
    }

    fn bring_spots(&mut self, spots: &BTreeSet<Dentry>) -> Result<(), Error> {
        let tree = self.tree.clone();
        let mut paths = NodePaths::of_tree(&tree, HashMap::new());
        let named: Result<Vec<Option<RelPath>>, Error> = spots.iter().map(|spot| paths.of(spot)).collect();
        self.bring(&named?.into_iter().flatten().collect::<Vec<_>>())
    }

    /// Directories to be created where one exists, and which are merged into that; those in `known` are merged
    /// already.
    fn merging(
        &self,
        changes: &[&Change],
        known: &HashMap<NodeId, NodeId>,
    ) -> Result<HashMap<NodeId, NodeId>, Error> {
        let made = changes.iter().filter_map(|change| match change {
            Change::Make { id, at, kind: NewKind::Dir, .. } if !known.contains_key(id) => {
                Some((*id, meant(known, at)))
            }
            _ => None,
        });
        let made: Vec<(NodeId, Dentry)> = made.collect();
        let there = self.tree.children(&made.iter().map(|(_, at)| at.clone()).collect::<Vec<_>>())?;
        let dir = |at: &Dentry| there.get(at).filter(|(_, node)| node.is_dir()).map(|(into, _)| *into);
        Ok(made
            .into_iter()
            .filter_map(|(id, at)| Some((id, dir(&at)?)))
            .filter(|(id, into)| id != into)
            .collect())
    }

    pub(crate) fn bring(&mut self, named: &[RelPath]) -> Result<(), Error> {
        for part in named.chunks(PAGE) {
            self.compare.read_ahead(part)?;
            for path in part {
                self.todo.extend(self.compare.bring(path)?);
            }
        }
        self.compare.commit()
    }

    /// Splits changes into runs so that a rename of a directory has a run of its own.
    fn runs<'c>(&self, changes: &'c [SequencedChange]) -> Result<Vec<&'c [SequencedChange]>, Error> {
        let renamed = changes.iter().filter_map(|made| match &made.change {
            Change::Rename { from, .. } => Some(from.clone()),
            _ => None,
        });
        let known = self.tree.children(&renamed.collect::<Vec<_>>())?;
        let made: BTreeSet<&Dentry> = changes.iter().filter_map(|made| made_file(&made.change)).collect();
        let is_file = |from: &Dentry| match known.get(from) {
            Some((_, node)) => !node.is_dir(),
            None => made.contains(from),
        };
        let alone = |made: &SequencedChange| match &made.change {
            Change::Rename { from, .. } => !is_file(from),
            _ => false,
        };
        Ok(changes.chunk_by(|a, b| !alone(a) && !alone(b)).collect())
    }

    /// Materialises a run of records in the plain tree, of which the tree contains the ones in `later`, too; returns
    /// the steps that failed.
    fn carry_out(&mut self, records: &[Record], later: &[Record]) -> Result<Vec<Failed>, Error> {
        let plan = Plan::of(&self.tree, records, later)?;
        let (mut made, mut gone) = (Vec::new(), Vec::new());
        for effects in records.iter().filter_map(|record| record.outcome.as_ref().ok()) {
            self.shared
                .away
                .add(effects.names.iter().filter(|(_, id)| id.is_some()).map(|(spot, _)| spot.dir));
            for (id, node) in &effects.nodes {
                match node {
                    None => gone.push(*id),
                    Some(node) if matches!(node.kind, Kind::File(_)) => made.push(*id),
                    Some(_) => {}
                }
            }
        }
        let named = self.tree.names_of(&made)?;
        self.shared.away.add(named.values().flatten().map(|spot| spot.dir));
        let others = records.iter().filter(|record| record.origin != OWN);
        let nodes = others.filter_map(|record| record.outcome.as_ref().ok()).flat_map(|effects| {
            let named = |id: &NodeId| effects.names.iter().any(|(_, named)| named.as_ref() == Some(id));
            let is_made = move |id: &NodeId| named(id) && effects.names.iter().all(|(_, id)| id.is_some());
            effects.nodes.iter().filter(move |(id, _)| is_made(id))
        });
        let not_files = nodes.filter(|(_, node)| node.as_ref().is_some_and(|node| !is_file(&node.kind)));
        self.compare.unplaced.extend(not_files.map(|(id, _)| *id));
        let failed = self.do_it(plan, None)?;
        self.compare.unplaced.retain(|id| !gone.contains(id));
        self.tree.set_held(&gone.into_iter().map(|id| (id, None)).collect::<Vec<_>>())?;
        Ok(failed)
    }

    /// Carries a plan out as the volume's account, and stores what the plain tree has now; returns the steps that
    /// failed.
    fn do_it(&mut self, plan: Plan, incoming: Option<Arc<dyn Dir>>) -> Result<Vec<Failed>, Error> {
        if plan.is_empty() {
            return Ok(Vec::new());
        }
        let (top, result) = (self.top.clone(), Arc::new(Mutex::new(Done::default())));
        let (told, names) = (result.clone(), self.shared.names.clone());
        let work = move || {
            let done = plan.carry_out(top, incoming, names);
            *told.lock().expect("no thread panics while it holds the lock") = done;
        };
        if let Err(error) = self.shared.hands.run(Box::new(work)) {
            tracing::warn!(volume = self.shared.name, %error, "changes of other sites cannot be done in the plain files");
        }
        let done = std::mem::take(&mut *result.lock().expect("no thread panics while it holds the lock"));
        for Failed { path, error, .. } in done.failed.iter().take(PAGE) {
            tracing::warn!(volume = self.shared.name, %path, %error, "a change of another site cannot be done in the plain files");
        }
        if let Some(watch) = &self.shared.watch {
            done.moved.iter().for_each(|(from, to)| watch.follow_move(from, to));
            done.made.iter().for_each(|path| watch.add(path));
        }
        for (id, _) in &done.here {
            self.compare.unplaced.remove(id);
        }
        self.tree.set_held(&done.held)?;
        if !done.here.is_empty() {
            self.tree.set_here(&done.here)?;
        }
        Ok(done.failed)
    }

    // ---- fetched files -----------------------------------------------------------------------------------------------

    fn place(&mut self, arrived: Vec<Arrived>) -> Result<(), Error> {
        let ids: Vec<NodeId> = arrived.iter().map(|arrived| arrived.id).collect();
        let tree = self.tree.clone();
        let mut paths = NodePaths::of_tree(&tree, HashMap::new());
        let spots = tree.names_of(&ids)?;
        let named: Result<Vec<Option<RelPath>>, Error> =
            spots.values().flatten().map(|spot| paths.of(spot)).collect();
        self.bring(&named?.into_iter().flatten().collect::<Vec<_>>())?;
        self.make_missing();
        let incoming = self.top.child(INCOMING)?;
        self.note_placing(&*incoming, &arrived)?;
        let plan = Plan::placing(&tree, arrived)?;
        self.do_it(plan, Some(incoming))?;
        self.compare.placing.clear();
        self.forget_if_none()
    }

    /// Stores which plain files are moved to their names next, so that they are recognised after a kill.
    fn note_placing(&mut self, incoming: &dyn Dir, arrived: &[Arrived]) -> Result<(), Error> {
        let placing = arrived.iter().filter_map(|arrived| {
            let (_, raw) = incoming.entry(&arrived.name, Detail::Basic).ok()?;
            Some((arrived.id, arrived.version, raw.ino))
        });
        let placing: Vec<Placing> = placing.collect();
        PLACING.write(&self.tree, &placing)?;
        self.expect_placed(placing);
        Ok(())
    }

    fn expect_placed(&mut self, placing: Vec<Placing>) {
        for (id, version, ino) in placing {
            self.compare.placing.entry(id).or_default().push((version, ino));
        }
    }

    /// Creates directories and links of other sites that could not be created before, or that were removed by hand
    /// with remote files in them.
    pub(crate) fn make_missing(&mut self) {
        if self.compare.unplaced.is_empty() {
            return;
        }
        let plan = Plan::making(&self.tree, &self.compare.unplaced.iter().copied().collect());
        if let Err(error) = plan.and_then(|plan| self.do_it(plan, None)) {
            tracing::warn!(volume = self.shared.name, %error, "directories are not created again");
        }
    }
}

/// A name with its directory resolved, if that was merged into another one.
fn meant(merged: &HashMap<NodeId, NodeId>, at: &Dentry) -> Dentry {
    Dentry { dir: merged.get(&at.dir).copied().unwrap_or(at.dir), name: at.name.clone() }
}

fn is_file(kind: &Kind) -> bool {
    matches!(kind, Kind::File(_))
}

/// The name under which a change creates or moves something that is no directory.
fn made_file(change: &Change) -> Option<&Dentry> {
    match change {
        Change::Make { at, kind: NewKind::File | NewKind::Symlink(_), .. } | Change::Link { at, .. } => {
            Some(at)
        }
        Change::Rename { to, .. } => Some(to),
        _ => None,
    }
}

/// Whether a record renames a directory.
fn moves_dir(record: &Record) -> bool {
    record.outcome.as_ref().is_ok_and(|effects| {
        let frees = effects.names.iter().any(|(_, id)| id.is_none());
        let moved = effects.names.iter().find_map(|(_, id)| *id);
        let is_dir = |id: NodeId| {
            let node = effects.nodes.iter().find(|(node, _)| *node == id).and_then(|(_, node)| node.as_ref());
            node.is_some_and(|node| node.is_dir())
        };
        frees && moved.is_some_and(is_dir)
    })
}
