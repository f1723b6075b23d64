//! RPCSEC_GSS version 1 (RFC 2203): the credential, the bodies with integrity or privacy, and the messages that make a
//! context.

use crate::rpc::OpaqueAuth;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Number of the flavour (RFC 2203, section 3).
pub const FLAVOR: u32 = 6;
/// Version of the protocol (RFC 2203, section 5).
pub const VERSION: u32 = 1;
/// First sequence number that no request may have (RFC 2203, section 5.3.3.1).
pub const MAX_SEQUENCE: u32 = 0x8000_0000;
/// Longest handle of a context that is decoded, in bytes. The server's own handles are shorter.
pub const MAX_HANDLE: usize = 64;
/// Longest token of the mechanism in bytes. A Kerberos ticket with a large authorization field takes up to 64 KiB.
pub const MAX_TOKEN: usize = 64 << 10;
/// Longest checksum in bytes.
pub const MAX_CHECKSUM: usize = 400;
/// The object identifier of Kerberos 5 without its tag and length: 1.2.840.113554.1.2.2 (RFC 1964, section 1).
pub const KRB5_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 0x01, 0x02, 0x02];
/// `GSS_S_COMPLETE`: the context is established.
pub const COMPLETE: u32 = 0;
/// `GSS_S_CONTINUE_NEEDED`: the client has to send another token.
pub const CONTINUE_NEEDED: u32 = 1;

xdr_enum! {
    /// The purpose of a call (RFC 2203, section 5).
    pub enum GssProcedure("rpc_gss_proc_t") {
        /// A call of a program's procedure.
        Data = 0,
        /// The first token of a context.
        Init = 1,
        /// A further token of a context.
        ContinueInit = 2,
        /// The end of a context.
        Destroy = 3,
    }
}

xdr_enum! {
    /// The protection of arguments and results (RFC 2203, section 5.3.1).
    pub enum GssService("rpc_gss_service_t") {
        /// The header alone has a checksum.
        None = 1,
        /// The arguments have a checksum as well.
        Integrity = 2,
        /// The arguments are encrypted.
        Privacy = 3,
    }
}

/// The body of a credential (`rpc_gss_cred_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GssCredential<'a> {
    /// Purpose of the call.
    pub procedure: GssProcedure,
    /// Sequence number of the request.
    pub sequence: u32,
    /// Protection of the body.
    pub service: GssService,
    /// Handle of the context; empty in the first call.
    pub handle: &'a [u8],
}

impl Encode for GssCredential<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        VERSION.encode(out);
        (self.procedure as u32).encode(out);
        self.sequence.encode(out);
        (self.service as u32).encode(out);
        self.handle.encode(out);
    }
}

impl<'a> Decode<'a> for GssCredential<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match input.u32()? {
            VERSION => {}
            value => return Err(DecodeError::UnknownValue { ty: "version of RPCSEC_GSS", value }),
        }
        Ok(Self {
            procedure: GssProcedure::decode(input)?,
            sequence: input.u32()?,
            service: GssService::decode(input)?,
            handle: input.opaque_var(MAX_HANDLE)?,
        })
    }
}

/// The result of a call that makes a context (`rpc_gss_init_res`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GssInitRes<'a> {
    /// Handle of the context.
    pub handle: &'a [u8],
    /// Major status of GSS-API.
    pub major: u32,
    /// Minor status of the mechanism.
    pub minor: u32,
    /// Requests that may be in flight at once.
    pub window: u32,
    /// Token for the client; may be empty.
    pub token: &'a [u8],
}

impl Encode for GssInitRes<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.handle.encode(out);
        [self.major, self.minor, self.window].iter().for_each(|word| word.encode(out));
        self.token.encode(out);
    }
}

impl<'a> Decode<'a> for GssInitRes<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            handle: input.opaque_var(MAX_HANDLE)?,
            major: input.u32()?,
            minor: input.u32()?,
            window: input.u32()?,
            token: input.opaque_var(MAX_TOKEN)?,
        })
    }
}

/// A body with its checksum (`rpc_gss_integ_data`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GssIntegrity<'a> {
    /// Sequence number, then arguments or results.
    pub body: &'a [u8],
    /// Checksum of the body.
    pub checksum: &'a [u8],
}

impl Encode for GssIntegrity<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.body.encode(out);
        self.checksum.encode(out);
    }
}

impl<'a> Decode<'a> for GssIntegrity<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let body = input.opaque_var(input.remaining())?;
        Ok(Self { body, checksum: input.opaque_var(MAX_CHECKSUM)? })
    }
}

/// Decodes the encrypted body of a call or reply (`rpc_gss_priv_data`).
///
/// # Errors
/// [`DecodeError`] if the message ends within the body.
pub fn private_body<'a>(input: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    input.opaque_var(input.remaining())
}

/// Returns the part of a decrypted or checked body behind its sequence number.
///
/// # Errors
/// [`DecodeError`] if the body is shorter than a number or begins with another number.
pub fn after_sequence(body: &[u8], sequence: u32) -> Result<&[u8], DecodeError> {
    let mut input = Reader::new(body);
    match input.u32()? {
        number if number == sequence => Ok(input.rest()),
        value => Err(DecodeError::UnknownValue { ty: "sequence number in a body", value }),
    }
}

/// Returns true if a record is a call with the flavour RPCSEC_GSS.
#[must_use]
pub fn is_gss_call(record: &[u8]) -> bool {
    record.get(4..8) == Some(&[0; 4]) && record.get(24..28) == Some(&FLAVOR.to_be_bytes())
}

/// Returns true if a call with the flavour RPCSEC_GSS is one of a program's procedure, as far as its credential tells.
#[must_use]
pub fn is_gss_data(record: &[u8]) -> bool {
    record.get(36..40) == Some(&(GssProcedure::Data as u32).to_be_bytes())
}

/// Appends the header of an accepted reply with a verifier of this flavour. `status` is the `accept_stat`.
pub fn put_reply_header(out: &mut Vec<u8>, xid: u32, verifier: &[u8], status: u32) {
    [xid, 1, 0].iter().for_each(|word| word.encode(out));
    OpaqueAuth { flavor: FLAVOR, body: verifier }.encode(out);
    status.encode(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &impl Encode) -> Vec<u8> {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    }

    #[test]
    fn a_credential_has_the_layout_of_rfc_2203() {
        let credential = GssCredential {
            procedure: GssProcedure::Destroy,
            sequence: 7,
            service: GssService::Privacy,
            handle: b"abc",
        };
        let encoded = bytes(&credential);
        assert_eq!(
            encoded,
            [0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 3, b'a', b'b', b'c', 0]
        );
        assert_eq!(GssCredential::decode(&mut Reader::new(&encoded)), Ok(credential));
        for len in 0..encoded.len() {
            assert!(GssCredential::decode(&mut Reader::new(&encoded[..len])).is_err(), "{len}");
        }
        for (at, value) in [(3, 2), (7, 4), (15, 0), (15, 4), (19, 65)] {
            let mut wrong = encoded.clone();
            wrong[at] = value;
            wrong.resize(200, 0);
            assert!(GssCredential::decode(&mut Reader::new(&wrong)).is_err(), "byte {at} is {value}");
        }
    }

    #[test]
    fn bodies_stay_within_the_record() {
        let integrity = GssIntegrity { body: b"\0\0\0\x09args", checksum: b"check" };
        let encoded = bytes(&integrity);
        let decoded = GssIntegrity::decode(&mut Reader::new(&encoded)).unwrap();
        assert_eq!(decoded, integrity);
        assert_eq!(after_sequence(decoded.body, 9).unwrap(), b"args");
        assert!(after_sequence(decoded.body, 8).is_err());
        assert!(after_sequence(b"\0\0\0", 0).is_err());
        for len in 0..encoded.len() {
            assert!(GssIntegrity::decode(&mut Reader::new(&encoded[..len])).is_err(), "{len}");
        }
        assert!(private_body(&mut Reader::new(&[0xff; 12])).is_err());
        let init = GssInitRes { handle: b"h", major: 0, minor: 1, window: 2, token: b"token" };
        assert_eq!(GssInitRes::decode(&mut Reader::new(&bytes(&init))), Ok(init));
    }
}
