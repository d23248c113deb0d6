//! Repair of corrupt plain files at the home of a volume from replicas at other sites.
//!
//! A file is corrupt if size, time and inode number are unchanged and its bytes differ, or if it cannot be read.
//! From its detection on it is not served (`volume::FileVerdict`), and it is fetched from a site that holds it as
//! other remote content is (`backfill`): beside its place, compared with the digest, then moved into its place. A
//! file with a visible change is its owner's new version, and is not repaired.

use super::backfill::collect;
use crate::access::Access;
use crate::volume::VolumeService;
use crate::volume::request::ask;
use crate::volume::tree_walk::{Counts, WalkedFile, each_file, no_volume};
use crate::volume::verdict::{Checked, Verdict, check, found_wrong, judge, lost};
use renkei_catalogue::{HeldReplica, VolumeId, VolumeTree};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Kind;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Tally, VolumeReply};
use renkei_mover::Stop;
use renkei_volume::home::follower_registry::site_of;
use renkei_volume::{VolumeConfig, away_content, writer};
use std::collections::{HashMap, HashSet};

impl VolumeService {
    /// Verifies the plain files of a volume of this site at a place and below it, with the requester's permissions;
    /// with `repair` corrupt ones are fetched from other sites at once.
    ///
    /// # Errors
    /// As those of a file system, and `CatalogueFailed`.
    pub(crate) fn verify_at_home(
        &self,
        access: &Access,
        place: &Place,
        facts: &VolumeConfig,
        repair: bool,
        stop: &Stop,
    ) -> Result<Tally, Error> {
        let opened = access.open(place, false)?;
        let volume = self.context.snapshot().volume(&place.storage).ok_or_else(|| no_volume(place))??;
        volume.flush()?;
        let (tree, plain, stopped) = (volume.tree().clone(), volume.plain().clone(), stop.clone());
        let (mut tally, wrong, away, judged) = opened.run("verify", move |_, path| {
            let (mut tally, mut wrong, mut all) = (Tally::default(), HashMap::new(), Vec::new());
            let mut away = Vec::new();
            each_file(&tree, path, &mut |found| {
                let read = |checked: &Checked<'_>| check(&*plain, checked);
                let (verdict, judged) = judge(&tree, &*plain, &found, &stopped, read)?;
                all.extend(judged);
                match verdict {
                    Verdict::NotHeld if is_away(&tree, &found)? => away.push(found),
                    Verdict::NotHeld => {}
                    Verdict::Good => tally.count(&found),
                    Verdict::Wrong(error, _) => {
                        tally.fail(&found.path, error);
                        wrong.insert(found.path.clone(), found);
                    }
                }
                Ok(())
            })?;
            Ok((tally, wrong, away, all))
        })?;
        volume.judge(judged)?;
        if repair && !(wrong.is_empty() && away.is_empty()) {
            self.collecting.forget_failures(facts.id);
            collect(self, &place.storage, facts, &volume)?;
        }
        for failure in &mut tally.failures {
            if let Some(found) = wrong.get(&failure.path) {
                let held = volume.tree().held(found.id)?;
                let asked = match repair {
                    true => Some(self.asked_by_home(&place.storage, volume.tree(), found)?),
                    false => None,
                };
                failure.error = fate(&failure.error, held.as_ref(), found.content.version, asked);
            }
        }
        for found in self.at_no_site(&place.storage, facts, volume.tree(), away, repair)? {
            let asked = self.asked_by_home(&place.storage, volume.tree(), &found)?;
            let cause = format!("its home has the name and not the content; {asked}");
            tally.fail(&found.path, Error::new(Code::ContentLost, "verify", &found.path, cause));
        }
        Ok(tally)
    }

    /// The sites asked for a file that the home lacks, for display.
    fn asked_by_home(&self, name: &str, tree: &VolumeTree, found: &WalkedFile) -> Result<String, Error> {
        let wrote = site_of(tree, writer(&found.content)).ok();
        Ok(self.read_through.told_asked(&self.holders_in_order(name, tree, wrote.as_ref(), &found.path)?))
    }

    /// The files among `away` that no site reports as held. If a site cannot be asked that is unknown: then they
    /// are returned only if a fetch was attempted (`fetched`).
    fn at_no_site(
        &self,
        name: &str,
        facts: &VolumeConfig,
        tree: &VolumeTree,
        away: Vec<WalkedFile>,
        fetched: bool,
    ) -> Result<Vec<WalkedFile>, Error> {
        let (mut left, mut all_told) = (Vec::new(), true);
        for found in away {
            if is_away(tree, &found)? {
                left.push(found);
            }
        }
        if left.is_empty() {
            return Ok(left);
        }
        for site in self.holders_in_order(name, tree, None, &RelPath::root())? {
            let told = self.not_held_at(&site, facts.id, &left);
            self.read_through.note_asked(&site, told.as_ref().err());
            match told {
                Ok(not_held) => left.retain(|found| not_held.contains(&found.path)),
                Err(error) => {
                    tracing::info!(%site, %error, "a site does not say what it holds");
                    all_told = false;
                }
            }
        }
        Ok(if all_told || fetched { left } else { Vec::new() })
    }

    /// The paths of those files that a site does not hold.
    fn not_held_at(
        &self,
        site: &SiteName,
        volume: VolumeId,
        files: &[WalkedFile],
    ) -> Result<HashSet<RelPath>, Error> {
        let mut session = self.relay.dialler(&self.context.snapshot())?.connect(site)?;
        let mut not_held = HashSet::new();
        for WalkedFile { path, .. } in files {
            match ask(&mut session, AboutVolume::Held { volume, path: path.clone() })? {
                VolumeReply::Tally(tally) if tally.files == 0 => drop(not_held.insert(path.clone())),
                VolumeReply::Tally(_) => {}
                other => return Err(violation("held", format_args!("{other:?}"))),
            }
        }
        Ok(not_held)
    }
}

/// Whether the content of a file is remote, by the current catalogue.
fn is_away(tree: &VolumeTree, found: &WalkedFile) -> Result<bool, Error> {
    let Some(node) = tree.node(found.id)? else { return Ok(false) };
    let is_same = matches!(&node.kind, Kind::File(content) if content.version == found.content.version);
    Ok(is_same && away_content(tree, found.id, &node)?.is_some())
}

/// The error for a corrupt file with the outcome; `asked` names the sites asked for a repair, if there was one.
fn fate(error: &Error, held: Option<&HeldReplica>, version: u64, asked: Option<String>) -> Error {
    let is_expected = held.is_none_or(|held| held.expected(version).is_some());
    match asked {
        Some(_) if held.is_some_and(|held| held.version == version) => {
            found_wrong(error, "it was fetched again from another site")
        }
        _ if !is_expected => lost(error, "its digest is not known, so nothing can be put in its place"),
        Some(asked) => lost(error, &format!("{asked}; it is left unchanged and no longer served")),
        None => found_wrong(error, "it is no longer served, and comes from a site that holds it"),
    }
}
