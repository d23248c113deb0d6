//! GSSAPI with owned values: names, credentials and contexts that are released, and errors as text.
//!
//! All `unsafe` blocks of Kerberos are here and in `library`. Pointers that are given to the library live as long
//! as the call; what it allocates is released by its own functions. Its calls may be made from any thread, also on a
//! handle that another thread made, as long as one thread at a time uses it (MIT Kerberos is thread-safe in that sense).

use super::library::{Buffer, Gssapi, Handle, KeyValue, KeyValueSet, Oid, OidSet, gssapi};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// 1.3.6.1.5.5.2 (RFC 4178).
const SPNEGO: &[u8] = b"\x2b\x06\x01\x05\x05\x02";
/// 1.2.840.113554.1.2.2 (RFC 4121).
const KRB5: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";
/// GSS_KRB5_NT_PRINCIPAL_NAME: 1.2.840.113554.1.2.2.1 (RFC 1964, 2.1.1).
const PRINCIPAL_NAME: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01";
/// GSS_C_NT_HOSTBASED_SERVICE: 1.2.840.113554.1.2.1.4 (RFC 2743, 4.1).
const HOSTBASED_SERVICE: &[u8] = b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04";

const CONTINUE_NEEDED: u32 = 1;
/// Bits of routine and calling errors in a major status.
const ERRORS: u32 = 0xffff_0000;
const INDEFINITE: u32 = u32::MAX;
const INITIATE: c_int = 1;
const ACCEPT: c_int = 2;
const GSS_CODE: c_int = 1;
const MECH_CODE: c_int = 2;
/// The largest number of messages that are shown of one status.
const MAX_MESSAGES: usize = 4;

/// A failed call.
#[derive(Debug)]
pub(super) struct Failure {
    /// The routine error of the major status (RFC 2744, 3.9.1).
    pub(super) routine: u32,
    /// What the library says.
    pub(super) text: String,
}

/// GSS_S_CREDENTIALS_EXPIRED.
pub(super) const CREDENTIALS_EXPIRED: u32 = 11;

impl Failure {
    fn absent(cause: &str) -> Self {
        Failure { routine: 0, text: cause.into() }
    }

    /// Reads the messages of a failed call; on the thread of the call, where the library keeps details.
    fn read(gss: &'static Gssapi, major: u32, minor: u32) -> Self {
        let of_mechanism = if minor == 0 { String::new() } else { messages(gss, minor, MECH_CODE) };
        // Some failures have a minor status that stands for none.
        let is_told = !of_mechanism.is_empty() && of_mechanism != "Success";
        let text = if is_told { of_mechanism } else { messages(gss, major, GSS_CODE) };
        Failure { routine: (major >> 16) & 0xff, text }
    }
}

fn messages(gss: &'static Gssapi, status: u32, kind: c_int) -> String {
    let (mut all, mut next) = (Vec::new(), 0);
    for _ in 0..MAX_MESSAGES {
        let mut text = Owned::new(gss);
        let mut minor = 0;
        // SAFETY: all pointers are valid for the call; without a mechanism the library finds that of the status.
        let major = unsafe {
            (gss.gss_display_status)(&mut minor, status, kind, null(), &mut next, &mut text.buffer)
        };
        if major & ERRORS != 0 {
            break;
        }
        all.push(text.to_text());
        if next == 0 {
            break;
        }
    }
    all.join("; ")
}

fn check(gss: &'static Gssapi, major: u32, minor: u32) -> Result<(), Failure> {
    if major & ERRORS == 0 { Ok(()) } else { Err(Failure::read(gss, major, minor)) }
}

/// An identifier whose bytes are of the binary.
fn oid(bytes: &'static [u8]) -> Oid {
    let length = u32::try_from(bytes.len()).expect("an identifier has a few bytes");
    // The library does not write to it.
    Oid { length, elements: bytes.as_ptr().cast_mut().cast() }
}

/// A buffer that the library allocated.
struct Owned {
    gss: &'static Gssapi,
    buffer: Buffer,
}

impl Owned {
    fn new(gss: &'static Gssapi) -> Self {
        Owned { gss, buffer: Buffer { length: 0, value: null_mut() } }
    }

    fn to_vec(&self) -> Vec<u8> {
        if self.buffer.value.is_null() {
            return Vec::new();
        }
        // SAFETY: the library filled the buffer with this many bytes; they live until it is released.
        unsafe { std::slice::from_raw_parts(self.buffer.value.cast::<u8>(), self.buffer.length) }.to_vec()
    }

    fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.to_vec()).trim_end_matches('\0').to_owned()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the buffer is empty or of the library.
        unsafe { (self.gss.gss_release_buffer)(&mut 0, &mut self.buffer) };
    }
}

/// A name.
struct Name {
    gss: &'static Gssapi,
    handle: Handle,
}

impl Name {
    fn none(gss: &'static Gssapi) -> Self {
        Name { gss, handle: null_mut() }
    }

    /// A service (`HTTP`) at any host.
    fn service(gss: &'static Gssapi, text: &str) -> Result<Self, Failure> {
        Self::import(gss, text, HOSTBASED_SERVICE)
    }

    /// A principal as it is written. An empty realm (`HTTP/pop.kek.jp@`) is for the KDC to find.
    fn principal(gss: &'static Gssapi, text: &str) -> Result<Self, Failure> {
        Self::import(gss, text, PRINCIPAL_NAME)
    }

    fn import(gss: &'static Gssapi, text: &str, kind: &'static [u8]) -> Result<Self, Failure> {
        let buffer = Buffer { length: text.len(), value: text.as_ptr().cast_mut().cast() };
        let (mut name, mut minor) = (Name::none(gss), 0);
        // SAFETY: all pointers are valid for the call, and the text is not written to.
        let major = unsafe { (gss.gss_import_name)(&mut minor, &buffer, &oid(kind), &mut name.handle) };
        check(gss, major, minor).map(|()| name)
    }

    fn display(&self) -> Result<String, Failure> {
        let (mut text, mut minor) = (Owned::new(self.gss), 0);
        // SAFETY: the handle is a name of the library; the kind of the name is not asked for.
        let major =
            unsafe { (self.gss.gss_display_name)(&mut minor, self.handle, &mut text.buffer, null_mut()) };
        check(self.gss, major, minor)?;
        principal_text(text.to_vec())
    }
}

/// The text of a principal. One that is not UTF-8 is refused: with replacements, different ones would have the same text.
fn principal_text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| Failure::absent("the name of the principal is not UTF-8"))
}

impl Drop for Name {
    fn drop(&mut self) {
        // SAFETY: the handle is none or a name that nobody else has.
        unsafe { (self.gss.gss_release_name)(&mut 0, &mut self.handle) };
    }
}

/// Keys of a service, or the tickets of a user.
pub(super) struct Credential {
    gss: &'static Gssapi,
    handle: Handle,
}

// SAFETY: the handle is bound to no thread, and `&mut` or ownership lets one thread at a time use it.
unsafe impl Send for Credential {}

impl Credential {
    /// The keys of a service in a keytab, for any host that it has keys for; Kerberos is the only mechanism.
    pub(super) fn of_service(service: &str, keytab: &CStr) -> Result<Self, Failure> {
        let gss = gssapi().map_err(|cause| Failure::absent(&cause))?;
        let name = Name::service(gss, service)?;
        let mut keytab = KeyValue { key: c"keytab".as_ptr(), value: keytab.as_ptr() };
        let store = KeyValueSet { count: 1, elements: &mut keytab };
        let both = Self::acquire(gss, name.handle, &mut [oid(SPNEGO), oid(KRB5)], ACCEPT, &store);
        let acquired = both.map_err(|failure| {
            // Of both, the library does not say what is wrong with the keytab.
            let alone = Self::acquire(gss, name.handle, &mut [oid(KRB5)], ACCEPT, &store);
            alone.err().unwrap_or(failure)
        })?;
        acquired.with_kerberos_alone()
    }

    /// Lets SPNEGO negotiate no other mechanism.
    fn with_kerberos_alone(self) -> Result<Self, Failure> {
        let mut krb5 = oid(KRB5);
        let (only, mut minor) = (OidSet { count: 1, elements: &mut krb5 }, 0);
        // SAFETY: the handle is a credential of the library, the set is copied.
        let major = unsafe { (self.gss.gss_set_neg_mechs)(&mut minor, self.handle, &only) };
        check(self.gss, major, minor).map(|()| self)
    }

    /// The tickets of the user, from the default cache.
    pub(super) fn of_user() -> Result<Self, Failure> {
        let gss = gssapi().map_err(|cause| Failure::absent(&cause))?;
        Self::acquire(gss, null_mut(), &mut [oid(KRB5)], INITIATE, null())
    }

    fn acquire(
        gss: &'static Gssapi,
        name: Handle,
        mechanisms: &mut [Oid],
        usage: c_int,
        store: *const KeyValueSet,
    ) -> Result<Self, Failure> {
        let wanted = OidSet { count: mechanisms.len(), elements: mechanisms.as_mut_ptr() };
        let (mut credential, mut minor) = (Credential { gss, handle: null_mut() }, 0);
        // SAFETY: all pointers are valid for the call; name and store may be null by the interface.
        let major = unsafe {
            (gss.gss_acquire_cred_from)(
                &mut minor,
                name,
                INDEFINITE,
                &wanted,
                usage,
                store,
                &mut credential.handle,
                null_mut(),
                null_mut(),
            )
        };
        check(gss, major, minor).map(|()| credential)
    }

    /// The principal, and how long its tickets are good.
    pub(super) fn holder(&self) -> Result<(String, Duration), Failure> {
        let (mut name, mut seconds, mut minor) = (Name::none(self.gss), 0, 0);
        // SAFETY: the handle is a credential of the library; what is not asked for is null.
        let major = unsafe {
            (self.gss.gss_inquire_cred)(
                &mut minor,
                self.handle,
                &mut name.handle,
                &mut seconds,
                null_mut(),
                null_mut(),
            )
        };
        check(self.gss, major, minor)?;
        Ok((name.display()?, Duration::from_secs(seconds.into())))
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        // SAFETY: the handle is none or a credential that nobody else has.
        unsafe { (self.gss.gss_release_cred)(&mut 0, &mut self.handle) };
    }
}

/// A security context.
struct Context {
    gss: &'static Gssapi,
    handle: Handle,
}

impl Context {
    fn new(gss: &'static Gssapi) -> Self {
        Context { gss, handle: null_mut() }
    }

    /// The end of the ticket by which an established context was made. The lifetime that the interface tells has the
    /// allowance for clocks in it, so the exported form is read.
    fn end_of_ticket(mut self) -> Result<SystemTime, Failure> {
        let (mut exported, mut minor) = (null_mut::<c_void>(), 0);
        // SAFETY: the handle is an established context; it is gone afterwards, and then is null.
        let major = unsafe {
            (self.gss.gss_krb5_export_lucid_sec_context)(&mut minor, &mut self.handle, 1, &mut exported)
        };
        check(self.gss, major, minor)?;
        // SAFETY: form 1 begins with three 32-bit numbers: version, initiator, end in seconds since 1970.
        let [_, _, end] = unsafe { *exported.cast::<[u32; 3]>() };
        // SAFETY: the library made it, and nothing points to it any more.
        unsafe { (self.gss.gss_krb5_free_lucid_sec_context)(&mut minor, exported) };
        Ok(UNIX_EPOCH + Duration::from_secs(end.into()))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handle is none or a context that nobody else has; no token is asked for.
        unsafe { (self.gss.gss_delete_sec_context)(&mut 0, &mut self.handle, null_mut()) };
    }
}

/// The side of a service, before or between two tokens of a client.
pub(super) struct Accepting {
    credential: Credential,
    context: Context,
}

// SAFETY: the handles are bound to no thread, and ownership lets one thread at a time use them.
unsafe impl Send for Accepting {}

/// What a token led to.
pub(super) enum Accepted {
    /// The client has to send another one after this reply.
    More(Accepting, Vec<u8>),
    /// The client is authenticated.
    Done { principal: String, end: SystemTime, reply: Vec<u8> },
}

impl Accepting {
    pub(super) fn new(credential: Credential) -> Self {
        let context = Context::new(credential.gss);
        Accepting { credential, context }
    }

    /// Takes a token of the client. Delegated credentials are not asked for.
    pub(super) fn accept(mut self, token: &[u8]) -> Result<Accepted, Failure> {
        let gss = self.credential.gss;
        let input = Buffer { length: token.len(), value: token.as_ptr().cast_mut().cast() };
        let (mut reply, mut client, mut mechanism) = (Owned::new(gss), Name::none(gss), null_mut());
        let mut minor = 0;
        // SAFETY: all pointers are valid for the call, the token is not written to; channel bindings and what is not
        // asked for are null by the interface.
        let major = unsafe {
            (gss.gss_accept_sec_context)(
                &mut minor,
                &mut self.context.handle,
                self.credential.handle,
                &input,
                null(),
                &mut client.handle,
                &mut mechanism,
                &mut reply.buffer,
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        check(gss, major, minor)?;
        if major & CONTINUE_NEEDED != 0 {
            return Ok(Accepted::More(self, reply.to_vec()));
        }
        if !is_krb5(mechanism) {
            return Err(Failure::absent("another mechanism than Kerberos was agreed on"));
        }
        let (principal, end) = (client.display()?, self.context.end_of_ticket()?);
        Ok(Accepted::Done { principal, end, reply: reply.to_vec() })
    }
}

fn is_krb5(mechanism: *const Oid) -> bool {
    if mechanism.is_null() {
        return false;
    }
    // SAFETY: the library points to an identifier of its own, which lives as long as it.
    let Oid { length, elements } = unsafe { &*mechanism };
    // SAFETY: it has this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(elements.cast::<u8>(), *length as usize) };
    bytes == KRB5
}

/// The first token for a service, by the tickets of a principal. The reply of the service, which would prove it, is not asked
/// for. The service is a principal, not a service at a host, whose name the library would ask the DNS for.
pub(super) fn initiate(service: &str, principal: &str) -> Result<Vec<u8>, Failure> {
    let gss = gssapi().map_err(|cause| Failure::absent(&cause))?;
    // Of several caches, the library would choose one by the service.
    let holder = Name::principal(gss, principal)?;
    let tickets = Credential::acquire(gss, holder.handle, &mut [oid(SPNEGO)], INITIATE, null())?;
    let tickets = tickets.with_kerberos_alone()?;
    let (name, mut context) = (Name::principal(gss, service)?, Context::new(gss));
    let (mut token, mut minor) = (Owned::new(gss), 0);
    // SAFETY: all pointers are valid for the call; null stands for no channel bindings, no token of the service yet, and
    // for what is not asked for.
    let major = unsafe {
        (gss.gss_init_sec_context)(
            &mut minor,
            tickets.handle,
            &mut context.handle,
            name.handle,
            &oid(SPNEGO),
            0,
            INDEFINITE,
            null(),
            null(),
            null_mut(),
            &mut token.buffer,
            null_mut(),
            null_mut(),
        )
    };
    check(gss, major, minor).map(|()| token.to_vec())
}

/// The name of a keytab for the library.
pub(super) fn keytab_name(path: &std::path::Path) -> Option<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new([b"FILE:", path.as_os_str().as_bytes()].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_that_is_not_utf_8_is_refused() {
        assert_eq!(principal_text("tarō@KEK.JP".into()).unwrap(), "tarō@KEK.JP");
        assert!(principal_text(b"tar\xf4@KEK.JP".to_vec()).unwrap_err().text.contains("UTF-8"));
    }
}
