//! The site's own certificate authority: it issues certificates to the site's PoPs and users, for some hours or a
//! year, and revokes them.
//!
//! The key stays in `pki/ca.key`; it is ECDSA on P-256. Names are URIs (`renkei://kek/user/alice`); of a certificate
//! request only the public key is used, every name is set here. Certificates are backdated by five minutes so that a
//! peer whose clock is a little behind accepts them. An authority that succeeded another one appends the
//! cross-certificate by its predecessor to each chain, so that partners that know only the predecessor can verify it
//! ([`super::handover`]). Non-goals: other intermediate authorities (the path length is 0) and names of other sites.

pub mod issued;
pub mod rotation;

use super::authority::issued::Revoked;
use super::certificate::{
    BACKDATED, Facts, parse_chain, parse_serial, public_key, serial_bytes, serial_text, to_pem, unix_seconds,
};
use super::credential::generate_key;
use super::handover::{AUTHORITY_OF, Handover, Origin, check_name, former_name_extension};
use super::pki::extension::{self, Borrower, Grant, Sponsor};
use super::pki::handover_file::handover_to;
use super::secret;
use super::trust::list_number;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use renkei_config::home::{Home, file_error, make_private_dir, write_file};
use renkei_config::{Config, MAX_DELEGATION_DAYS};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::path::SiteName;
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of the authority's certificate: ten years.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Lifetime of a PoP's certificate: one year.
const HOST_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// Default lifetime of a user's certificate in hours.
pub const USER_HOURS: u32 = 12;
/// Longest lifetime of a user's certificate in hours: a week.
pub const MAX_USER_HOURS: u32 = 7 * 24;
/// Retries of reading key and certificate of the authority when they do not match.
const READ_AGAIN: u32 = 3;
/// Largest certificate request accepted.
const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// A site's authority with its key.
pub struct Authority {
    site: SiteName,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    /// The cross-certificate appended to each chain: this authority's key, signed by its predecessor, if there was
    /// one.
    cross: Option<CertificateDer<'static>>,
}

/// The succeeding authority, and the certificates that its predecessor signed for it.
pub(super) struct Succession {
    pub(super) next: Authority,
    /// The hand-over, valid from now on.
    pub(super) handover: Handover,
    /// The same cross-certificate, but expired when it was made: no chain verifies by it, it only explains what
    /// happened.
    pub(super) notice: CertificateDer<'static>,
}

/// A newly issued certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate, followed by the cross-certificate of its authority.
    pub pem: String,
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The principal that it names.
    pub principal: Principal,
    /// The end of its validity.
    pub not_after: SystemTime,
}

/// The names of a certificate's holder.
struct Names {
    /// The URI, by which it is verified.
    uri: String,
    /// The common name, for people.
    common: String,
}

impl Authority {
    /// Makes a new authority, in memory.
    pub fn create(site: &SiteName, now: SystemTime) -> Result<Self, Error> {
        Self::self_signed(site, authority_params(&format!("{site}{AUTHORITY_OF}"), now, now + AUTHORITY_LIFE))
    }

    fn self_signed(site: &SiteName, params: CertificateParams) -> Result<Self, Error> {
        let key = generate_key()?;
        let certificate = params.self_signed(&key).map_err(defect)?.der().clone();
        let issuer = Issuer::new(params, key);
        Ok(Authority { site: site.clone(), certificate, issuer, cross: None })
    }

    /// Makes the authority that succeeds this one, in memory, for the site under its name or a new one. Certificates
    /// of this one stay valid for `keep`.
    pub(super) fn succeed(
        &self,
        site: &SiteName,
        keep: Duration,
        now: SystemTime,
    ) -> Result<Succession, Error> {
        let until = now + keep;
        let until_unix = unix_seconds(until).unsigned_abs();
        let origin = Origin::after(site, &self.certificate, until_unix)?;
        // Another common name, because revocation lists and certificates are told apart by the name of their issuer.
        let name = format!("{site}{AUTHORITY_OF} {}", origin.number);
        let mut params = authority_params(&name, now, now + AUTHORITY_LIFE);
        params.custom_extensions = vec![origin.extension()];
        if *site != self.site {
            params.custom_extensions.push(former_name_extension(&self.site));
        }
        let mut next = Self::self_signed(site, params)?;
        let cross = |end: SystemTime| {
            let params = authority_params(&name, now, end);
            params.signed_by(next.issuer.key(), &self.issuer).map(|made| made.der().clone()).map_err(defect)
        };
        let notice = cross(now - Duration::from_secs(1))?;
        let cross = if keep.is_zero() { notice.clone() } else { cross(until)? };
        next.cross = Some(cross.clone());
        let handover = Handover { previous: self.certificate.clone(), cross, until_unix };
        Ok(Succession { next, handover, notice })
    }

    /// Reads the authority of the PoP in `home`.
    pub fn load(home: &Home) -> Result<Self, Error> {
        let config = Config::load(home)?;
        Self::load_of(home, config.site(home)?)
    }

    /// The same where there is no configuration yet.
    pub fn load_of(home: &Home, site: &SiteName) -> Result<Self, Error> {
        let path = home.ca_cert();
        let mut tries = 0;
        let (certificate, key) = loop {
            let pem = renkei_config::home::read_text(&path, 64 * 1024)?.ok_or_else(|| missing(&path))?;
            let certificate = parse_chain(&pem)?.remove(0);
            match key_of(home, &certificate) {
                Ok(key) => break (certificate, key),
                // The two files may be being replaced just now.
                Err(error) if tries == READ_AGAIN => return Err(error),
                Err(_) => tries += 1,
            }
        };
        check_name(site, &certificate)?;
        let cross = handover_to(home, site, &certificate)?.map(|handover| handover.cross);
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|error| bad_file(&path, &error))?;
        Ok(Authority { site: site.clone(), certificate, issuer, cross })
    }

    /// Writes certificate and key; never overwrites an authority.
    pub fn store(&self, home: &Home) -> Result<(), Error> {
        if home.ca_key().exists() {
            let cause = "pki/ca.key exists; restore config.toml, or move the folder pki away to start again";
            return Err(Error::new(
                Code::AlreadyInitialised,
                "create authority",
                home.ca_key().display(),
                cause,
            ));
        }
        secret::write(&home.ca_key(), &self.issuer.key().serialize_pem())?;
        write_file(&home.ca_cert(), self.certificate_pem().as_bytes(), 0o644)
    }

    /// The key, PEM; secret.
    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The site for which this authority issues certificates.
    pub fn site(&self) -> &SiteName {
        &self.site
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The authority's certificate as text.
    pub fn certificate_pem(&self) -> String {
        to_pem("CERTIFICATE", &self.certificate)
    }

    /// Issues the certificate of a PoP of this site, for a year. `hosts` are its host names and addresses, for plain
    /// HTTPS clients.
    pub fn issue_host(
        &self,
        key: &impl PublicKeyData,
        hosts: &[String],
        now: SystemTime,
    ) -> Result<Issued, Error> {
        let mut params = CertificateParams::default();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.subject_alt_names = hosts.iter().filter_map(|host| host_name(host)).collect();
        let host = Principal::Host(self.site.clone());
        let names = Names { uri: host.to_uri(), common: host.to_string() };
        self.issue(host, names, params, key, now, HOST_LIFE)
    }

    /// Issues the certificate of a user of this site. `request` is a PEM certificate request, which proves possession
    /// of the key.
    pub fn issue_user(
        &self,
        name: &str,
        request: &str,
        hours: u32,
        now: SystemTime,
    ) -> Result<Issued, Error> {
        let principal = Principal::user(&self.site, name)?;
        if !(1..=MAX_USER_HOURS).contains(&hours) {
            let cause = format!("the life of a certificate is 1 to {MAX_USER_HOURS} hours");
            return Err(Error::new(Code::UsageInvalid, "issue certificate", hours, cause));
        }
        let key = parse_request(request)?.public_key;
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let names = Names { uri: principal.to_uri(), common: principal.to_string() };
        self.issue(principal, names, params, &key, now, HOUR * hours)
    }

    /// Issues a certificate of a user of this site for one transfer, restricted to `scope`; `parent` is the serial of
    /// the certificate by which the user requested it.
    ///
    /// # Errors
    /// `NotAllowed` for a principal that is no user of this site, `UsageInvalid` for a lifetime of zero or over
    /// [`MAX_DELEGATION_DAYS`] days.
    pub fn issue_delegated(
        &self,
        user: &Principal,
        scope: &Scope,
        parent: &str,
        key: &impl PublicKeyData,
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, Error> {
        let own = if *user.site() == self.site { user.to_delegated_uri() } else { None };
        let uri = own.ok_or_else(|| {
            let cause = format!("the authority of {} vouches for its own users alone", self.site);
            Error::new(Code::NotAllowed, "delegate", user, cause)
        })?;
        if life.is_zero() || life.as_secs() > DAY.as_secs() * MAX_DELEGATION_DAYS {
            let cause = format!("the life of a delegated credential is 1 to {MAX_DELEGATION_DAYS} days");
            return Err(Error::new(Code::UsageInvalid, "delegate", user, cause));
        }
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions = vec![extension::scope_extension(scope, &parse_serial(parent)?)];
        let names = Names { uri, common: format!("{user}, delegated") };
        self.issue(user.clone(), names, params, key, now, life)
    }

    /// Issues the certificate of the agent of a storage of this site, for `life`. `request` is a PEM certificate
    /// request.
    ///
    /// # Errors
    /// `NotAllowed` if the sponsor is no user of this site.
    pub fn issue_agent(
        &self,
        storage: &str,
        sponsor: &Sponsor,
        request: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, Error> {
        let agent = Principal::agent(&self.site, storage)?;
        let user = &sponsor.user;
        if user.user_name().is_none() || *user.site() != self.site {
            let cause = format!("the agents of {} are run by its own users", self.site);
            return Err(Error::new(Code::NotAllowed, "enlist", user, cause));
        }
        let key = parse_request(request)?.public_key;
        let mut params = CertificateParams::default();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions = vec![extension::agent_extension(sponsor)];
        let names = Names { uri: agent.to_uri(), common: format!("agent of {agent} for {user}") };
        self.issue(user.clone(), names, params, &key, now, life)
    }

    /// Issues a certificate of a user of this site for the mounts of one machine, for `life`. `request` is a PEM
    /// certificate request.
    ///
    /// # Errors
    /// `NotAllowed` for a principal that is no user of this site.
    pub fn issue_mount(
        &self,
        grant: &Grant,
        request: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, Error> {
        let user = &grant.user;
        if user.user_name().is_none() || *user.site() != self.site {
            let cause = format!("the authority of {} vouches for its own users alone", self.site);
            return Err(Error::new(Code::NotAllowed, "grant mount credential", user, cause));
        }
        let key = parse_request(request)?.public_key;
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions = vec![extension::mount_extension(&grant.number, &grant.name)];
        let names = Names { uri: user.to_uri(), common: format!("{user}, mount {}", grant.name) };
        self.issue(user.clone(), names, params, &key, now, life)
    }

    /// Issues a certificate of a user of this site for evidence of another kind, for `life`, with no more rights than
    /// that. `request` is a PEM certificate request.
    ///
    /// # Errors
    /// `NotAllowed` for a principal that is no user of this site, `BadCertificate` for the request.
    pub fn issue_borrowed(
        &self,
        borrower: &Borrower,
        request: &str,
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, Error> {
        let user = &borrower.user;
        let own = if *user.site() == self.site { user.to_delegated_uri() } else { None };
        let delegated = own.ok_or_else(|| {
            let cause = format!("the authority of {} vouches for its own users alone", self.site);
            Error::new(Code::NotAllowed, "issue certificate", user, cause)
        })?;
        let (key, parent) = (parse_request(request)?.public_key, parse_serial(&borrower.parent)?);
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.custom_extensions = vec![extension::borrowed_extension(&parent, borrower.kind)];
        let scope = borrower.scope.as_ref().map(|scope| extension::scope_extension(scope, &parent));
        // Programs that do not know scopes find no name that they accept.
        let uri = if scope.is_some() { delegated } else { user.to_uri() };
        params.custom_extensions.extend(scope);
        let names = Names { uri, common: format!("{user}, by {}", borrower.kind) };
        self.issue(user.clone(), names, params, &key, now, life)
    }

    fn issue(
        &self,
        principal: Principal,
        names: Names,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
        now: SystemTime,
        life: Duration,
    ) -> Result<Issued, Error> {
        let uri = names.uri.try_into().map_err(defect)?;
        params.subject_alt_names.insert(0, SanType::URI(uri));
        params.distinguished_name = named(&names.common);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(random_serial());
        params.not_before = (now - BACKDATED).into();
        params.not_after = self.end(now, life)?.into();
        let certificate = params.signed_by(key, &self.issuer).map_err(defect)?;
        let facts = Facts::read(certificate.der())?;
        let cross = self.cross.iter().map(|cross| to_pem("CERTIFICATE", cross));
        let pem = std::iter::once(to_pem("CERTIFICATE", certificate.der())).chain(cross).collect();
        Ok(Issued { pem, serial: facts.serial, principal, not_after: facts.not_after })
    }

    /// The end of a certificate issued now: none outlives its authority. Certificates of an expired authority are
    /// refused for its expiry.
    fn end(&self, now: SystemTime, life: Duration) -> Result<SystemTime, Error> {
        let own = Facts::read(&self.certificate)?.not_after;
        Ok(if own > now { own.min(now + life) } else { now + life })
    }

    /// Signs the revocation list; `number` must grow from list to list.
    pub fn sign_list(&self, revoked: &[Revoked], number: u64, now: SystemTime) -> Result<Vec<u8>, Error> {
        let revoked_certs = revoked.iter().map(revoked_params).collect::<Result<_, _>>()?;
        let params = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + 30 * DAY).into(),
            crl_number: SerialNumber::from_slice(&number.to_be_bytes()),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer).map_err(defect)?.der().to_vec())
    }

    /// Revokes certificates and writes the new list to the file that [`super::trust::Trust`] reads.
    pub fn revoke(&self, home: &Home, serials: &[String], now: SystemTime) -> Result<(), Error> {
        for serial in serials {
            issued::note_revoked(home, serial, now)?;
        }
        self.publish_list(home, now)
    }

    /// Signs the list of all revoked certificates anew.
    pub(super) fn publish_list(&self, home: &Home, now: SystemTime) -> Result<(), Error> {
        let path = home.crl_file(&self.site);
        let last = std::fs::read(&path).ok().and_then(|der| list_number(&der).ok()).unwrap_or(0);
        let number = unix_seconds(now).unsigned_abs().max(last + 1);
        let list = self.sign_list(&issued::revoked(home)?, number, now)?;
        make_private_dir(&home.crl_dir())?;
        write_file(&path, &list, 0o644)
    }
}

/// The parameters of an authority's certificate, whoever signs it.
fn authority_params(name: &str, now: SystemTime, end: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(random_serial());
    params.not_before = (now - BACKDATED).into();
    params.not_after = end.into();
    params
}

/// The key of an authority's certificate; while it is being replaced, that may be in the file of the next one.
fn key_of(home: &Home, certificate: &CertificateDer<'_>) -> Result<KeyPair, Error> {
    let wanted = public_key(certificate)?;
    let mut first = None;
    for path in [home.ca_key(), home.ca_next_key()] {
        let Some(pem) = secret::read(&path)? else { continue };
        let key = KeyPair::from_pem(&pem).map_err(|error| bad_file(&path, &error))?;
        if key.subject_public_key_info() == wanted {
            return Ok(key);
        }
        first.get_or_insert(path);
    }
    let path = first.ok_or_else(|| {
        Error::new(Code::AuthorityKeyAway, "read authority", home.ca_key().display(), "the file is missing")
    })?;
    let cause = "it is the key of another authority than pki/ca.pem";
    Err(Error::new(Code::NotInitialised, "read authority", path.display(), cause))
}

fn missing(path: &std::path::Path) -> Error {
    Error::new(Code::NotInitialised, "read authority", path.display(), "the file is missing")
}

/// Issues a fresh certificate for the PoP in `home`, with a new key if it has none or `new_key` is set.
pub fn renew_host(
    home: &Home,
    authority: &Authority,
    endpoints: &[String],
    new_key: bool,
    now: SystemTime,
) -> Result<Issued, Error> {
    certify_host(home, authority, endpoints, new_key, &home.host_cert(), now)
}

/// The same with the certificate in another file.
pub(super) fn certify_host(
    home: &Home,
    authority: &Authority,
    endpoints: &[String],
    new_key: bool,
    file: &std::path::Path,
    now: SystemTime,
) -> Result<Issued, Error> {
    let path = home.host_key();
    let old = if new_key { None } else { secret::read(&path)? };
    let key = match &old {
        Some(pem) => KeyPair::from_pem(pem).map_err(|error| bad_file(&path, &error))?,
        None => generate_key()?,
    };
    let fresh = authority.issue_host(&key, &host_names(endpoints), now)?;
    issued::note(home, &fresh)?;
    if old.is_none() {
        secret::write(&path, &key.serialize_pem())?;
    }
    write_file(file, fresh.pem.as_bytes(), 0o644)?;
    Ok(fresh)
}

/// The host names and addresses of endpoints, in the form of the PoP's certificate.
pub fn host_names(endpoints: &[String]) -> Vec<String> {
    let hosts = endpoints.iter().filter_map(|endpoint| endpoint_host(endpoint));
    let canonical = |host: String| match host.parse::<IpAddr>() {
        Ok(ip) => Some(ip.to_string()),
        Err(_) => host_name(&host).map(|_| host),
    };
    hosts.filter_map(canonical).collect()
}

fn endpoint_host(endpoint: &str) -> Option<String> {
    let host = endpoint.rsplit_once(':')?.0;
    Some(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

fn host_name(host: &str) -> Option<SanType> {
    match host.parse::<IpAddr>() {
        Ok(ip) => Some(SanType::IpAddress(ip)),
        Err(_) => host.to_owned().try_into().ok().map(SanType::DnsName),
    }
}

fn parse_request(pem: &str) -> Result<CertificateSigningRequestParams, Error> {
    let bad = |cause: String| Error::new(Code::BadCertificate, "read certificate request", "", cause);
    if pem.len() > MAX_REQUEST_BYTES {
        return Err(bad(format!("it is larger than {MAX_REQUEST_BYTES} bytes")));
    }
    CertificateSigningRequestParams::from_pem(pem).map_err(|error| bad(error.to_string()))
}

fn revoked_params(revoked: &Revoked) -> Result<RevokedCertParams, Error> {
    let bytes = serial_bytes(&parse_serial(&revoked.serial)?);
    Ok(RevokedCertParams {
        serial_number: SerialNumber::from_slice(&bytes),
        revocation_time: revoked.moment.into(),
        reason_code: None,
        invalidity_date: None,
    })
}

fn named(text: &str) -> rcgen::DistinguishedName {
    let mut name = rcgen::DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

/// A serial that no certificate has: the number of a grant.
pub(super) fn random_number() -> String {
    serial_text(&random_serial().to_bytes())
}

/// 126 random bits: positive and always 16 bytes long, so that it has one text form.
fn random_serial() -> SerialNumber {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes[0] = bytes[0] & 0x3f | 0x40;
    debug_assert_eq!(serial_text(&bytes).len(), 32);
    SerialNumber::from_slice(&bytes)
}

fn defect(error: rcgen::Error) -> Error {
    Error::new(Code::Internal, "make certificate", "", error)
}

fn bad_file(path: &std::path::Path, error: &rcgen::Error) -> Error {
    file_error("read", path, &std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::credential::KeyRequest;
    use crate::identity::tests::{now, site};

    #[test]
    fn a_user_certificate_has_our_names_only() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = named("root@elsewhere");
        params.subject_alt_names = vec![SanType::URI("renkei://kek/host".try_into().unwrap())];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let request = params.serialize_request(&generate_key().unwrap()).unwrap().pem().unwrap();
        let issued = authority.issue_user("alice", &request, 12, now()).unwrap();
        let facts = Facts::read(&parse_chain(&issued.pem).unwrap()[0]).unwrap();
        assert_eq!(facts.names, ["renkei://kek/user/alice"]);
        assert!(!facts.is_authority);
        assert_eq!((facts.not_after, facts.not_before), (now() + 12 * HOUR, now() - BACKDATED));
        assert_eq!(facts.serial, issued.serial);
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let (key, end) = (generate_key().unwrap(), now() + AUTHORITY_LIFE);
        let host = |at| authority.issue_host(&key, &[], at).unwrap();
        assert_eq!(host(now()).not_after, now() + HOST_LIFE);
        let last = host(end - 30 * DAY);
        assert_eq!(last.not_after, end);
        assert_eq!(Facts::read(&parse_chain(&last.pem).unwrap()[0]).unwrap().not_after, end);
        let request = KeyRequest::generate().unwrap().request;
        assert_eq!(authority.issue_user("alice", &request, 12, end - HOUR).unwrap().not_after, end);
    }

    #[test]
    fn serials_differ_for_one_key() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let request = KeyRequest::generate().unwrap();
        let issue = || authority.issue_user("alice", &request.request, 12, now()).unwrap().serial;
        assert_ne!(issue(), issue());
    }

    #[test]
    fn bad_requests_are_refused() {
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let good = KeyRequest::generate().unwrap().request;
        let code = |name: &str, request: &str, hours| {
            authority.issue_user(name, request, hours, now()).unwrap_err().code
        };
        assert_eq!(code("alice", "garbage", 12), Code::BadCertificate);
        assert_eq!(code("alice", &"x".repeat(20_000), 12), Code::BadCertificate);
        assert_eq!(code("a b", &good, 12), Code::UsageInvalid);
        assert_eq!(code("alice", &good, 0), Code::UsageInvalid);
        assert_eq!(code("alice", &good, 1000), Code::UsageInvalid);
        let forged = forge(&good);
        assert_eq!(code("alice", &forged, 12), Code::BadCertificate);
    }

    /// The request with a bit of its signature flipped.
    fn forge(request: &str) -> String {
        let mut der = pem::parse(request).unwrap().into_contents();
        let last = der.len() - 1;
        der[last] ^= 1;
        to_pem("CERTIFICATE REQUEST", &der)
    }

    #[test]
    fn an_authority_is_stored_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let authority = Authority::create(&site("kek"), now()).unwrap();
        authority.store(&home).unwrap();
        assert_eq!(authority.store(&home).unwrap_err().code, Code::AlreadyInitialised);
        assert_eq!(Authority::load(&home).err().unwrap().code, Code::NotInitialised);
        std::fs::write(home.config_file(), "site = 'kek'").unwrap();
        let loaded = Authority::load(&home).unwrap();
        assert_eq!(loaded.certificate(), authority.certificate());
    }

    #[test]
    fn renewing_keeps_the_key_unless_requested() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let authority = Authority::create(&site("kek"), now()).unwrap();
        let endpoints = ["pop.kek.jp:7512".to_owned(), "[::1]:7512".to_owned()];
        let renew = |new_key| {
            let issued = renew_host(&home, &authority, &endpoints, new_key, now()).unwrap();
            (issued.serial, secret::read(&home.host_key()).unwrap().unwrap())
        };
        let (first, second, third) = (renew(false), renew(false), renew(true));
        assert!(first.0 != second.0 && first.1 == second.1 && second.1 != third.1);
        assert_eq!(issued::find(&home, "kek", now()).unwrap().len(), 3);
    }
}
