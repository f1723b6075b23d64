//! Security contexts over the library's functions: tokens, checksums and encryption.

use std::ptr;
use std::sync::Arc;

use forebay_common::lock::Mutex;

use crate::api::{Credential, Error, INDEFINITE, Name, Owned, borrowed, check};
#[cfg(feature = "client")]
use crate::api::{krb5, oid};
use crate::sys::{Functions, Opaque, Word};

/// `GSS_S_CONTINUE_NEEDED`.
const CONTINUE: Word = 1;

/// A context of the library.
struct Raw(Opaque);

// SAFETY: a context may be used by one thread after another; the lock of `Context` admits one at a time.
unsafe impl Send for Raw {}

/// A security context. One thread uses it at a time.
pub(crate) struct Context {
    functions: &'static Functions,
    raw: Mutex<Raw>,
}

/// The step of a context that a token has brought about.
pub(crate) struct Step {
    pub(crate) context: Context,
    /// The token for the peer.
    pub(crate) token: Vec<u8>,
    /// The peer, once the context is established.
    pub(crate) peer: Option<Peer>,
}

/// The peer of an established context.
pub(crate) struct Peer {
    pub(crate) name: Vec<u8>,
    /// The remaining time in seconds; none without end.
    pub(crate) seconds: Option<u32>,
}

impl Context {
    fn new(functions: &'static Functions) -> Self {
        Context { functions, raw: Mutex::new(Raw(ptr::null_mut())) }
    }

    /// Takes a token of the client, the first one or a further one for `begun`. Returns the error with a token for the
    /// client, which may be empty.
    pub(crate) fn accept(
        credential: &Arc<Credential>,
        begun: Option<Context>,
        token: &[u8],
    ) -> Result<Step, (Error, Vec<u8>)> {
        let functions = credential.functions;
        let context = begun.unwrap_or_else(|| Context::new(functions));
        let (mut minor, mut seconds) = (0, 0);
        let (mut name, mut answer) = (Name(functions, ptr::null_mut()), Owned::new(functions));
        // SAFETY: the context is empty or the library's. All pointers are valid for the call.
        let major = unsafe {
            (functions.gss_accept_sec_context)(
                &mut minor,
                &mut context.raw.lock().0,
                credential.raw,
                &borrowed(token),
                ptr::null(),
                &mut name.1,
                ptr::null_mut(),
                &mut answer.1,
                ptr::null_mut(),
                &mut seconds,
                ptr::null_mut(),
            )
        };
        let token = answer.bytes().to_vec();
        let done = |name: &Name| {
            check(functions, major, minor)?;
            let seconds = (seconds != INDEFINITE).then_some(seconds);
            if major & CONTINUE != 0 { Ok(None) } else { Ok(Some(Peer { name: name.text()?, seconds })) }
        };
        match done(&name) {
            Ok(peer) => Ok(Step { context, token, peer }),
            Err(error) => Err((error, token)),
        }
    }

    /// Returns the checksum of a message.
    pub(crate) fn checksum(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut minor, mut sum) = (0, Owned::new(self.functions));
        let context = self.raw.lock();
        // SAFETY: the context is established, and the buffers are valid for the call.
        let major =
            unsafe { (self.functions.gss_get_mic)(&mut minor, context.0, 0, &borrowed(message), &mut sum.1) };
        drop(context);
        check(self.functions, major, minor)?;
        Ok(sum.bytes().to_vec())
    }

    /// Checks the checksum of a message. A remark about the order of messages is no error: RPCSEC_GSS has its own
    /// numbers (RFC 2203, section 5.3.3.1).
    pub(crate) fn verify(&self, message: &[u8], sum: &[u8]) -> Result<(), Error> {
        let mut minor = 0;
        let context = self.raw.lock();
        // SAFETY: the context is established, and the buffers are valid for the call.
        let major = unsafe {
            (self.functions.gss_verify_mic)(
                &mut minor,
                context.0,
                &borrowed(message),
                &borrowed(sum),
                ptr::null_mut(),
            )
        };
        drop(context);
        check(self.functions, major, minor)
    }

    /// Encrypts a message.
    pub(crate) fn wrap(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut minor, mut is_private, mut wrapped) = (0, 0, Owned::new(self.functions));
        let context = self.raw.lock();
        // SAFETY: the context is established, and the buffers are valid for the call.
        let major = unsafe {
            (self.functions.gss_wrap)(
                &mut minor,
                context.0,
                1,
                0,
                &borrowed(message),
                &mut is_private,
                &mut wrapped.1,
            )
        };
        drop(context);
        check(self.functions, major, minor)?;
        if is_private == 0 {
            return Err(Error { major: 0, minor: 0, text: "the context cannot encrypt".into() });
        }
        Ok(wrapped.bytes().to_vec())
    }

    /// Decrypts a message. A message that is not encrypted is an error.
    pub(crate) fn unwrap(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut minor, mut is_private, mut plain) = (0, 0, Owned::new(self.functions));
        let context = self.raw.lock();
        // SAFETY: the context is established, and the buffers are valid for the call.
        let major = unsafe {
            (self.functions.gss_unwrap)(
                &mut minor,
                context.0,
                &borrowed(message),
                &mut plain.1,
                &mut is_private,
                ptr::null_mut(),
            )
        };
        drop(context);
        check(self.functions, major, minor)?;
        if is_private == 0 {
            return Err(Error { major: 0, minor: 0, text: "the message is not encrypted".into() });
        }
        Ok(plain.bytes().to_vec())
    }
}

#[cfg(feature = "client")]
impl Context {
    /// Begins or continues a context with the service `target`, such as `nfs@server.example`, as the client.
    pub(crate) fn initiate(
        credential: &Credential,
        begun: Option<Context>,
        target: &str,
        token: &[u8],
    ) -> Result<Step, Error> {
        /// 1.2.840.113554.1.2.1.4: a service of a host.
        const SERVICE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x01, 0x04];
        /// `GSS_C_MUTUAL_FLAG`.
        const MUTUAL: Word = 2;
        let functions = credential.functions;
        let context = begun.unwrap_or_else(|| Context::new(functions));
        let (mut name, mut answer) = (Name(functions, ptr::null_mut()), Owned::new(functions));
        let (mut minor, mut seconds) = (0, 0);
        // SAFETY: all pointers are valid for the calls.
        let major = unsafe {
            let major = (functions.gss_import_name)(
                &mut minor,
                &borrowed(target.as_bytes()),
                &oid(SERVICE),
                &mut name.1,
            );
            check(functions, major, minor)?;
            (functions.gss_init_sec_context)(
                &mut minor,
                credential.raw,
                &mut context.raw.lock().0,
                name.1,
                &krb5(),
                MUTUAL,
                0,
                ptr::null(),
                &borrowed(token),
                ptr::null_mut(),
                &mut answer.1,
                ptr::null_mut(),
                &mut seconds,
            )
        };
        check(functions, major, minor)?;
        let established = major & CONTINUE == 0;
        let peer = established.then(|| Peer { name: target.into(), seconds: Some(seconds) });
        Ok(Step { context, token: answer.bytes().to_vec(), peer })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the context is empty or the library's, and is not used again.
        unsafe {
            (self.functions.gss_delete_sec_context)(&mut minor, &mut self.raw.lock().0, ptr::null_mut())
        };
    }
}
