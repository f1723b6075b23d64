//! The reply to one record, filled by the service, on the loop or on a worker.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::pool::{Account, PooledBuf, SMALL};
use crate::splice::{Spliced, suits};

/// The reply to one record: a head that encoders append to and at most one payload, which goes after the head.
///
/// The transport adds the record mark in front and zero bytes up to a multiple of four behind the payload (XDR
/// opaque padding, RFC 4506 section 4.10). It adds neither on a connection with a [`Session`](crate::Session). The head
/// may be completed after the payload was read.
pub struct Reply<'a> {
    head: Vec<u8>,
    payload: Option<PayloadBuf<'a>>,
    /// A payload in a pipe, in place of a payload in memory.
    spliced: Option<Spliced>,
    /// Space in the loop's output where a small payload needs no copy.
    region: Option<&'a mut [u8]>,
    account: AccountRef<'a>,
    /// False if the payload has to be in memory, because the reply is sealed. False as well on an event loop that would
    /// seal the pages itself: it would serve no other connection for most of a millisecond. A worker seals them.
    may_splice: bool,
    /// True for a record of ONC RPC, which has a mark and padding.
    is_marked: bool,
}

/// A reply for [`Ticket::send`](crate::Ticket::send), made by [`Ticket::reply`](crate::Ticket::reply).
pub type OwnedReply = Reply<'static>;

enum AccountRef<'a> {
    Loop(&'a Arc<Account>),
    Ticket(Arc<Account>),
}

impl AccountRef<'_> {
    /// Returns the account that buffers of the reply are charged to.
    fn get(&self) -> &Arc<Account> {
        match self {
            Self::Loop(account) => account,
            Self::Ticket(account) => account,
        }
    }
}

impl<'a> Reply<'a> {
    /// Returns a reply whose parts the loop takes back: `head` is its reused vector, `region` a piece of its output.
    #[inline]
    pub(crate) fn on_loop(
        mut head: Vec<u8>,
        region: &'a mut [u8],
        account: &'a Arc<Account>,
        (may_splice, is_marked): (bool, bool),
    ) -> Self {
        head.clear();
        let (region, account) = (Some(region), AccountRef::Loop(account));
        Self { head, payload: None, spliced: None, region, account, may_splice, is_marked }
    }

    /// Returns true if the reply is a record with a mark.
    pub(crate) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Returns the bytes before the payload, to append to; empty at first.
    #[inline]
    pub fn head(&mut self) -> &mut Vec<u8> {
        &mut self.head
    }

    /// Returns an empty buffer for up to `max` bytes of payload. A service reads straight into the buffer.
    ///
    /// When memory is short the buffer may hold less than `max`, down to 16 KiB. It holds nothing if the system is out
    /// of memory. READ then answers fewer bytes, as RFC 1813 section 3.3.6 allows. A second call discards the first
    /// payload.
    #[inline]
    pub fn payload(&mut self, max: usize) -> &mut PayloadBuf<'a> {
        self.forget_payload();
        let space = match self.region.take() {
            Some(region) if max <= SMALL => Space::Region(region),
            unused => {
                self.region = unused;
                self.account.get().lease_payload(max).map_or(Space::None, Space::Pooled)
            }
        };
        let max = max.min(space.len());
        self.payload.insert(PayloadBuf { space, max, len: 0 })
    }

    /// Returns the payload in memory, if one was begun.
    pub fn payload_mut(&mut self) -> Option<&mut PayloadBuf<'a>> {
        self.payload.as_mut()
    }

    /// Returns true if [`splice`](Self::splice) is worth trying for a payload with this offset and length.
    pub fn may_splice(&self, offset: u64, len: usize) -> bool {
        self.may_splice && suits(offset, len)
    }

    /// Makes `len` bytes of `file` at `offset` the payload without copying them. The pages go to the socket by
    /// reference, and a later write to the file may show in them until the peer has them. A TLS session in user space
    /// takes a copy, piece by piece, when it seals them. Waits for the disk if the pages are not in memory.
    ///
    /// Returns false, and sets no payload, if the bytes are not all available this way. Then the file is shorter, the
    /// file system, a limit or TLS does not allow it, or the splice is not worth it ([`may_splice`](Self::may_splice)).
    pub fn splice(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
        self.forget_payload();
        if self.may_splice(offset, len) {
            self.spliced = Spliced::new(self.account.get(), file, offset, len);
        }
        self.spliced.is_some()
    }

    /// Discards head and payload, to answer with an error instead.
    pub fn clear(&mut self) {
        self.head.clear();
        self.forget_payload();
    }

    /// Drops the payload. The loop's region becomes free for another one.
    fn forget_payload(&mut self) {
        self.spliced = None;
        if let Some(PayloadBuf { space: Space::Region(region), .. }) = self.payload.take() {
            self.region = Some(region);
        }
    }

    /// Returns the parts: head, and the payload with its padding.
    #[inline]
    pub(crate) fn into_parts(self) -> (Vec<u8>, Payload) {
        let payload = match (self.spliced, self.payload) {
            (Some(spliced), _) => Payload::Spliced(spliced),
            (None, Some(payload)) if payload.len > 0 => payload.finish(self.is_marked),
            _ => Payload::None,
        };
        (self.head, payload)
    }
}

/// A complete payload.
pub(crate) enum Payload {
    None,
    /// A number of bytes of the loop's region.
    Region(usize),
    /// A buffer, and the number of its bytes that are set.
    Pooled(PooledBuf, usize),
    Spliced(Spliced),
}

impl Payload {
    /// Returns the number of bytes, padding included.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Region(len) | Self::Pooled(_, len) => *len,
            Self::Spliced(spliced) => spliced.len(),
        }
    }
}

impl OwnedReply {
    /// Returns an empty reply for a worker, which has no region of an event loop. `account` pays for payload buffers.
    pub(crate) fn on_ticket(account: Arc<Account>, is_marked: bool) -> Self {
        // The capacity holds the record mark and any reply head without a payload, except READDIR's.
        let head = Vec::with_capacity(256);
        let account = AccountRef::Ticket(account);
        Self { head, payload: None, spliced: None, region: None, account, may_splice: true, is_marked }
    }

    /// Returns the reply with [`splice`](Reply::splice) always false.
    pub(crate) fn without_splice(self) -> Self {
        Self { may_splice: false, ..self }
    }

    /// Moves the payload with its padding to the end of the head. The reply was made without splices.
    pub(crate) fn flatten(&mut self) {
        debug_assert!(self.spliced.is_none(), "a spliced payload is not in memory");
        if let Some(mut payload) = self.payload.take() {
            let padded = if self.is_marked { payload.len.next_multiple_of(4) } else { payload.len };
            self.head.extend_from_slice(payload.filled_mut());
            self.head.resize(self.head.len() + padded - payload.len, 0);
        }
    }
}

pub(crate) enum Space<'a> {
    Region(&'a mut [u8]),
    Pooled(PooledBuf),
    None,
}

impl Space<'_> {
    /// Returns the capacity of the space in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Region(_) => SMALL,
            Self::Pooled(buf) => buf.len(),
            Self::None => 0,
        }
    }
}

/// Space for a reply's payload.
pub struct PayloadBuf<'a> {
    space: Space<'a>,
    max: usize,
    len: usize,
}

impl PayloadBuf<'_> {
    /// Returns the capacity in bytes: the requested size, or less when memory is short.
    pub fn capacity(&self) -> usize {
        self.max
    }

    /// Returns the number of bytes set so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes are set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the unset rest of the capacity. Its contents are left over from earlier requests. Only overwritten bytes
    /// may be covered by [`set_len`](Self::set_len).
    #[inline]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.len, self.max);
        &mut self.all()[from..to]
    }

    /// Declares the first `len` bytes set; a value above the capacity counts as the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.max, "payload longer than its capacity");
        self.len = len.min(self.max);
    }

    /// Returns the bytes that are set.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.all()[..len]
    }

    /// Returns the whole space. Its contents may be left over from earlier requests.
    fn all(&mut self) -> &mut [u8] {
        match &mut self.space {
            Space::Region(region) => region,
            Space::Pooled(buf) => buf,
            Space::None => &mut [],
        }
    }

    /// Zeroes the padding, if there is any.
    #[inline]
    fn finish(mut self, is_padded: bool) -> Payload {
        let (len, padded) = (self.len, if is_padded { self.len.next_multiple_of(4) } else { self.len });
        self.all()[len..padded].fill(0);
        match self.space {
            Space::Pooled(buf) => Payload::Pooled(buf, padded),
            Space::Region(_) => Payload::Region(padded),
            Space::None => Payload::None,
        }
    }
}
