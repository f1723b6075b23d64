//! ONC RPC version 2 messages (RFC 5531). The framing of records over TCP is in the crate `rpc`.

use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Version of the RPC protocol.
pub const RPC_VERSION: u32 = 2;
/// Bit in a record mark that is set if the fragment is the last of its record (RFC 5531, section 11).
pub const LAST_FRAGMENT: u32 = 1 << 31;
/// Most bytes in the body of a credential or verifier (RFC 5531, section 8.2).
pub const MAX_AUTH_BYTES: usize = 400;
/// Most supplementary groups in an AUTH_SYS credential (RFC 5531, appendix A).
pub const MAX_GIDS: usize = 16;
/// Longest machine name in an AUTH_SYS credential, in bytes (RFC 5531, appendix A).
pub const MAX_MACHINE_NAME: usize = 255;

/// Number of the flavour "no authentication".
pub const AUTH_NONE: u32 = 0;
/// Number of the flavour with Unix uid, gid and groups, also called AUTH_UNIX.
pub const AUTH_SYS: u32 = 1;

/// Number of the flavour with which a client asks for TLS (RFC 9289, section 4.1). Only the null procedure takes it.
pub const AUTH_TLS: u32 = 7;
/// Body of the verifier with which a server accepts to begin TLS (RFC 9289, section 4.1).
pub const STARTTLS: &[u8] = b"STARTTLS";

const CALL: u32 = 0;
const REPLY: u32 = 1;
const MSG_ACCEPTED: u32 = 0;
const MSG_DENIED: u32 = 1;

/// The kind of an RPC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A [`CallHeader`] follows.
    Call,
    /// A [`ReplyHeader`] follows.
    Reply,
}

/// Returns the transaction number and the kind of a record without decoding the rest. A connection with a backchannel
/// carries calls and replies in both directions.
///
/// # Errors
/// [`DecodeError`] if the record is shorter than 8 bytes, or if its second word is neither a call nor a reply.
pub fn message_kind(record: &[u8]) -> Result<(u32, MessageKind), DecodeError> {
    let mut input = Reader::new(record);
    let xid = input.u32()?;
    match input.u32()? {
        CALL => Ok((xid, MessageKind::Call)),
        REPLY => Ok((xid, MessageKind::Reply)),
        value => Err(DecodeError::UnknownValue { ty: "msg_type", value }),
    }
}

/// Up to 16 group ids, stored inline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gids {
    len: u8,
    // Entries from `len` on are zero, so that the derived equality is right.
    ids: [u32; MAX_GIDS],
}

impl Gids {
    /// Returns a copy of `ids`; `None` for more than 16 ids.
    #[must_use]
    pub fn new(ids: &[u32]) -> Option<Self> {
        let mut gids = Self { len: u8::try_from(ids.len()).ok()?, ids: [0; MAX_GIDS] };
        gids.ids.get_mut(..ids.len())?.copy_from_slice(ids);
        Some(gids)
    }

    /// Returns the group ids in the order of the credential.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.ids[..usize::from(self.len)]
    }
}

impl Encode for Gids {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(self.len).encode(out);
        for id in self.as_slice() {
            id.encode(out);
        }
    }
}

impl<'a> Decode<'a> for Gids {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length = input.u32()?;
        if length as usize > MAX_GIDS {
            return Err(DecodeError::TooLong { length, max: MAX_GIDS });
        }
        let mut gids = Self { len: length as u8, ids: [0; MAX_GIDS] };
        for id in &mut gids.ids[..length as usize] {
            *id = input.u32()?;
        }
        Ok(gids)
    }
}

/// The body of an AUTH_SYS credential (RFC 5531, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// Number that the caller chooses at will.
    pub stamp: u32,
    /// Name of the caller's machine, at most 255 bytes.
    pub machine_name: &'a [u8],
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub gids: Gids,
}

impl Encode for AuthSys<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.stamp.encode(out);
        self.machine_name.encode(out);
        self.uid.encode(out);
        self.gid.encode(out);
        self.gids.encode(out);
    }
}

impl<'a> Decode<'a> for AuthSys<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            stamp: input.u32()?,
            machine_name: input.opaque_var(MAX_MACHINE_NAME)?,
            uid: input.u32()?,
            gid: input.u32()?,
            gids: Gids::decode(input)?,
        })
    }
}

/// The credential of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth<'a> {
    /// AUTH_NONE. Its body is ignored.
    None,
    /// AUTH_SYS.
    Sys(AuthSys<'a>),
    /// Any other flavour. Its body is not interpreted.
    Other(OpaqueAuth<'a>),
}

/// A credential or verifier whose body is not interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpaqueAuth<'a> {
    /// Flavour number.
    pub flavor: u32,
    /// Body, at most [`MAX_AUTH_BYTES`].
    pub body: &'a [u8],
}

impl OpaqueAuth<'_> {
    /// AUTH_NONE with an empty body: the verifier of calls with AUTH_NONE or AUTH_SYS.
    pub const NONE: OpaqueAuth<'static> = OpaqueAuth { flavor: AUTH_NONE, body: &[] };
}

impl Encode for OpaqueAuth<'_> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.flavor.encode(out);
        self.body.encode(out);
    }
}

impl<'a> Decode<'a> for OpaqueAuth<'a> {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self { flavor: input.u32()?, body: input.opaque_var(MAX_AUTH_BYTES)? })
    }
}

impl Encode for Auth<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Auth::None => OpaqueAuth::NONE.encode(out),
            Auth::Sys(sys) => {
                AUTH_SYS.encode(out);
                let length_at = out.len();
                0u32.encode(out);
                sys.encode(out);
                let length = (out.len() - length_at - 4) as u32;
                out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
            }
            Auth::Other(opaque) => opaque.encode(out),
        }
    }
}

impl<'a> Decode<'a> for Auth<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let opaque = OpaqueAuth::decode(input)?;
        match opaque.flavor {
            AUTH_NONE => Ok(Auth::None),
            AUTH_SYS => AuthSys::decode(&mut Reader::new(opaque.body)).map(Auth::Sys),
            _ => Ok(Auth::Other(opaque)),
        }
    }
}

/// The reason why a call's header was not accepted. It determines the server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer is possible. The server drops the record and closes the connection.
    #[error("not an RPC call: {0}")]
    Malformed(#[from] DecodeError),
    /// The server denies the call with [`ReplyStatus::RpcMismatch`].
    #[error("call {xid:#x} has an RPC version other than 2")]
    RpcMismatch {
        /// Transaction number of the call.
        xid: u32,
    },
    /// The server denies the call with [`ReplyStatus::AuthError`].
    #[error("call {xid:#x} has a bad credential or verifier: {stat:?}")]
    BadAuth {
        /// Transaction number of the call.
        xid: u32,
        /// Defect of the credential or verifier.
        stat: AuthStat,
    },
}

/// The header of a call. The procedure's arguments follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHeader<'a> {
    /// Transaction number, chosen by the client.
    pub xid: u32,
    /// Program number.
    pub prog: u32,
    /// Version of the program.
    pub vers: u32,
    /// Procedure number within that version.
    pub proc: u32,
    /// Identity of the caller.
    pub cred: Auth<'a>,
    /// Proof of the identity.
    pub verf: OpaqueAuth<'a>,
}

impl Encode for CallHeader<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.xid, CALL, RPC_VERSION, self.prog, self.vers, self.proc] {
            word.encode(out);
        }
        self.cred.encode(out);
        self.verf.encode(out);
    }
}

impl<'a> CallHeader<'a> {
    /// Decodes a header and leaves `input` at the procedure's arguments.
    ///
    /// # Errors
    /// [`CallError`] says how the server has to answer.
    pub fn decode(input: &mut Reader<'a>) -> Result<Self, CallError> {
        let xid = input.u32()?;
        match input.u32()? {
            CALL => {}
            value => return Err(DecodeError::UnknownValue { ty: "msg_type of a call", value }.into()),
        }
        if input.u32()? != RPC_VERSION {
            return Err(CallError::RpcMismatch { xid });
        }
        let (prog, vers, proc) = (input.u32()?, input.u32()?, input.u32()?);
        let cred = Auth::decode(input).map_err(|_| CallError::BadAuth { xid, stat: AuthStat::BadCred })?;
        let verf =
            OpaqueAuth::decode(input).map_err(|_| CallError::BadAuth { xid, stat: AuthStat::BadVerf })?;
        Ok(Self { xid, prog, vers, proc, cred, verf })
    }
}

xdr_enum! {
    /// The reason why authentication failed (RFC 5531, section 9).
    pub enum AuthStat("auth_stat") {
        /// Success.
        Ok = 0,
        /// Bad credential: seal broken.
        BadCred = 1,
        /// The client must begin a new session.
        RejectedCred = 2,
        /// Bad verifier: seal broken.
        BadVerf = 3,
        /// The verifier has expired or was replayed.
        RejectedVerf = 4,
        /// Rejected for security reasons; the client may try a stronger flavour.
        TooWeak = 5,
        /// Bogus response verifier.
        InvalidResp = 6,
        /// Unknown reason.
        Failed = 7,
        /// RPCSEC_GSS: the context is unknown, or the header's checksum is wrong (RFC 2203, section 5.3.3.3).
        GssCredProblem = 13,
        /// RPCSEC_GSS: the context cannot be used any more (RFC 2203, section 5.3.3.3).
        GssCtxProblem = 14,
    }
}

/// The outcome of a call (RFC 5531, section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum ReplyStatus {
    /// The call was executed. The procedure's result follows.
    Success,
    /// The server does not serve the program.
    ProgUnavail,
    /// The server does not serve this version of the program.
    ProgMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The program has no such procedure.
    ProcUnavail,
    /// The arguments could not be decoded.
    GarbageArgs,
    /// The server failed, for example for lack of memory.
    SystemErr,
    /// The call was denied: its RPC version is not 2.
    RpcMismatch {
        /// Lowest RPC version served.
        low: u32,
        /// Highest RPC version served.
        high: u32,
    },
    /// The call was denied: the caller's identity could not be established.
    AuthError(AuthStat),
}

/// Appends a whole reply to the null procedure that lets the client begin TLS (RFC 9289, section 4.1).
pub fn encode_starttls(xid: u32, out: &mut Vec<u8>) {
    for word in [xid, REPLY, MSG_ACCEPTED] {
        word.encode(out);
    }
    OpaqueAuth { flavor: AUTH_NONE, body: STARTTLS }.encode(out);
    // accept_stat SUCCESS; the null procedure has no result.
    0u32.encode(out);
}

/// The header of a reply. After [`ReplyStatus::Success`] the procedure's result follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct ReplyHeader {
    /// Transaction number of the call.
    pub xid: u32,
    /// Outcome of the call.
    pub status: ReplyStatus,
}

impl ReplyHeader {
    /// Size in bytes of the header of a successful reply with an empty verifier.
    pub const SUCCESS_SIZE: usize = 24;
}

impl Encode for ReplyHeader {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let accepted = |out: &mut Vec<u8>, stat: u32| {
            let mut header = [0; ReplyHeader::SUCCESS_SIZE];
            header[0..4].copy_from_slice(&self.xid.to_be_bytes());
            header[7] = REPLY as u8;
            header[20..24].copy_from_slice(&stat.to_be_bytes());
            out.extend_from_slice(&header);
        };
        let words = |out: &mut Vec<u8>, words: &[u32]| words.iter().for_each(|word| word.encode(out));
        match self.status {
            ReplyStatus::Success => accepted(out, 0),
            ReplyStatus::ProgUnavail => accepted(out, 1),
            ReplyStatus::ProgMismatch { low, high } => {
                accepted(out, 2);
                words(out, &[low, high]);
            }
            ReplyStatus::ProcUnavail => accepted(out, 3),
            ReplyStatus::GarbageArgs => accepted(out, 4),
            ReplyStatus::SystemErr => accepted(out, 5),
            ReplyStatus::RpcMismatch { low, high } => {
                words(out, &[self.xid, REPLY, MSG_DENIED, 0, low, high]);
            }
            ReplyStatus::AuthError(stat) => words(out, &[self.xid, REPLY, MSG_DENIED, 1, stat as u32]),
        }
    }
}

impl<'a> Decode<'a> for ReplyHeader {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let xid = input.u32()?;
        match input.u32()? {
            REPLY => {}
            value => return Err(DecodeError::UnknownValue { ty: "msg_type of a reply", value }),
        }
        let status = match input.u32()? {
            MSG_ACCEPTED => {
                OpaqueAuth::decode(input)?;
                match input.u32()? {
                    0 => ReplyStatus::Success,
                    1 => ReplyStatus::ProgUnavail,
                    2 => ReplyStatus::ProgMismatch { low: input.u32()?, high: input.u32()? },
                    3 => ReplyStatus::ProcUnavail,
                    4 => ReplyStatus::GarbageArgs,
                    5 => ReplyStatus::SystemErr,
                    value => return Err(DecodeError::UnknownValue { ty: "accept_stat", value }),
                }
            }
            MSG_DENIED => match input.u32()? {
                0 => ReplyStatus::RpcMismatch { low: input.u32()?, high: input.u32()? },
                1 => ReplyStatus::AuthError(AuthStat::decode(input)?),
                value => return Err(DecodeError::UnknownValue { ty: "reject_stat", value }),
            },
            value => return Err(DecodeError::UnknownValue { ty: "reply_stat", value }),
        };
        Ok(Self { xid, status })
    }
}
