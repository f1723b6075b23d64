//! The client's side of RPCSEC_GSS, for tests: each function makes or reads one message.

use std::path::Path;

use forebay_wire::rpc::{Auth, CallHeader, OpaqueAuth};
use forebay_wire::rpcsec_gss::{
    FLAVOR, GssCredential, GssInitRes, GssIntegrity, GssProcedure, GssService, MAX_HANDLE, after_sequence,
    private_body,
};
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::api::{Credential, Error, INITIATE, Load};
use crate::context::Context;

/// The name under which a client calls.
pub struct User(Credential);

impl User {
    /// Takes the user's tickets with the keys of a client keytab. `ccache` says where tickets are kept, such as
    /// `MEMORY:jo`.
    ///
    /// # Errors
    /// The library is missing, or the keys are.
    pub fn new(keytab: &Path, ccache: &str) -> Result<Self, Load> {
        let stores = [("client_keytab", keytab), ("ccache", Path::new(ccache))];
        Credential::acquire(INITIATE, &stores).map(User)
    }
}

/// A context of a client.
pub struct Client {
    context: Context,
    /// Handle of the context at the server.
    pub handle: Vec<u8>,
    /// Size of the server's window.
    pub window: u32,
}

/// The parts of a call that a test may want to be wrong.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Transaction number.
    pub xid: u32,
    /// Program, version, procedure.
    pub procedure: (u32, u32, u32),
    /// Purpose of the call.
    pub purpose: GssProcedure,
    /// Sequence number.
    pub sequence: u32,
    /// Protection.
    pub service: GssService,
    /// Arguments.
    pub arguments: &'a [u8],
}

/// Returns the record of the first call, with a token.
fn first(xid: u32, (prog, vers, proc): (u32, u32, u32), token: &[u8]) -> Vec<u8> {
    let mut credential = Vec::new();
    let (procedure, sequence, service) = (GssProcedure::Init, 0, GssService::None);
    GssCredential { procedure, sequence, service, handle: b"" }.encode(&mut credential);
    let cred = Auth::Other(OpaqueAuth { flavor: FLAVOR, body: &credential });
    let mut record = Vec::new();
    CallHeader { xid, prog, vers, proc, cred, verf: OpaqueAuth::NONE }.encode(&mut record);
    token.encode(&mut record);
    record
}

impl Client {
    /// Makes a context with the service `target`, such as `nfs@localhost`. `exchange` sends a record and returns the
    /// reply.
    ///
    /// # Errors
    /// A sentence about the message that was not as expected.
    pub fn establish(
        user: &User,
        target: &str,
        procedure: (u32, u32, u32),
        mut exchange: impl FnMut(&[u8]) -> Vec<u8>,
    ) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let step = Context::initiate(&user.0, None, target, &[]).map_err(|error| text(&error))?;
        let reply = exchange(&first(1, procedure, &step.token));
        let (verifier, mut input) = accepted(&reply).ok_or("the first call was not accepted")?;
        let result = GssInitRes::decode(&mut input).map_err(|error| text(&error))?;
        if result.major != 0 {
            return Err(format!("the server answers {:#x}", result.major));
        }
        let done = Context::initiate(&user.0, Some(step.context), target, result.token)
            .map_err(|error| text(&error))?;
        if done.peer.is_none() || result.handle.len() > MAX_HANDLE {
            return Err("the context needs another token".into());
        }
        done.context.verify(&result.window.to_be_bytes(), verifier).map_err(|error| text(&error))?;
        Ok(Client { context: done.context, handle: result.handle.to_vec(), window: result.window })
    }

    /// Returns the record of a call.
    ///
    /// # Errors
    /// The library's.
    pub fn call(&self, call: &Call<'_>) -> Result<Vec<u8>, Error> {
        let Call { xid, procedure: (prog, vers, proc), purpose, sequence, service, arguments } = *call;
        let mut credential = Vec::new();
        GssCredential { procedure: purpose, sequence, service, handle: &self.handle }.encode(&mut credential);
        let cred = Auth::Other(OpaqueAuth { flavor: FLAVOR, body: &credential });
        let mut record = Vec::new();
        CallHeader { xid, prog, vers, proc, cred, verf: OpaqueAuth::NONE }.encode(&mut record);
        record.truncate(32 + credential.len().next_multiple_of(4));
        let checksum = self.context.checksum(&record)?;
        OpaqueAuth { flavor: FLAVOR, body: &checksum }.encode(&mut record);
        let mut body = Vec::new();
        sequence.encode(&mut body);
        body.extend_from_slice(arguments);
        match service {
            GssService::None => record.extend_from_slice(arguments),
            GssService::Integrity => {
                let checksum = self.context.checksum(&body)?;
                GssIntegrity { body: &body, checksum: &checksum }.encode(&mut record);
            }
            GssService::Privacy => self.context.wrap(&body)?.as_slice().encode(&mut record),
        }
        Ok(record)
    }

    /// Returns the results in the reply to a call, after it has checked the verifier and the body.
    ///
    /// # Errors
    /// A sentence about the first thing that is wrong.
    pub fn results(&self, reply: &[u8], sequence: u32, service: GssService) -> Result<Vec<u8>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (verifier, mut input) = accepted(reply).ok_or_else(|| format!("not accepted: {reply:?}"))?;
        self.context.verify(&sequence.to_be_bytes(), verifier).map_err(|error| text(&error))?;
        let body = match service {
            GssService::None => return Ok(input.rest().to_vec()),
            GssService::Integrity => {
                let sent = GssIntegrity::decode(&mut input).map_err(|error| text(&error))?;
                self.context.verify(sent.body, sent.checksum).map_err(|error| text(&error))?;
                sent.body.to_vec()
            }
            GssService::Privacy => {
                let sent = private_body(&mut input).map_err(|error| text(&error))?;
                self.context.unwrap(sent).map_err(|error| text(&error))?
            }
        };
        after_sequence(&body, sequence).map(<[u8]>::to_vec).map_err(|error| text(&error))
    }

    /// Returns true if the verifier of a reply is the checksum of `sequence`, whatever the reply's status.
    pub fn is_verified(&self, reply: &[u8], sequence: u32) -> bool {
        let mut input = Reader::new(reply.get(12..).unwrap_or_default());
        OpaqueAuth::decode(&mut input)
            .is_ok_and(|verifier| self.context.verify(&sequence.to_be_bytes(), verifier.body).is_ok())
    }
}

/// Returns the verifier of a successful reply, and a reader at its results.
fn accepted(reply: &[u8]) -> Option<(&[u8], Reader<'_>)> {
    let mut input = Reader::new(reply.get(8..)?);
    if input.u32().ok()? != 0 {
        return None;
    }
    let verifier = OpaqueAuth::decode(&mut input).ok()?;
    (input.u32().ok()? == 0).then_some((verifier.body, input))
}
