//! Credentials and verifiers of RPC messages (RFC 5531, sections 8.2 and 10, appendix A).

use crate::xdr::{Decode, DecodeError, Encode, Reader};

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
