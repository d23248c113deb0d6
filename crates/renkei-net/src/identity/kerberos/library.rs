//! The functions of MIT Kerberos' GSSAPI library (RFC 2744 and its extensions), found when they are first needed.
//!
//! Nothing is linked: the binary starts without the library, and says then why there is no Kerberos. Once all
//! functions are found it is never unloaded, so they stay valid.

use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// The library's name; Debian has it in the package libgssapi-krb5-2.
pub(super) const NAME: &str = "libgssapi_krb5.so.2";

/// `gss_buffer_desc`.
#[repr(C)]
pub(super) struct Buffer {
    pub(super) length: usize,
    pub(super) value: *mut c_void,
}

/// `gss_OID_desc`.
#[repr(C)]
pub(super) struct Oid {
    pub(super) length: u32,
    pub(super) elements: *mut c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(super) struct OidSet {
    pub(super) count: usize,
    pub(super) elements: *mut Oid,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(super) struct KeyValue {
    pub(super) key: *const c_char,
    pub(super) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(super) struct KeyValueSet {
    pub(super) count: u32,
    pub(super) elements: *mut KeyValue,
}

/// `gss_name_t`, `gss_cred_id_t`, `gss_ctx_id_t`: opaque.
pub(super) type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions; each gives the major status and writes the minor one to its first argument.
        pub(super) struct Gssapi {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Gssapi {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the initialisers of this library have no preconditions.
                let library = unsafe { Library::new(NAME) }?;
                let found = Gssapi {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the type is that of the function's declaration in gssapi.h, gssapi_ext.h or
                        // gssapi_krb5.h of the interface version that the library's name stands for.
                        *unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> u32>(name) }?
                    },)*
                };
                std::mem::forget(library);
                Ok(found)
            }
        }
    };
}

functions! {
    gss_import_name(*mut u32, *const Buffer, *const Oid, *mut Handle);
    gss_release_name(*mut u32, *mut Handle);
    gss_display_name(*mut u32, Handle, *mut Buffer, *mut *mut Oid);
    gss_acquire_cred_from(
        *mut u32, Handle, u32, *const OidSet, c_int, *const KeyValueSet, *mut Handle, *mut *mut OidSet, *mut u32
    );
    gss_set_neg_mechs(*mut u32, Handle, *const OidSet);
    gss_inquire_cred(*mut u32, Handle, *mut Handle, *mut u32, *mut c_int, *mut *mut OidSet);
    gss_release_cred(*mut u32, *mut Handle);
    gss_accept_sec_context(
        *mut u32, *mut Handle, Handle, *const Buffer, *const c_void, *mut Handle, *mut *mut Oid, *mut Buffer, *mut u32,
        *mut u32, *mut Handle
    );
    gss_init_sec_context(
        *mut u32, Handle, *mut Handle, Handle, *const Oid, u32, u32, *const c_void, *const Buffer, *mut *mut Oid,
        *mut Buffer, *mut u32, *mut u32
    );
    gss_delete_sec_context(*mut u32, *mut Handle, *mut Buffer);
    gss_display_status(*mut u32, u32, c_int, *const Oid, *mut u32, *mut Buffer);
    gss_release_buffer(*mut u32, *mut Buffer);
    gss_krb5_export_lucid_sec_context(*mut u32, *mut Handle, u32, *mut *mut c_void);
    gss_krb5_free_lucid_sec_context(*mut u32, *mut c_void);
}

/// The functions, or the reason why they are not there. A library that is not found is looked for again by the next call.
pub(super) fn gssapi() -> Result<&'static Gssapi, String> {
    static LOADED: OnceLock<Gssapi> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let loaded = Gssapi::load().map_err(|error| error.to_string())?;
    Ok(LOADED.get_or_init(|| loaded))
}
