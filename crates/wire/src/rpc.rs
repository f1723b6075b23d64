//! ONC RPC version 2 messages (RFC 5531). The framing of records over TCP is in the crate `rpc`.

mod auth;

pub use auth::{
    AUTH_NONE, AUTH_SYS, Auth, AuthSys, Gids, MAX_AUTH_BYTES, MAX_GIDS, MAX_MACHINE_NAME, OpaqueAuth,
};

use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Version of the RPC protocol.
pub const RPC_VERSION: u32 = 2;
/// Bit in a record mark that is set if the fragment is the last of its record (RFC 5531, section 11).
pub const LAST_FRAGMENT: u32 = 1 << 31;
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
