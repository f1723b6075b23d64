//! Record marking (RFC 5531 section 11): cuts a byte stream into records, whatever their fragmentation. On a connection
//! with a [`Session`], cuts the stream into messages of that protocol.
//!
//! A record that lies whole in the received bytes is passed on without a copy. Any other record is collected in a
//! pooled buffer that starts small. After [`EARLY`] bytes, if memory is plentiful, the buffer is replaced by one of the
//! claimed size. Otherwise it grows with the bytes that arrive: an announced length takes no memory from other clients.

use std::sync::Arc;

use crate::pool::{Account, PooledBuf, SMALL};
use crate::session::Session;
use crate::stats::CloseReason;

/// Bytes of a large record that must have arrived before a buffer of its claimed size is taken.
pub(crate) const EARLY: usize = 4096;

/// A record collected in a pooled buffer.
pub(crate) struct RecordBuf {
    pub(crate) buf: PooledBuf,
    pub(crate) len: usize,
}

/// The result of assembling the bytes received so far.
pub(crate) enum Next<'s> {
    /// A record, in place.
    Whole(&'s [u8]),
    /// A record that arrived in pieces.
    Assembled(RecordBuf),
    /// All input is consumed, and no record is complete.
    More,
    /// No buffer is available now; the rest of the input is not consumed.
    Starved,
}

/// The position of a connection's stream between two receives.
#[derive(Default)]
pub(crate) struct Assembler {
    mark: [u8; 4],
    mark_len: usize,
    /// Bytes missing from the current fragment.
    left: usize,
    last: bool,
    /// True once the mark of a first fragment has arrived. The number of fragments does not matter. Each costs the
    /// sender more than the receiver, and all fragments together hold no more than one record.
    begun: bool,
    len: usize,
    buf: Option<PooledBuf>,
}

impl Assembler {
    /// Returns true if part of a record has arrived.
    pub(crate) fn partial(&self) -> bool {
        self.mark_len > 0 || self.begun
    }

    /// Returns true if the record in progress is known to be large.
    pub(crate) fn large(&self) -> bool {
        self.len + self.left > SMALL
    }

    /// Returns the number of bytes of the record in progress that have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.len
    }

    /// Takes the next record or message out of `input`, advancing it.
    pub(crate) fn next<'s>(
        &mut self,
        input: &mut &'s [u8],
        session: Option<&dyn Session>,
        max_record: usize,
        account: &Arc<Account>,
    ) -> Result<Next<'s>, CloseReason> {
        if let Some(session) = session {
            return self.next_message(input, session, max_record, account);
        }
        if !self.partial()
            && let Some((mark, rest)) = input.split_first_chunk::<4>()
        {
            let (last, len) = parse_mark(*mark);
            if last && len > 0 && len <= rest.len() && len <= max_record {
                let (record, rest) = rest.split_at(len);
                *input = rest;
                return Ok(Next::Whole(record));
            }
        }
        loop {
            if self.left == 0 {
                let take = input.len().min(4 - self.mark_len);
                let (head, rest) = input.split_at(take);
                self.mark[self.mark_len..self.mark_len + take].copy_from_slice(head);
                self.mark_len += take;
                *input = rest;
                if self.mark_len < 4 {
                    return Ok(Next::More);
                }
                self.begin_fragment(max_record)?;
            } else if let Some(stopped) = self.collect(input, account) {
                return Ok(stopped);
            }
            if let Some(record) = self.complete() {
                return Ok(Next::Assembled(record));
            }
        }
    }

    /// Takes the next message of a connection with a session out of `input`.
    fn next_message<'s>(
        &mut self,
        input: &mut &'s [u8],
        session: &dyn Session,
        max_record: usize,
        account: &Arc<Account>,
    ) -> Result<Next<'s>, CloseReason> {
        if !self.begun {
            let header = session.header();
            if let Some(bytes) = input.get(..header)
                && let Some((message, rest)) =
                    input.split_at_checked(message_len(session, bytes, max_record)?)
            {
                *input = rest;
                return Ok(Next::Whole(message));
            }
            if input.is_empty() {
                return Ok(Next::More);
            }
            // The header is the first fragment, and the rest of the message is the last one.
            (self.begun, self.left) = (true, header);
        }
        loop {
            if self.left == 0 && !self.last {
                let header = self.buf.as_deref().map_or(&[][..], |buf| &buf[..self.len]);
                self.left = message_len(session, header, max_record)? - self.len;
                self.last = true;
            }
            if let Some(message) = self.complete() {
                return Ok(Next::Assembled(message));
            }
            if let Some(stopped) = self.collect(input, account) {
                return Ok(stopped);
            }
        }
    }

    /// Collects bytes of the current fragment. Returns the reason if there are none, or no buffer for them.
    fn collect<'s>(&mut self, input: &mut &[u8], account: &Arc<Account>) -> Option<Next<'s>> {
        let take = input.len().min(self.left);
        if take == 0 {
            return Some(Next::More);
        }
        if !self.reserve(take, account) {
            return Some(Next::Starved);
        }
        let (bytes, rest) = input.split_at(take);
        if let Some(buf) = &mut self.buf {
            buf[self.len..self.len + take].copy_from_slice(bytes);
        }
        *input = rest;
        self.len += take;
        self.left -= take;
        None
    }

    /// Returns space to receive the current fragment into directly: for its rest, or as much as its buffer has room
    /// for.
    pub(crate) fn direct(&mut self) -> &mut [u8] {
        match &mut self.buf {
            Some(buf) if self.len >= EARLY => {
                let end = buf.len().min(self.len + self.left);
                &mut buf[self.len..end]
            }
            _ => &mut [],
        }
    }

    /// Accounts for `n` bytes received into [`direct`](Self::direct). Returns the record if it is complete now.
    pub(crate) fn received(&mut self, n: usize) -> Option<RecordBuf> {
        let n = n.min(self.left);
        self.len += n;
        self.left -= n;
        self.complete()
    }

    /// Takes over a complete record mark. Fails if the record would be longer than `max_record` bytes, or is empty.
    fn begin_fragment(&mut self, max_record: usize) -> Result<(), CloseReason> {
        let (last, len) = parse_mark(self.mark);
        self.mark_len = 0;
        self.begun = true;
        if self.len + len > max_record {
            return Err(CloseReason::RecordTooLong);
        }
        if last && self.len + len == 0 {
            return Err(CloseReason::EmptyRecord);
        }
        self.left = len;
        self.last = last;
        Ok(())
    }

    /// Makes room for `more` bytes; returns false if no buffer is available.
    fn reserve(&mut self, more: usize, account: &Arc<Account>) -> bool {
        let (claimed, arrived) = (self.len + self.left, self.len + more);
        let want = match arrived {
            0..EARLY => claimed.min(SMALL),
            _ if account.has_plenty(claimed) => claimed,
            _ => arrived,
        };
        if self.buf.as_ref().is_some_and(|buf| buf.len() >= want) {
            return true;
        }
        let Some(mut larger) = account.lease(want) else { return false };
        if let Some(buf) = &self.buf {
            larger[..self.len].copy_from_slice(&buf[..self.len]);
        }
        self.buf = Some(larger);
        true
    }

    /// Returns the record if its last fragment is whole, and is then ready for the next record.
    fn complete(&mut self) -> Option<RecordBuf> {
        if self.left > 0 || !self.last || !self.begun {
            return None;
        }
        let done = std::mem::take(self);
        Some(RecordBuf { buf: done.buf?, len: done.len })
    }
}

/// Returns the length of the message with this header.
fn message_len(session: &dyn Session, header: &[u8], max_record: usize) -> Result<usize, CloseReason> {
    let len = session.message(header)?;
    if len > max_record { Err(CloseReason::RecordTooLong) } else { Ok(len.max(header.len())) }
}

/// Returns the last-fragment flag and the length in bytes of a record mark.
fn parse_mark(mark: [u8; 4]) -> (bool, usize) {
    let word = u32::from_be_bytes(mark);
    (word >> 31 == 1, (word & 0x7fff_ffff) as usize)
}

/// Returns the record mark of a single-fragment record of `len` bytes, below 2 GiB.
pub(crate) fn single_mark(len: usize) -> [u8; 4] {
    (len as u32 | 0x8000_0000).to_be_bytes()
}

#[cfg(test)]
mod tests;
