//! Output that waits for a socket, and the functions that send it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::assemble::single_mark;
use crate::link::Link;
use crate::outlet::Weigh;
use crate::pool::{Account, Charge};
use crate::reply::{OwnedReply, Payload};

/// Slices passed to one sendmsg: enough to fill a socket, few enough for the stack.
pub(crate) const SLICES: usize = 64;

/// A head in a buffer of its own, then a payload outside the loop's region.
pub(crate) struct Chunk {
    head: Vec<u8>,
    payload: Payload,
    /// Bytes sent of the head and of a payload in memory.
    done: usize,
    _charge: Charge,
}

impl Chunk {
    /// Returns a chunk of which `done` bytes of `head` and of a payload in memory were written already.
    pub(crate) fn new(head: Vec<u8>, payload: Payload, done: usize, account: &Arc<Account>) -> Self {
        let charge = account.charge(head.capacity());
        Self { head, payload, done, _charge: charge }
    }

    /// Returns the reply as output, behind its record mark if it is a record of ONC RPC.
    pub(crate) fn from_reply(reply: OwnedReply, account: &Arc<Account>) -> Self {
        let is_marked = reply.is_marked();
        let (mut head, payload) = reply.into_parts();
        if is_marked {
            head.splice(0..0, single_mark(head.len() + payload.len()));
        }
        Self::new(head, payload, 0, account)
    }

    /// Returns the bytes in memory that are not sent yet. A spliced payload is not among them.
    fn slices(&self) -> [&[u8]; 2] {
        let head = &self.head[self.done.min(self.head.len())..];
        let payload = match &self.payload {
            Payload::Pooled(buf, len) => &buf[self.done.saturating_sub(self.head.len())..*len],
            Payload::None | Payload::Region(_) | Payload::Spliced(_) => &[],
        };
        [head, payload]
    }

    fn is_spliced(&self) -> bool {
        matches!(self.payload, Payload::Spliced(_))
    }
}

impl Weigh for Chunk {
    fn weight(&self) -> usize {
        self.head.len() + self.payload.len() - self.done
    }
}

/// Sends as much as one system call takes from the front of `batch`, which is not empty, and removes it. Returns the
/// number of bytes sent.
pub(crate) fn send_front(link: &Link, batch: &mut VecDeque<Chunk>) -> Result<usize, Errno> {
    if let Some(Chunk { head, payload: Payload::Spliced(spliced), done, .. }) = batch.front_mut()
        && *done == head.len()
    {
        let sent = link.send_spliced(spliced)?;
        if spliced.len() == 0 {
            batch.pop_front();
        }
        return Ok(sent);
    }
    let mut slices = [IoSlice::new(&[]); SLICES];
    let mut used = 0;
    // The slices end with the first head that has a spliced payload behind it.
    let spliced = batch.iter().position(Chunk::is_spliced);
    let chunks = batch.iter().take(spliced.map_or(batch.len(), |at| at + 1));
    for slice in chunks.flat_map(Chunk::slices).filter(|slice| !slice.is_empty()).take(SLICES) {
        slices[used] = IoSlice::new(slice);
        used += 1;
    }
    let sent = link.send(&slices[..used], spliced.is_some())?;
    advance(batch, sent);
    Ok(sent)
}

/// Removes `n` sent bytes from the front of the batch. A chunk that is sent in part stays with its progress.
fn advance(batch: &mut VecDeque<Chunk>, mut n: usize) {
    while let Some(front) = batch.front_mut() {
        let weight = front.weight();
        if n < weight {
            front.done += n;
            return;
        }
        n -= weight;
        batch.pop_front();
    }
}

/// Sends the slices with one vectored send that never blocks, and repeats an interrupted one. `more` = the rest of a
/// reply follows at once.
pub(crate) fn send(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
    let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    flags.set(SendFlags::MORE, more);
    rustix::io::retry_on_intr(|| sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags))
}
