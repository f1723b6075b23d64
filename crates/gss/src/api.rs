//! Safe names and credentials over the library's functions.

use std::ffi::{CString, c_int};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use forebay_wire::rpcsec_gss::KRB5_OID;

use crate::sys::{Buffer, Functions, KeyValue, KeyValues, Oid, OidSet, Opaque, Word};

/// Bits of a major status that tell an error. The other bits are remarks, such as an old sequence number.
const ERRORS: Word = 0xffff_0000;
/// `GSS_C_INITIATE` and `GSS_C_ACCEPT`.
#[cfg(feature = "client")]
pub(crate) const INITIATE: c_int = 1;
pub(crate) const ACCEPT: c_int = 2;
/// `GSS_C_INDEFINITE`: a time without end.
pub(crate) const INDEFINITE: Word = Word::MAX;

/// 1.2.840.113554.1.2.1.1: the name of a user.
const USER_NAME: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x01];

/// The reason why a library cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Load {
    /// The library cannot be loaded.
    #[error(
        "cannot load the library of Kerberos: {0}; install libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)"
    )]
    Library(String),
    /// The keytab cannot be used.
    #[error("cannot use the keytab {keytab}: {source}; correct `keytab`, or the rights of the file")]
    Keytab {
        /// Its path.
        keytab: String,
        /// The library's error.
        source: Error,
    },
}

/// An error of the library.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    /// Major status.
    pub major: Word,
    /// Minor status, of the mechanism.
    pub minor: Word,
    /// The library's words.
    pub text: String,
}

/// Returns the library, which is loaded once.
pub(crate) fn library() -> Result<&'static Functions, Load> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    LOADED.get_or_init(Functions::load).as_ref().map_err(|why| Load::Library(why.clone()))
}

pub(crate) fn krb5() -> Oid {
    oid(KRB5_OID)
}

pub(crate) fn oid(bytes: &'static [u8]) -> Oid {
    Oid { length: bytes.len() as Word, elements: bytes.as_ptr().cast() }
}

pub(crate) fn borrowed(bytes: &[u8]) -> Buffer {
    Buffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

const EMPTY: Buffer = Buffer { length: 0, value: ptr::null_mut() };

/// Bytes of the library, which are freed when they are dropped.
pub(crate) struct Owned(&'static Functions, pub(crate) Buffer);

impl Owned {
    pub(crate) fn new(functions: &'static Functions) -> Self {
        Owned(functions, EMPTY)
    }

    /// Returns the bytes that the library has put into the buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.1.value.is_null() {
            return &[];
        }
        // SAFETY: the library has set the buffer to that many bytes, which live until they are released.
        unsafe { std::slice::from_raw_parts(self.1.value.cast(), self.1.length) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or the library's own, and is not used again.
        unsafe { (self.0.gss_release_buffer)(&mut minor, &mut self.1) };
    }
}

/// Returns the error of a call, unless its status tells none.
pub(crate) fn check(functions: &'static Functions, major: Word, minor: Word) -> Result<(), Error> {
    if major & ERRORS == 0 {
        return Ok(());
    }
    /// `GSS_C_GSS_CODE` and `GSS_C_MECH_CODE`.
    const KINDS: [c_int; 2] = [1, 2];
    let mut text = String::new();
    for (kind, code) in KINDS.into_iter().zip([major, minor]) {
        let mut said = Owned::new(functions);
        let (mut ignored, mut more) = (0, 0);
        let mech = krb5();
        // SAFETY: all pointers are valid for the call, and the buffer is empty.
        let status = unsafe {
            (functions.gss_display_status)(&mut ignored, code, kind, &mech, &mut more, &mut said.1)
        };
        if status & ERRORS == 0 && code != 0 {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&String::from_utf8_lossy(said.bytes()));
        }
    }
    Err(Error { major, minor, text })
}

/// A name of the library.
pub(crate) struct Name(pub(crate) &'static Functions, pub(crate) Opaque);

impl Name {
    /// Returns the text of the name, `user@REALM` or `service/host@REALM`.
    pub(crate) fn text(&self) -> Result<Vec<u8>, Error> {
        let (mut minor, mut shown) = (0, Owned::new(self.0));
        // SAFETY: the name is valid, and the buffer is empty.
        let major = unsafe { (self.0.gss_display_name)(&mut minor, self.1, &mut shown.1, ptr::null_mut()) };
        check(self.0, major, minor)?;
        Ok(shown.bytes().to_vec())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the name is the library's or none, and is not used again.
        unsafe { (self.0.gss_release_name)(&mut minor, &mut self.1) };
    }
}

/// Returns the host's default realm; none if the configuration of Kerberos names none.
pub(crate) fn default_realm(functions: &'static Functions) -> Option<String> {
    let mut minor = 0;
    let (mut imported, mut canonical) = (Name(functions, ptr::null_mut()), Name(functions, ptr::null_mut()));
    // SAFETY: all pointers are valid for the calls, and both names are empty before.
    let major = unsafe {
        let (user, kind, mech) = (borrowed(b"nobody"), oid(USER_NAME), krb5());
        match (functions.gss_import_name)(&mut minor, &user, &kind, &mut imported.1) {
            0 => (functions.gss_canonicalize_name)(&mut minor, imported.1, &mech, &mut canonical.1),
            failed => failed,
        }
    };
    check(functions, major, minor).ok()?;
    let text = String::from_utf8(canonical.text().ok()?).ok()?;
    text.strip_prefix("nobody@").filter(|realm| !realm.is_empty()).map(Into::into)
}

/// The keys of the server or of a client.
pub(crate) struct Credential {
    pub(crate) functions: &'static Functions,
    pub(crate) raw: Opaque,
}

// SAFETY: RFC 2744 has no call that changes a credential except its release, and MIT's library locks credentials.
unsafe impl Send for Credential {}
// SAFETY: see Send.
unsafe impl Sync for Credential {}

impl Credential {
    /// Returns a credential from the stores of these kinds, such as `keytab`, for one use.
    pub(crate) fn acquire(usage: c_int, stores: &[(&str, &Path)]) -> Result<Self, Load> {
        let functions = library()?;
        let keytab = || stores.first().map_or_else(String::new, |(_, path)| path.display().to_string());
        let failed = |source| Load::Keytab { keytab: keytab(), source };
        let text = |text: &str| {
            CString::new(text)
                .map_err(|_| failed(Error { major: 0, minor: 0, text: "its path has a zero byte".into() }))
        };
        let mut strings = Vec::new();
        for (key, path) in stores {
            strings.push((text(key)?, text(&path.to_string_lossy())?));
        }
        let elements: Vec<_> = strings
            .iter()
            .map(|(key, value)| KeyValue { key: key.as_ptr(), value: value.as_ptr() })
            .collect();
        let store = KeyValues { count: elements.len() as Word, elements: elements.as_ptr() };
        let mech = krb5();
        let mechs = OidSet { count: 1, elements: &mech };
        let (mut minor, mut raw) = (0, ptr::null_mut());
        // SAFETY: the set and the store live during the call, and so does everything that they point to.
        let major = unsafe {
            (functions.gss_acquire_cred_from)(
                &mut minor,
                ptr::null_mut(),
                INDEFINITE,
                &mechs,
                usage,
                &store,
                &mut raw,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        check(functions, major, minor).map_err(failed)?;
        Ok(Credential { functions, raw })
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the credential is the library's, and is not used again.
        unsafe { (self.functions.gss_release_cred)(&mut minor, &mut self.raw) };
    }
}
