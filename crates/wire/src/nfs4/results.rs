//! Results of operations: a status, and a body that depends on it.

use super::bitmap::Bitmap;
use super::status::Nfsstat4;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// A result with a status.
pub trait Outcome {
    /// Returns the status.
    fn status(&self) -> Nfsstat4;
}

/// A result that has a body only after success. The error is never [`Nfsstat4::Ok`].
pub type OpRes<T> = Result<T, Nfsstat4>;
/// A result without a body.
pub type StatusRes = OpRes<()>;

impl<T> Outcome for OpRes<T> {
    fn status(&self) -> Nfsstat4 {
        self.as_ref().err().copied().unwrap_or(Nfsstat4::Ok)
    }
}

impl<T: Encode> Encode for OpRes<T> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.status().encode(out);
        if let Ok(body) = self {
            body.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for OpRes<T> {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let status = input.u32()?;
        if status == Nfsstat4::Ok as u32 {
            T::decode(input).map(Ok)
        } else {
            Nfsstat4::try_from(status).map(Err)
        }
    }
}

/// A result that has a body after success, and another body after the failure with the number `STATUS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum ResultOr<T, F, const STATUS: u32> {
    /// Success.
    Ok(T),
    /// Failure with the status `STATUS`.
    Failed(F),
    /// Any other failure.
    Err(Nfsstat4),
}

impl<T, F, const STATUS: u32> Outcome for ResultOr<T, F, STATUS> {
    fn status(&self) -> Nfsstat4 {
        match self {
            ResultOr::Ok(_) => Nfsstat4::Ok,
            // `STATUS` is the number of a status, so the conversion cannot fail.
            ResultOr::Failed(_) => Nfsstat4::try_from(STATUS).unwrap_or(Nfsstat4::Serverfault),
            ResultOr::Err(status) => *status,
        }
    }
}

impl<T: Encode, F: Encode, const STATUS: u32> Encode for ResultOr<T, F, STATUS> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.status().encode(out);
        match self {
            ResultOr::Ok(body) => body.encode(out),
            ResultOr::Failed(body) => body.encode(out),
            ResultOr::Err(_) => {}
        }
    }
}

impl<'a, T: Decode<'a>, F: Decode<'a>, const STATUS: u32> Decode<'a> for ResultOr<T, F, STATUS> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match Nfsstat4::decode(input)? {
            Nfsstat4::Ok => T::decode(input).map(Self::Ok),
            status if status as u32 == STATUS => F::decode(input).map(Self::Failed),
            status => Ok(Self::Err(status)),
        }
    }
}

xdr_struct! {
    /// `SETATTR4res`: the result of SETATTR.
    pub struct SetattrRes {
        /// Status.
        pub status: Nfsstat4,
        /// Attributes that were set, also after a failure.
        pub attrsset: Bitmap,
    }
}

impl Outcome for SetattrRes {
    fn status(&self) -> Nfsstat4 {
        self.status
    }
}
