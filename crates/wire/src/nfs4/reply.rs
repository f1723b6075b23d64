//! The reply to COMPOUND and to CB_COMPOUND: a status, the tag, and the results of the operations that were executed.

use std::marker::PhantomData;

use super::bitmap::Bitmap;
use super::compound::MAX_TAG;
use super::ops::Opcode;
use super::results::Outcome;
use super::status::Nfsstat4;
use crate::xdr::{Decode, DecodeError, Encode, Reader, overwrite};

/// A reply while results are appended to a buffer. The reply may have payload outside of the buffer, such as the data
/// of READ.
///
/// The reply does not hold the buffer, so that a worker can keep the reply while it waits. Each method takes the
/// buffer with which the reply began. Every change keeps the status and the number of results up to date, so the
/// reply is complete after each result.
#[derive(Debug, Clone, Copy)]
pub struct CompoundReply {
    // Where the RPC message begins in the buffer.
    message: usize,
    status_at: usize,
    count_at: usize,
    count: u32,
    status: Nfsstat4,
    // Where the result of the last operation begins, and the payload before it.
    result_at: usize,
    payload_before: usize,
    // Bytes of payload outside of the buffer.
    payload: usize,
    limit: usize,
}

impl CompoundReply {
    /// Appends the status, the tag, and the number of results, which is 0. `message` is the position at which the RPC
    /// message begins in `out`: the limits of a session count from there.
    pub fn begin(out: &mut Vec<u8>, message: usize, tag: &[u8]) -> Self {
        let status_at = out.len();
        out.reserve(3 * 4 + tag.len());
        Nfsstat4::Ok.encode(out);
        tag.encode(out);
        let count_at = out.len();
        0u32.encode(out);
        Self {
            message,
            status_at,
            count_at,
            count: 0,
            status: Nfsstat4::Ok,
            result_at: out.len(),
            payload_before: 0,
            payload: 0,
            limit: usize::MAX,
        }
    }

    /// Sets the largest size of the RPC message in bytes: `max_response` or `max_response_cached` of the session.
    pub fn limit_to(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Returns the size of the RPC message in bytes, with the payload outside of the buffer.
    #[must_use]
    pub fn size(&self, out: &[u8]) -> usize {
        out.len() - self.message + self.payload
    }

    /// Returns the number of bytes that are left below the limit.
    #[must_use]
    pub fn room(&self, out: &[u8]) -> usize {
        self.limit.saturating_sub(self.size(out))
    }

    /// Returns true if the RPC message is not larger than the limit.
    #[must_use]
    pub fn fits(&self, out: &[u8]) -> bool {
        self.size(out) <= self.limit
    }

    /// Returns the number of results.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the status of the last result.
    #[must_use]
    pub const fn status(&self) -> Nfsstat4 {
        self.status
    }

    /// Begins a successful result of `number`: appends the number and NFS4_OK. The caller appends the body.
    #[inline]
    pub fn start(&mut self, out: &mut Vec<u8>, number: Opcode) {
        self.next(out);
        // NFS4_OK is 0.
        (u64::from(number as u32) << 32).encode(out);
        self.patch(out, Nfsstat4::Ok);
    }

    /// Appends a result: an [`super::OpResult`], or a [`super::CbResult`] in the reply to a callback.
    pub fn push(&mut self, out: &mut Vec<u8>, result: &(impl Outcome + Encode)) {
        self.next(out);
        result.encode(out);
        self.patch(out, result.status());
    }

    /// Appends a failure of `number`.
    pub fn push_failure(&mut self, out: &mut Vec<u8>, number: Opcode, status: Nfsstat4) {
        self.start(out, number);
        self.fail(out, number, status);
    }

    /// Replaces the last result, which is a result of `number`, by a failure. The body that was appended is removed,
    /// and its payload is forgotten. This is the answer to a result that does not fit: NFS4ERR_REP_TOO_BIG.
    pub fn fail(&mut self, out: &mut Vec<u8>, number: Opcode, status: Nfsstat4) {
        out.truncate(self.result_at);
        self.payload = self.payload_before;
        number.encode(out);
        status.encode(out);
        // SETATTR has a body also after a failure.
        if number == Opcode::Setattr {
            Bitmap::EMPTY.encode(out);
        }
        self.patch(out, status);
    }

    /// Counts `bytes` of payload of the last result, padding included, that are sent from another buffer. They belong
    /// to the message at the position at which `out` ends now.
    pub fn add_payload(&mut self, bytes: usize) {
        self.payload += bytes;
    }

    /// Sets the status of a reply without results, such as NFS4ERR_MINOR_VERS_MISMATCH.
    pub fn refuse(&mut self, out: &mut [u8], status: Nfsstat4) {
        self.patch(out, status);
    }

    /// Begins a result at the end of `out`, and notes the place, so that the result can be replaced.
    fn next(&mut self, out: &[u8]) {
        self.result_at = out.len();
        self.payload_before = self.payload;
        self.count += 1;
    }

    /// Sets the status of the whole reply and the number of its results, which lie at its beginning.
    #[inline]
    fn patch(&mut self, out: &mut [u8], status: Nfsstat4) {
        self.status = status;
        overwrite(out, self.status_at, status as u32);
        overwrite(out, self.count_at, self.count);
    }
}

/// `COMPOUND4res` and `CB_COMPOUND4res`: a received reply. Its results are decoded one at a time.
#[derive(Debug, Clone, Copy)]
pub struct CompoundRes<'a, R> {
    /// Status of the last operation that was executed.
    pub status: Nfsstat4,
    /// Tag of the request.
    pub tag: &'a [u8],
    /// The results: [`super::OpResult`] or [`super::CbResult`].
    pub results: Results<'a, R>,
}

impl<'a, R> Decode<'a> for CompoundRes<'a, R> {
    /// Decodes up to the first result.
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let status = Nfsstat4::decode(input)?;
        let tag = input.opaque_var(MAX_TAG)?;
        let left = input.u32()?;
        Ok(Self { status, tag, results: Results { input: *input, left, result: PhantomData } })
    }
}

/// The results of a received reply, decoded one at a time.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a, R> {
    input: Reader<'a>,
    left: u32,
    result: PhantomData<R>,
}

impl<R> Results<'_, R> {
    /// Returns the number of results that are left.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }
}

impl<'a, R: Decode<'a>> Iterator for Results<'a, R> {
    type Item = Result<R, DecodeError>;

    /// Decodes the next result. After an error there are no further results.
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let decoded = R::decode(&mut self.input);
        if decoded.is_err() {
            self.left = 0;
        }
        Some(decoded)
    }
}
