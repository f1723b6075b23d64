//! The functions of the GSS-API library (RFC 2744), found when the library is loaded.

use std::ffi::{CStr, c_char, c_int, c_void};

/// `OM_uint32`.
pub(crate) type Word = u32;
/// A context, a credential or a name of the library.
pub(crate) type Opaque = *mut c_void;

/// `gss_buffer_desc`: bytes of the caller or of the library.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) length: usize,
    pub(crate) value: *mut c_void,
}

/// `gss_OID_desc`: an object identifier.
#[repr(C)]
pub(crate) struct Oid {
    pub(crate) length: Word,
    pub(crate) elements: *const c_void,
}

/// `gss_OID_set_desc`.
#[repr(C)]
pub(crate) struct OidSet {
    pub(crate) count: usize,
    pub(crate) elements: *const Oid,
}

/// `gss_key_value_element_desc`.
#[repr(C)]
pub(crate) struct KeyValue {
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

/// `gss_key_value_set_desc`.
#[repr(C)]
pub(crate) struct KeyValues {
    pub(crate) count: Word,
    pub(crate) elements: *const KeyValue,
}

macro_rules! functions {
    ($($(#[$meta:meta])* $name:ident: fn($($argument:ty),*);)*) => {
        /// The functions of the library that this crate calls.
        pub(crate) struct Functions {
            $($(#[$meta])* pub(crate) $name: unsafe extern "C" fn(*mut Word, $($argument),*) -> Word,)*
        }

        impl Functions {
            /// Loads the library, which stays loaded. Returns the reason of a failure.
            pub(crate) fn load() -> Result<Self, String> {
                // SAFETY: the name is a C string. The library's own start-up code is the system's.
                let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
                if library.is_null() {
                    return Err(why());
                }
                Ok(Functions {
                    $($(#[$meta])* $name: {
                        let symbol = find(library, concat!(stringify!($name), "\0"))?;
                        // SAFETY: the function of this name has this type by RFC 2744 and the library's headers.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Word, $($argument),*) -> Word>(symbol) }
                    },)*
                })
            }
        }
    };
}

/// The library of MIT Kerberos. The number is that of its binary interface, which has not changed since 2006.
const LIBRARY: &CStr = c"libgssapi_krb5.so.2";

functions! {
    gss_import_name: fn(*const Buffer, *const Oid, *mut Opaque);
    gss_canonicalize_name: fn(Opaque, *const Oid, *mut Opaque);
    gss_display_name: fn(Opaque, *mut Buffer, *mut *const Oid);
    gss_release_name: fn(*mut Opaque);
    gss_acquire_cred_from: fn(Opaque, Word, *const OidSet, c_int, *const KeyValues, *mut Opaque, *mut *mut OidSet, *mut Word);
    gss_accept_sec_context: fn(*mut Opaque, Opaque, *const Buffer, *const c_void, *mut Opaque, *mut *const Oid, *mut Buffer, *mut Word, *mut Word, *mut Opaque);
    #[cfg(feature = "client")]
    gss_init_sec_context: fn(Opaque, *mut Opaque, Opaque, *const Oid, Word, Word, *const c_void, *const Buffer, *mut *const Oid, *mut Buffer, *mut Word, *mut Word);
    gss_delete_sec_context: fn(*mut Opaque, *mut Buffer);
    gss_get_mic: fn(Opaque, Word, *const Buffer, *mut Buffer);
    gss_verify_mic: fn(Opaque, *const Buffer, *const Buffer, *mut Word);
    gss_wrap: fn(Opaque, c_int, Word, *const Buffer, *mut c_int, *mut Buffer);
    gss_unwrap: fn(Opaque, *const Buffer, *mut Buffer, *mut c_int, *mut Word);
    gss_release_cred: fn(*mut Opaque);
    gss_release_buffer: fn(*mut Buffer);
    gss_display_status: fn(Word, c_int, *const Oid, *mut Word, *mut Buffer);
}

/// Returns the address of a function of the library. The name ends with a zero byte.
fn find(library: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    // SAFETY: the library is loaded, and the name ends with a zero byte.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
    if symbol.is_null() { Err(why()) } else { Ok(symbol) }
}

/// Returns the loader's last message.
fn why() -> String {
    // SAFETY: dlerror returns a C string that is valid until this thread's next call of the loader, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: the pointer is not null, so it is a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
