//! Rotation of a site's authority, beside a running PoP.
//!
//! The old key signs the hand-over ([`crate::identity::handover`]) and is deleted at the end: only the overlap remains of it.
//! Files in the order they are written: the key of the next authority (`ca-next.key`), the hand-over to it
//! (`handover-N.toml`), its certificate (`ca.pem`), and after that the key in its place, the PoP's certificate, the
//! revocation list. The atomic rename of `ca.pem` is the commit point: before it the old authority is in force, after
//! it the new one, and the matching files are found by the content of the certificate.
//!
//! Guarantees: a kill at any moment leaves a working site; the command is idempotent: repeated, it completes the
//! remaining steps, and does not rotate a second time. Without an overlap the PoP gets a new key as well. Non-goal: a
//! PoP without the authority's key, to which the files are copied by hand.
//!
//! A site is renamed by the same steps: the next authority is that of the new name, and has the previous name in an
//! extension. The other files with the name follow `ca.pem`: `trust/former-names`, `site` in the configuration, the
//! revocation list. For the overlap the PoP keeps a certificate under the former name (`host-former.pem`), for
//! partners that have not taken over the new one.

use super::{Authority, Succession, certify_host, renew_host};
use crate::identity::certificate::{Facts, parse_chain, public_key, to_pem, unix_seconds};
use crate::identity::credential::Credential;
use crate::identity::handover::{Handover, MAX_EARLIER, Origin, check_name, former_name, number_of};
use crate::identity::pki::handover_file::{Stored, VERSION, handover_to, read, store};
use crate::identity::secret;
use crate::identity::trust::former_names;
use crate::identity::trust::{Trust, remove_file};
use renkei_config::home::{Home, file_error, read_text, write_file};
use renkei_config::{Config, set_site};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use std::fs::File;
use std::time::{Duration, SystemTime};

const MAX_BYTES: u64 = 64 * 1024;
const OP: &str = "rotate authority";

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The authority was replaced.
    Rotated,
    /// An interrupted rotation was completed.
    Completed,
    /// The overlap of an earlier rotation is not over; nothing was done.
    UnderWay,
    /// The overlap was ended: the previous authority is void.
    Finished,
}

/// Replaces the site's authority. Certificates of the old one stay valid for `keep`; without any overlap partners
/// take the new card by hand.
///
/// # Errors
/// `NotInitialised` without the authority's key, and errors of the files.
pub fn rotate(home: &Home, keep: Duration, now: SystemTime) -> Result<Outcome, Error> {
    let _lock = lock(home)?;
    let mut steps = Steps::begin(home, now)?;
    if steps.complete()? {
        return Ok(Outcome::Completed);
    }
    if !keep.is_zero() && steps.is_live()? {
        return Ok(Outcome::UnderWay);
    }
    let site = steps.authority.site().clone();
    steps.rotate(&site, keep)?;
    Ok(Outcome::Rotated)
}

/// Renames the site, with a new authority. The former name still means the site, and certificates under it stay valid
/// for `keep`.
///
/// # Errors
/// `UsageInvalid` if the site has or had that name, and while another rotation is not over; those of [`rotate`].
pub fn rename(home: &Home, name: &str, keep: Duration, now: SystemTime) -> Result<Outcome, Error> {
    let refused = |cause: String| Error::new(Code::UsageInvalid, "rename site", name, cause);
    let _lock = lock(home)?;
    let mut steps = Steps::begin(home, now)?;
    let has_completed = steps.complete()?;
    let site = SiteName::parse(name)?;
    if site == *steps.authority.site() {
        return match name == site.as_str() {
            true if has_completed => Ok(Outcome::Completed),
            true => Err(refused("it is the name of the site".into())),
            false => Err(refused(format!("it is a former name of {site}, and those are not used again"))),
        };
    }
    if name != site.as_str() || Trust::load(home)?.card(&site).is_some() {
        return Err(refused(format!("it is a name of the site {site}, which is trusted here")));
    }
    if steps.is_live()? {
        let cause =
            "the site's authority is being replaced; `renkei site rotate-authority --finish` ends that";
        return Err(refused(cause.into()));
    }
    steps.rotate(&site, keep)?;
    Ok(Outcome::Rotated)
}

/// Completes the steps of a killed [`rename`] without which nothing can be read under the new name; also run by the
/// PoP at its start.
///
/// # Errors
/// Errors of the files.
pub fn complete_rename(home: &Home) -> Result<bool, Error> {
    let Some(pem) = read_text(&home.ca_cert(), MAX_BYTES)? else { return Ok(false) };
    let authority = parse_chain(&pem)?.remove(0);
    let (Some(former), Some(origin)) = (former_name(&authority)?, Origin::read(&authority)?) else {
        return Ok(false);
    };
    let site = origin.site;
    former_names::note(home, &former, &site)?;
    former_names::tidy(home)?;
    set_site(home, &site)
}

/// The PoP's certificate under the former name of its site, and that name, while partners may not know the new one.
///
/// # Errors
/// Errors of the files.
pub fn former_host(home: &Home, now: SystemTime) -> Result<Option<(String, Credential)>, Error> {
    let Some(handover) = handover(home)?.filter(|handover| handover.is_live(now)) else { return Ok(None) };
    let authority = parse_chain(&read_text(&home.ca_cert(), MAX_BYTES)?.unwrap_or_default())?.remove(0);
    let path = home.former_host_cert();
    let (name, pem, key) =
        (former_name(&authority)?, read_text(&path, MAX_BYTES)?, secret::read(&home.host_key())?);
    let (Some(name), Some(pem), Some(key)) = (name, pem, key) else { return Ok(None) };
    let credential = Credential::parse(&pem, &key, &path)?;
    let is_of_former = !is_of_another(&credential.chain[0], &handover.previous);
    Ok(is_of_former.then_some((name, credential)))
}

/// Ends the overlap: certificates of the previous authority become void.
///
/// # Errors
/// `UsageInvalid` if there is no overlap, and those of [`rotate`].
pub fn finish(home: &Home, now: SystemTime) -> Result<Outcome, Error> {
    let _lock = lock(home)?;
    let mut steps = Steps::begin(home, now)?;
    let has_completed = steps.complete()?;
    let authority = steps.authority.certificate().clone();
    let live =
        handover_to(home, steps.authority.site(), &authority)?.filter(|handover| handover.is_live(now));
    let stored = read(home, &authority)?.filter(|_| live.is_some());
    let Some(stored) = stored else {
        if has_completed {
            return Ok(Outcome::Completed);
        }
        let cause = "no authority is being replaced; `renkei site rotate-authority` begins it";
        return Err(Error::new(Code::UsageInvalid, OP, steps.authority.site(), cause));
    };
    let finished_unix = Some(unix_seconds(now).unsigned_abs());
    store(home, &authority, &Stored { finished_unix, ..stored })?;
    remove_file(&home.former_host_cert())?;
    steps.renew_credentials(false)?;
    Ok(Outcome::Finished)
}

/// Completes an interrupted rotation; also run by the PoP at its start.
///
/// # Errors
/// Errors of the files.
pub fn complete(home: &Home, now: SystemTime) -> Result<bool, Error> {
    if !home.ca_next_key().exists() && !home.ca_key().exists() {
        return Ok(false);
    }
    let _lock = lock(home)?;
    Steps::begin(home, now)?.complete()
}

/// Locks the directory against other commands and the PoP; held for a moment.
fn lock(home: &Home) -> Result<File, Error> {
    let path = home.pki_dir();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| file_error("open", &path, &errno.into()))?);
    let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive);
    locked.map(|()| file).map_err(|errno| file_error("lock", &path, &errno.into()))
}

/// The state of the PoP's certificate with respect to the current authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// Up to date.
    Good,
    /// Of the current authority, with another key or another hand-over than the current one.
    Old,
    /// Of the previous authority.
    OfAnother,
}

/// The steps of a rotation, each of which may be the last one that was done.
struct Steps<'h> {
    home: &'h Home,
    config: Config,
    authority: Authority,
    now: SystemTime,
    /// Whether an interrupted renaming was completed.
    has_renamed: bool,
}

impl<'h> Steps<'h> {
    fn begin(home: &'h Home, now: SystemTime) -> Result<Self, Error> {
        let has_renamed = complete_rename(home)?;
        let authority = Authority::load(home)?;
        Ok(Steps { home, config: Config::load(home)?, authority, now, has_renamed })
    }

    fn is_live(&self) -> Result<bool, Error> {
        let handover = handover_to(self.home, self.authority.site(), self.authority.certificate())?;
        Ok(handover.is_some_and(|handover| handover.is_live(self.now)))
    }

    fn rotate(&mut self, site: &SiteName, keep: Duration) -> Result<(), Error> {
        let next = self.authority.succeed(site, keep, self.now)?;
        if site != self.authority.site() {
            self.write_former_host()?;
        }
        self.write_next_key(&next)?;
        self.write_handover(&next, keep.is_zero())?;
        self.write_certificate(next)?;
        if complete_rename(self.home)? {
            self.config = Config::load(self.home)?;
        }
        self.complete().map(drop)
    }

    /// Issues the PoP's certificate under the site's present name, from its present authority, before both are
    /// replaced.
    fn write_former_host(&self) -> Result<(), Error> {
        let endpoints = self.config.announced_endpoints();
        let path = self.home.former_host_cert();
        certify_host(self.home, &self.authority, &endpoints, false, &path, self.now).map(drop)
    }

    fn write_next_key(&self, next: &Succession) -> Result<(), Error> {
        secret::write(&self.home.ca_next_key(), &next.next.key_pem())
    }

    fn write_handover(&self, next: &Succession, new_host_key: bool) -> Result<(), Error> {
        let notice = to_pem("CERTIFICATE", &next.notice);
        let stored = Stored {
            version: VERSION,
            notice,
            finished_unix: None,
            new_host_key,
            handover: next.handover.to_text(),
        };
        store(self.home, next.next.certificate(), &stored)
    }

    /// The commit point: from here on the new authority is in force.
    fn write_certificate(&mut self, next: Succession) -> Result<(), Error> {
        write_file(&self.home.ca_cert(), next.next.certificate_pem().as_bytes(), 0o644)?;
        self.authority = next.next;
        Ok(())
    }

    /// Completes the steps after the commit point; returns whether anything was done.
    fn complete(&mut self) -> Result<bool, Error> {
        let placed = self.place_key()?;
        let shown = self.shown()?;
        let renewed = shown != Shown::Good;
        if renewed {
            let stored = read(self.home, self.authority.certificate())?;
            let new_key = shown == Shown::OfAnother && stored.is_some_and(|stored| stored.new_host_key);
            self.renew_credentials(new_key)?;
        }
        let signed = self.sign_list_anew()?;
        self.remove_old_handovers()?;
        if !self.is_live()? {
            remove_file(&self.home.former_host_cert())?;
        }
        Ok(placed || renewed || signed || std::mem::take(&mut self.has_renamed))
    }

    /// Renames the new key over the old one, which is deleted thereby; a key that never came into force is removed.
    fn place_key(&self) -> Result<bool, Error> {
        let (next, path) = (self.home.ca_next_key(), self.home.ca_key());
        let Some(pem) = secret::read(&next)? else { return Ok(false) };
        let is_in_force = rcgen::KeyPair::from_pem(&pem).is_ok_and(|key| {
            use rcgen::PublicKeyData;
            public_key(self.authority.certificate())
                .is_ok_and(|wanted| wanted == key.subject_public_key_info())
        });
        if !is_in_force {
            return remove_file(&next).map(|()| false);
        }
        std::fs::rename(&next, &path).map_err(|error| file_error("replace", &path, &error))?;
        let dir = self.home.pki_dir();
        File::open(&dir).and_then(|dir| dir.sync_all()).map_err(|error| file_error("sync", &dir, &error))?;
        Ok(true)
    }

    /// The state of the PoP's certificate in the files.
    fn shown(&self) -> Result<Shown, Error> {
        let Some(pem) = read_text(&self.home.host_cert(), 256 * 1024)? else { return Ok(Shown::Good) };
        let (chain, authority) = (parse_chain(&pem)?, self.authority.certificate());
        let handover = handover_to(self.home, self.authority.site(), authority)?;
        // A command that was killed while it made a new key has written the key alone.
        let key = secret::read(&self.home.host_key())?;
        let belongs = key.is_some_and(|key| Credential::parse(&pem, &key, &self.home.host_cert()).is_ok());
        Ok(match is_of_another(&chain[0], authority) {
            true => Shown::OfAnother,
            false if !belongs || is_old(&chain, authority, handover.as_ref()) => Shown::Old,
            false => Shown::Good,
        })
    }

    fn renew_credentials(&self, new_key: bool) -> Result<(), Error> {
        // It loads the hand-over to be appended.
        let authority = Authority::load(self.home)?;
        renew_host(self.home, &authority, &self.config.announced_endpoints(), new_key, self.now).map(drop)
    }

    /// Signs the list anew: partners that know the new authority alone reject a list of the old one.
    fn sign_list_anew(&self) -> Result<bool, Error> {
        let trust = Trust::load(self.home)?;
        if trust.list_is_of_now(self.authority.site()) {
            return Ok(false);
        }
        self.authority.publish_list(self.home, self.now).map(|()| true)
    }

    fn remove_old_handovers(&self) -> Result<(), Error> {
        let number = number_of(self.authority.certificate())?;
        // A command that was killed before the certificate was written has left the next hand-over.
        let oldest = number.saturating_sub(MAX_EARLIER as u32);
        (oldest.saturating_sub(2)..oldest)
            .chain([number + 1])
            .try_for_each(|other| remove_file(&self.home.handover_file(other)))
    }
}

/// Whether a chain of the site is of another authority than the current one, or has another hand-over.
pub fn is_old(
    chain: &[CertificateDer<'_>],
    authority: &CertificateDer<'_>,
    handover: Option<&Handover>,
) -> bool {
    let [leaf, behind @ ..] = chain else { return false };
    let shown = behind.first().map(|cross| &cross[..]);
    is_of_another(leaf, authority) || shown != handover.map(|handover| &handover.cross[..])
}

/// Whether a certificate was issued by another authority, by its issuer name.
pub fn is_of_another(leaf: &CertificateDer<'_>, authority: &CertificateDer<'_>) -> bool {
    let named = Facts::read(authority).map(|facts| facts.issuer);
    Facts::read(leaf).ok().map(|facts| facts.issuer) != named.ok()
}

/// The hand-over to the authority of the PoP in `home`, live or over.
///
/// # Errors
/// Errors of the files; `SiteRenamed`.
pub fn handover(home: &Home) -> Result<Option<Handover>, Error> {
    let config = Config::load(home)?;
    let (Some(site), Some(pem)) = (&config.site, read_text(&home.ca_cert(), MAX_BYTES)?) else {
        return Ok(None);
    };
    let authority = parse_chain(&pem)?.remove(0);
    check_name(site, &authority)?;
    handover_to(home, site, &authority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::credential::KeyRequest;
    use crate::identity::tests::{card, pop_at, site};
    use crate::identity::verify::verify_peer;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A site, and a partner that knows its first authority.
    struct Here {
        home: Home,
        partner: Trust,
        /// A user's certificate of the first authority.
        first: Vec<CertificateDer<'static>>,
        now: SystemTime,
        dir: tempfile::TempDir,
    }

    fn user(home: &Home, now: SystemTime) -> Vec<CertificateDer<'static>> {
        let request = KeyRequest::generate().unwrap().request;
        let issued = Authority::load(home).unwrap().issue_user("alice", &request, 12, now).unwrap();
        parse_chain(&issued.pem).unwrap()
    }

    fn here() -> Here {
        let (dir, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (home, authority) = pop_at(dir.path(), "kek", now);
        authority.revoke(&home, &["0a".into()], now).unwrap();
        let mut partner = Trust::empty(&Home::at(&dir.path().join("partner")));
        partner.add(card(&authority)).unwrap();
        Here { first: user(&home, now), home, partner, now, dir }
    }

    impl Here {
        /// The state left by a command that is killed after so many steps.
        fn kill_after(&self, steps: usize) {
            let mut rotation = Steps::begin(&self.home, self.now).unwrap();
            let next = rotation.authority.succeed(&site("kek"), 30 * DAY, self.now).unwrap();
            type Step = fn(&mut Steps<'_>) -> Result<(), Error>;
            let rest: [Step; 3] = [
                |steps| steps.place_key().map(drop),
                |steps| steps.renew_credentials(false),
                |steps| steps.sign_list_anew().map(drop),
            ];
            if steps > 0 {
                rotation.write_next_key(&next).unwrap();
            }
            if steps > 1 {
                rotation.write_handover(&next, false).unwrap();
            }
            if steps > 2 {
                rotation.write_certificate(next).unwrap();
                rest.iter().take(steps - 3).for_each(|step| step(&mut rotation).unwrap());
            }
        }

        fn number(&self) -> u32 {
            number_of(Authority::load(&self.home).unwrap().certificate()).unwrap()
        }

        /// All certificates of the site verify, at home and at the partner, which has not been notified yet.
        fn check_works(&self, what: usize) {
            let own = Trust::load(&self.home).unwrap();
            let host = Credential::host(&self.home, self.now).unwrap().chain;
            for trust in [&own, &self.partner] {
                for chain in [&host, &self.first, &user(&self.home, self.now)] {
                    verify_peer(chain, trust, self.now).unwrap_or_else(|error| panic!("{what}: {error}"));
                }
            }
            Authority::load(&self.home).unwrap().revoke(&self.home, &["0b".into()], self.now).unwrap();
            Trust::load(&self.home).unwrap();
        }
    }

    #[test]
    fn a_rotation_killed_at_any_moment_leaves_a_working_site_and_resumes() {
        use Outcome::{Completed, Rotated, UnderWay};
        let outcomes = [Rotated, Rotated, Rotated, Completed, Completed, Completed, UnderWay];
        for (steps, expected) in outcomes.into_iter().enumerate() {
            let here = here();
            here.kill_after(steps);
            here.check_works(steps);
            assert_eq!(here.number(), if steps < 3 { 1 } else { 2 }, "{steps}");
            // A certificate signed meanwhile may make the one remaining step superfluous.
            let outcome = rotate(&here.home, 30 * DAY, here.now).unwrap();
            assert!(outcome == expected || (steps == 5 && outcome == UnderWay), "{steps}: {outcome:?}");
            here.check_works(steps);
            assert_eq!(rotate(&here.home, 30 * DAY, here.now).unwrap(), UnderWay, "{steps}");
            assert_eq!(here.number(), 2, "{steps}");
            let mut names: Vec<_> = std::fs::read_dir(here.home.pki_dir()).unwrap().flatten().collect();
            names.sort_by_key(std::fs::DirEntry::file_name);
            let names: Vec<_> = names.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
            assert_eq!(
                names,
                ["ca.key", "ca.pem", "handover-2.toml", "host.key", "host.pem", "revoked"],
                "{steps}"
            );
            let host = Credential::host(&here.home, here.now).unwrap().chain;
            let trust = Trust::load(&here.home).unwrap();
            assert!(!is_of_another(&host[0], &trust.own_card().unwrap().authority), "{steps}");
            assert!(trust.list_is_of_now(&site("kek")), "{steps}");
        }
    }

    /// The state left by a renaming that is killed after so many steps.
    fn kill_rename_after(here: &Here, steps: usize) {
        let mut renaming = Steps::begin(&here.home, here.now).unwrap();
        let next = renaming.authority.succeed(&site("tsukuba"), 30 * DAY, here.now).unwrap();
        renaming.write_former_host().unwrap();
        if steps > 0 {
            renaming.write_next_key(&next).unwrap();
        }
        if steps > 1 {
            renaming.write_handover(&next, false).unwrap();
        }
        if steps > 2 {
            renaming.write_certificate(next).unwrap();
        }
        if steps > 3 {
            former_names::note(&here.home, "kek", &site("tsukuba")).unwrap();
        }
        if steps > 4 {
            complete_rename(&here.home).unwrap();
        }
        if steps > 5 {
            renaming.place_key().unwrap();
        }
    }

    #[test]
    fn a_killed_renaming_is_absent_or_completed() {
        for steps in 0..=6 {
            let here = here();
            kill_rename_after(&here, steps);
            if steps < 3 {
                here.check_works(steps);
                assert_eq!(Config::load(&here.home).unwrap().site, Some(site("kek")), "{steps}");
            } else {
                // As a PoP does at its start.
                complete_rename(&here.home).unwrap();
                complete(&here.home, here.now).unwrap();
            }
            let outcome = rename(&here.home, "tsukuba", 30 * DAY, here.now);
            match steps < 3 {
                true => assert_eq!(outcome.unwrap(), Outcome::Rotated, "{steps}"),
                false => {
                    assert!(outcome.unwrap_err().cause.contains("it is the name of the site"), "{steps}")
                }
            }
            assert_eq!(Config::load(&here.home).unwrap().site, Some(site("tsukuba")), "{steps}");
            let own = Trust::load(&here.home).unwrap();
            let host = Credential::host(&here.home, here.now).unwrap().chain;
            verify_peer(&host, &own, here.now).unwrap();
            assert!(
                own.list_is_of_now(&site("tsukuba")) && own.revocation_list(&site("tsukuba")).is_some(),
                "{steps}"
            );
            // For partners that know the former name alone.
            let (name, former) = former_host(&here.home, here.now).unwrap().unwrap();
            assert_eq!(name, "kek");
            verify_peer(&former.chain, &here.partner, here.now).unwrap();
            assert!(former_host(&here.home, here.now + 31 * DAY).unwrap().is_none());
        }
    }

    #[test]
    fn names_already_in_use_are_refused() {
        let here = here();
        let other = Authority::create(&site("osaka"), here.now).unwrap();
        Trust::load(&here.home).unwrap().add(card(&other)).unwrap();
        for bad in ["kek", "osaka", "Tsukuba", ""] {
            assert_eq!(rename(&here.home, bad, DAY, here.now).unwrap_err().code, Code::UsageInvalid, "{bad}");
        }
        rotate(&here.home, DAY, here.now).unwrap();
        let refused = rename(&here.home, "tsukuba", DAY, here.now).unwrap_err();
        assert!(refused.cause.contains("rotate-authority --finish"), "{refused}");
    }

    #[test]
    fn a_pop_completes_a_killed_rotation() {
        let here = here();
        here.kill_after(3);
        assert!(complete(&here.home, here.now).unwrap() && !complete(&here.home, here.now).unwrap());
        assert!(!here.home.ca_next_key().exists());
    }

    #[test]
    fn the_old_key_is_deleted() {
        let here = here();
        let before = std::fs::read(here.home.ca_key()).unwrap();
        rotate(&here.home, 30 * DAY, here.now).unwrap();
        for entry in std::fs::read_dir(here.home.pki_dir()).unwrap().flatten() {
            assert_ne!(std::fs::read(entry.path()).unwrap(), before, "{:?}", entry.file_name());
        }
    }

    #[test]
    fn the_overlap_ends_even_after_a_killed_command() {
        let here = here();
        let refused = finish(&here.home, here.now).unwrap_err();
        assert!(
            refused.code == Code::UsageInvalid && refused.cause.contains("no authority is being replaced")
        );
        rotate(&here.home, 30 * DAY, here.now).unwrap();
        let authority = Authority::load(&here.home).unwrap().certificate().clone();
        let stored = read(&here.home, &authority).unwrap().unwrap();
        let finished_unix = Some(unix_seconds(here.now).unsigned_abs());
        store(&here.home, &authority, &Stored { finished_unix, ..stored }).unwrap();
        let later = here.now + Duration::from_secs(1);
        assert!(complete(&here.home, later).unwrap());
        let host = Credential::host(&here.home, later).unwrap().chain;
        let refused = verify_peer(&host, &here.partner, later).unwrap_err();
        assert_eq!(refused.code, Code::AuthorityReplaced, "{refused}");
        let own = Trust::load(&here.home).unwrap();
        assert_eq!(verify_peer(&here.first, &own, later).unwrap_err().code, Code::CertificateExpired);
        verify_peer(&host, &own, later).unwrap();
        // The next rotation may begin.
        assert_eq!(rotate(&here.home, 30 * DAY, later).unwrap(), Outcome::Rotated);
        assert_eq!(here.number(), 3);
    }

    #[test]
    fn a_new_key_without_its_certificate_is_completed() {
        let here = here();
        let other = KeyRequest::generate().unwrap().key;
        secret::write(&here.home.host_key(), &other).unwrap();
        assert!(Credential::host(&here.home, here.now).is_err());
        assert!(complete(&here.home, here.now).unwrap());
        Credential::host(&here.home, here.now).unwrap();
        assert_eq!(secret::read(&here.home.host_key()).unwrap().as_deref(), Some(&other[..]));
    }

    #[test]
    fn the_card_has_the_hand_overs_since_the_last_one_without_an_overlap() {
        let here = here();
        let mut now = here.now - Duration::from_secs(3600);
        let mut rotate_and_finish = |keep: Duration| {
            rotate(&here.home, keep, now).unwrap();
            now += Duration::from_secs(1);
            if !keep.is_zero() {
                finish(&here.home, now).unwrap();
            }
            let trust = Trust::load(&here.home).unwrap();
            let card = trust.own_card().unwrap().clone();
            assert_eq!(crate::identity::trust::card::SiteCard::parse(&card.to_text()).unwrap(), card);
            card
        };
        assert_eq!(rotate_and_finish(DAY).earlier.len(), 0);
        let third = rotate_and_finish(DAY);
        assert_eq!(third.earlier.len(), 1);
        let mut away = Trust::load(&Home::at(&here.dir.path().join("partner"))).unwrap();
        assert_eq!(away.add(third.clone()).unwrap_err().code, Code::AuthorityReplaced);
        assert_eq!(away.add_given(third).unwrap(), crate::identity::trust::Added::Replaced);
        assert_eq!(rotate_and_finish(Duration::ZERO).earlier.len(), 0);
        assert_eq!(rotate_and_finish(DAY).earlier.len(), 0, "none over the one without an overlap");
        for _ in 0..MAX_EARLIER {
            rotate_and_finish(DAY);
        }
        let last = rotate_and_finish(DAY);
        assert_eq!(last.earlier.len(), MAX_EARLIER);
        let names = std::fs::read_dir(here.home.pki_dir()).unwrap().flatten();
        let files = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("handover-"));
        assert_eq!(files.count(), MAX_EARLIER + 1);
    }

    #[test]
    fn another_pop_of_a_renamed_site_gets_the_missing_files_named() {
        let here = here();
        let second = Home::at(&here.dir.path().join("second"));
        std::fs::create_dir_all(second.pki_dir()).unwrap();
        let bring = |of: fn(&Home) -> std::path::PathBuf| {
            std::fs::copy(of(&here.home), of(&second)).unwrap();
        };
        let from_before: [fn(&Home) -> std::path::PathBuf; 4] =
            [Home::config_file, Home::ca_cert, Home::host_cert, Home::host_key];
        from_before.into_iter().for_each(bring);
        rename(&here.home, "tsukuba", 30 * DAY, here.now).unwrap();
        let own = Trust::load(&second).unwrap();
        let refused = verify_peer(&user(&here.home, here.now), &own, here.now).unwrap_err();
        assert_eq!(refused.code, Code::AuthorityReplaced);
        assert!(refused.cause.contains("copy pki/ca.pem, pki/ca.key"), "{refused}");
        bring(Home::ca_cert);
        let refused = Trust::load(&second).unwrap_err();
        assert_eq!(refused.code, Code::SiteRenamed);
        assert!(refused.cause.contains("pki/handover-2.toml from there beside it, restart"), "{refused}");
        bring(|home| home.handover_file(2));
        bring(Home::ca_key);
        assert!(complete_rename(&second).unwrap() && complete(&second, here.now).unwrap());
        std::fs::remove_file(second.ca_key()).unwrap();
        let own = Trust::load(&second).unwrap();
        verify_peer(&user(&here.home, here.now), &own, here.now).unwrap();
        let host = Credential::host(&second, here.now).unwrap().chain;
        verify_peer(&host, &Trust::load(&here.home).unwrap(), here.now).unwrap();
        assert!(!is_of_another(&host[0], &own.own_card().unwrap().authority));
    }

    #[test]
    fn without_an_overlap_the_old_key_is_refused() {
        let here = here();
        let first = here.first.clone();
        let host_key = secret::read(&here.home.host_key()).unwrap();
        assert_eq!(rotate(&here.home, Duration::ZERO, here.now).unwrap(), Outcome::Rotated);
        assert_ne!(secret::read(&here.home.host_key()).unwrap(), host_key, "it lay beside the other one");
        let own = Trust::load(&here.home).unwrap();
        assert_eq!(verify_peer(&first, &own, here.now).unwrap_err().code, Code::CertificateExpired);
        let host = Credential::host(&here.home, here.now).unwrap().chain;
        verify_peer(&host, &own, here.now).unwrap();
        assert_eq!(verify_peer(&host, &here.partner, here.now).unwrap_err().code, Code::AuthorityReplaced);
        // Nor while another one is not over.
        assert_eq!(rotate(&here.home, Duration::ZERO, here.now).unwrap(), Outcome::Rotated);
        assert_eq!(here.number(), 3);
        drop(here.dir);
    }
}
