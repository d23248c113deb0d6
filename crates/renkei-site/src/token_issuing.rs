//! Issuing of tokens.

use super::Context;
use super::access::Proof;
use super::evidence::Evidence;
use renkei_core::error::{Code, Error};
use renkei_net::identity::token::bearer::{Holder, TokenKey, ends};
use renkei_net::identity::token::caveat::{Restrictions, before};
use std::time::{Duration, SystemTime};

impl Context {
    /// Issues a token that can do what the asker can, as far as the caveats allow, until the asker's evidence ends if
    /// that is good for hours alone. The holder of a token gets the same
    /// one with further caveats.
    ///
    /// # Errors
    /// `NotAllowed` for all but users, `OutOfScope` for other restricted credentials, `UsageInvalid` for a validity
    /// beyond `delegation_days`, `TokenInvalid` for caveats that are not known.
    pub fn issue_token(
        &self,
        proof: &Proof,
        caveats: &[String],
        validity: Duration,
    ) -> Result<String, Error> {
        let (snapshot, principal, now) = (self.snapshot(), &proof.principal, SystemTime::now());
        let refused = |code, cause: &str| Err(Error::new(code, "issue token", principal, cause));
        let until = ends(now, validity, snapshot.config.delegation_life())?;
        let until = proof.evidence.facts()?.bound.map_or(until, |bound| bound.min(until));
        let token = match (&proof.evidence, &proof.scope) {
            (Evidence::Token(shown), _) => {
                let token = shown.macaroon()?.clone();
                let token = caveats.iter().fold(token, |token, caveat| token.with_caveat(caveat));
                let token = token.with_caveat(&before(until));
                Restrictions::of(token.caveats.iter().map(String::as_str))?;
                token
            }
            (_, Some(_)) => return refused(Code::OutOfScope, "a restricted credential gets no token"),
            (_, None) if principal.user_name().is_none() => {
                return refused(Code::NotAllowed, "tokens are for users");
            }
            (_, None) => {
                let holder = Holder { principal: principal.clone(), serial: proof.origin().ok() };
                TokenKey::load_or_make(self.home())?.issue(snapshot.site.as_str(), &holder, caveats, until)?
            }
        };
        let caveats = token.caveats.join(" ");
        tracing::info!(target: "audit", %principal, serial = proof.origin().ok(), caveats, "token issued");
        Ok(token.to_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::ShownToken;
    use renkei_config::Config;
    use renkei_core::identity::Need;
    use renkei_core::path::{Place, RelPath};
    use renkei_net::identity::account::Account;
    use std::path::Path;
    use std::sync::Arc;

    const HOUR: Duration = Duration::from_secs(3600);

    fn pop(dir: &Path) -> Arc<crate::Site> {
        let (home, data) = crate::snapshot::tests::site(dir);
        std::fs::create_dir_all(data.join("run7/raw")).unwrap();
        std::fs::write(data.join("run7/a"), b"abc").unwrap();
        crate::Site::open(home.clone(), Config::load(&home).unwrap()).unwrap()
    }

    fn shown(text: &str, from: [u8; 4]) -> Evidence {
        Evidence::Token(ShownToken::new(text, from.into()))
    }

    fn issue(site: &crate::Site, by: Evidence, caveats: &[&str], life: Duration) -> Result<String, Error> {
        let caveats: Vec<String> = caveats.iter().map(|caveat| (*caveat).to_owned()).collect();
        site.context().issue_token(&site.authenticate(by)?, &caveats, life)
    }

    fn place(text: &str) -> Place {
        Place::parse(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn a_token_proves_its_owner_within_its_caveats() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let own = || Evidence::Uid(Account::own().unwrap().uid);
        let caveats = ["path:/data/run7", "activity:LIST,DOWNLOAD", "ip:192.0.2.0/24"];
        let token = issue(&site, own(), &caveats, HOUR).unwrap();
        let proof = site.authenticate(shown(&token, [192, 0, 2, 7])).unwrap();
        assert_eq!(proof.principal, site.authenticate(own()).unwrap().principal);
        assert_eq!(proof.scope.as_ref().unwrap().to_string(), "read kek:/data/run7");
        let access = site.authorise(&proof).unwrap();
        assert!(access.open_for(&place("/data/run7/a"), Need::Read).is_ok());
        for (beyond, need) in
            [("/data/run7/a", Need::Write), ("/data/run8", Need::Read), ("/data", Need::Examine)]
        {
            let error = access.open_for(&place(beyond), need).map(drop).unwrap_err();
            assert_eq!(error.code, Code::OutOfScope, "{beyond}");
        }
        let elsewhere = site.authenticate(shown(&token, [198, 51, 100, 1])).map(drop).unwrap_err();
        assert_eq!(elsewhere.code, Code::TokenElsewhere);
    }

    #[test]
    fn files_are_opened_as_far_as_the_token_reaches() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let own = Evidence::Uid(Account::own().unwrap().uid);
        let token = issue(&site, own, &["path:/data/run7/a", "activity:DOWNLOAD"], HOUR).unwrap();
        let access = site.authorise(&site.authenticate(shown(&token, [127, 0, 0, 1])).unwrap()).unwrap();
        let files = site.files(&access, &place("/data"), Need::Read).unwrap();
        let mut content = [0; 8];
        let reader = files.open(&RelPath::parse(b"run7/a").unwrap()).unwrap();
        assert_eq!(reader.read_at(&mut content, 0).unwrap(), 3);
        let raw = files.open(&RelPath::parse(b"run7/raw").unwrap()).map(drop).unwrap_err();
        assert_eq!(raw.code, Code::OutOfScope);
        let other = site.files(&access, &place("/data/other"), Need::Read).map(drop).unwrap_err();
        assert_eq!(other.code, Code::OutOfScope);
    }

    #[test]
    fn a_token_makes_narrower_ones() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let own = Evidence::Uid(Account::own().unwrap().uid);
        let wide = issue(&site, own, &["path:/data"], 2 * HOUR).unwrap();
        let narrow =
            issue(&site, shown(&wide, [127, 0, 0, 1]), &["activity:LIST", "path:/data/run7"], HOUR).unwrap();
        let proof = site.authenticate(shown(&narrow, [127, 0, 0, 1])).unwrap();
        assert_eq!(proof.scope.unwrap().to_string(), "list kek:/data/run7");
        let outside = issue(&site, shown(&narrow, [127, 0, 0, 1]), &["path:/data/run8"], HOUR).unwrap_err();
        assert_eq!(outside.code, Code::OutOfScope);
    }

    #[test]
    fn tokens_end_with_their_time_and_with_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let own = || Evidence::Uid(Account::own().unwrap().uid);
        let token = issue(&site, own(), &["path:/data"], HOUR).unwrap();
        let Evidence::Token(shown) = shown(&token, [127, 0, 0, 1]) else { unreachable!("it is a token") };
        let now = site.snapshot();
        let late = SystemTime::now() + 2 * HOUR;
        assert_eq!(shown.judge(&now, late).unwrap_err().code, Code::TokenExpired);
        assert_eq!(issue(&site, own(), &[], 1000 * HOUR).unwrap_err().code, Code::UsageInvalid);
        std::fs::remove_file(site.home().token_key()).unwrap();
        assert_eq!(shown.judge(&site.snapshot(), SystemTime::now()).unwrap_err().code, Code::TokenInvalid);
    }
}
