//! Judges a chain: proxies, the certificate of the user (end entity), authorities.
//!
//! The handshake proved that the peer has the key of the first certificate. Each proxy must be signed by the next
//! certificate, down to the user's; that leads to an authority of the folders, whose signing policy and revocation list
//! are asked, and so on to an authority that is its own issuer or whose issuer is not in the folders. Each reason to
//! refuse has a code of its own. Sources: RFC 3820, section 4; RFC 5280, section 6.

use super::authorities::{Authorities, Authority};
use super::certificate::{GridCertificate, Language, ProxyForm};
use super::signature::Unsigned;
use super::signing_policy::SigningPolicy;
use crate::identity::certificate::utc;
use renkei_config::{Grid, RequiredFiles};
use renkei_core::error::{Code, Error};
use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime};

/// Most certificates of a chain, and most authorities above a user.
const MAX_CHAIN: usize = 16;
const MAX_AUTHORITIES: usize = 8;
/// Difference of the clocks that is borne for the start of a validity.
pub(super) const CLOCKS: Duration = Duration::from_secs(60);
const OP: &str = "verify grid certificate";

/// A chain whose proxies were verified.
pub(super) struct Proxies<'a> {
    /// The certificate of the user.
    pub(super) user: &'a GridCertificate,
    /// The proxies, leaf first.
    pub(super) proxies: Vec<&'a GridCertificate>,
    /// Whether one of the proxies is limited.
    pub(super) is_limited: bool,
}

/// Reads the certificates of a chain.
///
/// # Errors
/// `BadCertificate`, `ProxyRefused`.
pub(super) fn read(chain: &[CertificateDer<'_>]) -> Result<Vec<GridCertificate>, Error> {
    if chain.is_empty() || chain.len() > MAX_CHAIN {
        let cause = format!("a chain has 1 to {MAX_CHAIN} certificates");
        return Err(Error::new(Code::BadCertificate, OP, "", cause));
    }
    chain.iter().map(GridCertificate::read).collect()
}

/// Judges chains at a time.
pub(super) struct Judge<'a> {
    pub(super) authorities: &'a Authorities,
    pub(super) config: &'a Grid,
    pub(super) at: SystemTime,
}

impl Judge<'_> {
    /// Verifies the proxies of a chain down to the user's certificate; tells each step.
    ///
    /// # Errors
    /// `ProxyRefused`, `GridSignature`, `WeakDigest`, `GridCertificateExpired`, `GridCertificateNotYetValid`,
    /// `BadCertificate`.
    pub(super) fn proxies<'c>(
        &self,
        chain: &'c [GridCertificate],
        tell: &mut dyn FnMut(String),
    ) -> Result<Proxies<'c>, Error> {
        let (mut proxies, mut is_limited) = (Vec::new(), false);
        let mut rest = chain;
        while let [proxy, above @ ..] = rest {
            let Some(form) = proxy.proxy else { return Ok(Proxies { user: proxy, proxies, is_limited }) };
            let language = self.check_form(proxy, form, proxies.len())?;
            let position = above.iter().position(|one| one.subject == proxy.issuer);
            let missing = || {
                error(
                    Code::ProxyRefused,
                    proxy,
                    format!("the chain lacks the certificate of {}", proxy.issuer),
                )
            };
            rest = &above[position.ok_or_else(missing)?..];
            self.check_link(proxy, &rest[0])?;
            is_limited |= language == Language::Limited;
            tell(format!("proxy {} ({language:?}), until {}", proxy.subject, utc(proxy.not_after)));
            proxies.push(proxy);
        }
        Err(error(Code::ProxyRefused, &chain[0], "the chain lacks the certificate of the user".into()))
    }

    /// Checks the form of a proxy below which there are `below` others.
    fn check_form(&self, proxy: &GridCertificate, form: ProxyForm, below: usize) -> Result<Language, Error> {
        let refused = |cause: &str| Err(error(Code::ProxyRefused, proxy, cause.into()));
        let (limit, language) = match form {
            ProxyForm::Draft => return refused("it is a proxy of a draft before RFC 3820 (Globus 3)"),
            ProxyForm::Legacy => {
                return refused("it is a legacy proxy (Globus 2), which any holder could widen");
            }
            ProxyForm::Rfc3820 { below, language } => (below, language),
        };
        match language {
            Language::InheritAll | Language::Limited => {}
            Language::Independent => return refused("it is independent: it has no rights of its user"),
            Language::Other => return refused("its policy is in a language that is not known here"),
        }
        if limit.is_some_and(|limit| below > usize::try_from(limit).unwrap_or(usize::MAX)) {
            return refused("it does not allow so many proxies below it");
        }
        if proxy.is_authority || proxy.has_other_names {
            return refused("a proxy is no authority and has no other names");
        }
        Ok(language)
    }

    /// Checks a proxy by its issuer.
    fn check_link(&self, proxy: &GridCertificate, issuer: &GridCertificate) -> Result<(), Error> {
        let refused = |cause: &str| Err(error(Code::ProxyRefused, proxy, cause.into()));
        if proxy.subject.common_name_below(&issuer.subject).is_none() {
            return refused("its name is not that of its issuer with one common name more");
        }
        if issuer.is_authority {
            return refused("an authority issues no proxies");
        }
        if !may_sign(issuer) || !may_sign(proxy) {
            return refused("the key usage does not allow signatures");
        }
        self.check_signature(proxy, issuer)?;
        self.check_common(proxy)
    }

    /// Verifies the user's certificate.
    ///
    /// # Errors
    /// As [`Judge::path`]; `BadCertificate`.
    pub(super) fn user(
        &self,
        user: &GridCertificate,
        sent: &[GridCertificate],
        tell: &mut dyn FnMut(String),
    ) -> Result<(), Error> {
        let bad = |cause: &str| Err(error(Code::BadCertificate, user, cause.into()));
        if user.is_authority {
            return bad("an authority is no user");
        }
        if !may_sign(user) || user.for_clients == Some(false) {
            return bad("its use is not that of a client");
        }
        if user.subject.is_ambiguous() {
            return bad("a part of its name looks like several");
        }
        self.path(user, sent, tell)
    }

    /// Verifies a certificate to an authority of the folders.
    ///
    /// # Errors
    /// `GridAuthorityUnknown`, `GridSignature`, `WeakDigest`, `GridCertificateExpired`, `GridCertificateNotYetValid`,
    /// `GridCertificateRevoked`, `RevocationListMissing`, `RevocationListExpired`, `SigningPolicy`, `BadCertificate`.
    pub(super) fn path(
        &self,
        end: &GridCertificate,
        sent: &[GridCertificate],
        tell: &mut dyn FnMut(String),
    ) -> Result<(), Error> {
        let mut current = end;
        self.check_common(end)?;
        // Those that an authority sent by the peer issued: it has no policy here.
        let mut issued_by_sent = Vec::new();
        for between in 0..MAX_AUTHORITIES {
            let installed = self.installed(current)?;
            let Some(issuer) = installed.map(|one| &one.certificate).or_else(|| sent_issuer(current, sent))
            else {
                let cause = format!("no authority {} is installed here", current.issuer);
                return Err(error(Code::GridAuthorityUnknown, current, cause));
            };
            self.check_authority(current, issuer, between)?;
            match installed {
                Some(installed) => self.check_by_files(current, installed)?,
                None => issued_by_sent.push(current),
            }
            let origin = if installed.is_some() { "installed here" } else { "sent by the peer" };
            tell(format!("issued by {}, {origin}", issuer.subject));
            let is_top = issuer.is_own_issuer() || self.authorities.named(&issuer.issuer).next().is_none();
            if installed.is_some() && is_top {
                return issued_by_sent.into_iter().try_for_each(|one| self.check_without_files(one));
            }
            current = issuer;
        }
        let cause = format!("there are more than {MAX_AUTHORITIES} authorities above it");
        Err(error(Code::BadCertificate, end, cause))
    }

    /// Checks a certificate by the policy and the revocation list of its installed issuer.
    fn check_by_files(&self, current: &GridCertificate, issuer: &Authority) -> Result<(), Error> {
        self.check_policy(current, issuer.policy.as_ref())?;
        self.check_revocation(current, Some(issuer))
    }

    fn check_without_files(&self, current: &GridCertificate) -> Result<(), Error> {
        self.check_policy(current, None)?;
        self.check_revocation(current, None)
    }

    /// The installed issuer of a certificate: of several with its name, one that signed it, and is valid if one is.
    fn installed(&self, current: &GridCertificate) -> Result<Option<&Authority>, Error> {
        let (mut refusal, mut invalid) = (None, None);
        for authority in self.authorities.named(&current.issuer) {
            match self.check_signature(current, &authority.certificate) {
                Ok(()) if self.check_common(&authority.certificate).is_ok() => return Ok(Some(authority)),
                // The check of authorities says what is wrong with it, if its renewal is not here.
                Ok(()) => invalid = invalid.or(Some(authority)),
                Err(error) => refusal = Some(error),
            }
        }
        match (invalid, refusal) {
            (None, Some(error)) => Err(error),
            (invalid, _) => Ok(invalid),
        }
    }

    fn check_authority(
        &self,
        current: &GridCertificate,
        issuer: &GridCertificate,
        between: usize,
    ) -> Result<(), Error> {
        let bad = |cause: String| Err(error(Code::BadCertificate, current, cause));
        if !issuer.may_certify() {
            return bad(format!("{} is no authority", issuer.subject));
        }
        if issuer.path_length.is_some_and(|most| between > usize::try_from(most).unwrap_or(usize::MAX)) {
            return bad(format!("{} allows fewer authorities below it", issuer.subject));
        }
        self.check_signature(current, issuer)?;
        self.check_common(issuer)
    }

    fn check_policy(
        &self,
        current: &GridCertificate,
        policy: Option<&Result<SigningPolicy, String>>,
    ) -> Result<(), Error> {
        let authority = current.issuer.to_string();
        let refused = |cause: String| Err(error(Code::SigningPolicy, current, cause));
        match policy {
            Some(Ok(policy)) if policy.allows(&authority, &current.subject.to_string()) => Ok(()),
            Some(Ok(_)) => refused(format!("the policy of {authority} does not have this name")),
            Some(Err(cause)) => refused(format!("the policy of {authority} cannot be used: {cause}")),
            None if self.config.signing_policy == RequiredFiles::IfPresent => Ok(()),
            None => refused(format!("there is no policy of {authority}")),
        }
    }

    fn check_revocation(&self, current: &GridCertificate, issuer: Option<&Authority>) -> Result<(), Error> {
        let refused = |code, cause: String| Err(error(code, current, cause));
        let lists = issuer.map(|issuer| &issuer.lists[..]).unwrap_or_default();
        match issuer.and_then(Authority::list) {
            Some(list) if list.has(&current.serial) => {
                refused(Code::GridCertificateRevoked, format!("{} took it back", current.issuer))
            }
            Some(list) if list.is_over(self.at) => {
                let until = list.until.map(utc).unwrap_or_default();
                refused(
                    Code::RevocationListExpired,
                    format!("that of {} was good until {until}", current.issuer),
                )
            }
            Some(_) => Ok(()),
            None => match lists.iter().find_map(|list| list.as_ref().err()) {
                Some(cause) if cause.contains("signed with") => {
                    refused(Code::WeakDigest, format!("the revocation list of {}: {cause}", current.issuer))
                }
                Some(cause) => {
                    refused(Code::RevocationListExpired, format!("that of {}: {cause}", current.issuer))
                }
                None if self.config.revocation == RequiredFiles::IfPresent => Ok(()),
                None => refused(Code::RevocationListMissing, format!("that of {}", current.issuer)),
            },
        }
    }

    fn check_signature(&self, current: &GridCertificate, issuer: &GridCertificate) -> Result<(), Error> {
        current.verify_by(&issuer.spki, self.config.weak_digests).map_err(|refusal| match refusal {
            Unsigned::Weak(digest) => error(Code::WeakDigest, current, format!("it is signed with {digest}")),
            Unsigned::Wrong => error(
                Code::GridSignature,
                current,
                format!("it is not signed by the key of {}", issuer.subject),
            ),
        })
    }

    /// Checks dates, and that nothing critical is unknown.
    fn check_common(&self, one: &GridCertificate) -> Result<(), Error> {
        let here = utc(self.at);
        if self.at > one.not_after {
            let cause = format!("it expired on {}; here it is {here}", utc(one.not_after));
            return Err(error(Code::GridCertificateExpired, one, cause));
        }
        if self.at + CLOCKS < one.not_before {
            let cause = format!("it is valid from {}; here it is {here}", utc(one.not_before));
            return Err(error(Code::GridCertificateNotYetValid, one, cause));
        }
        match &one.unknown {
            None => Ok(()),
            Some(oid) => Err(error(
                Code::BadCertificate,
                one,
                format!("its critical extension {oid} is not known here"),
            )),
        }
    }
}

fn may_sign(one: &GridCertificate) -> bool {
    one.key_usage.is_none_or(|usage| usage.signs)
}

/// An authority that the peer sent with the chain, and that is not the certificate itself.
fn sent_issuer<'c>(current: &GridCertificate, sent: &'c [GridCertificate]) -> Option<&'c GridCertificate> {
    sent.iter().find(|one| one.subject == current.issuer && one.is_authority && one.der != current.der)
}

fn error(code: Code, about: &GridCertificate, cause: String) -> Error {
    Error::new(code, OP, &about.subject, cause)
}
