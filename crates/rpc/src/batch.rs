//! The replies of one connection, gathered on the loop for a single sendmsg.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use crate::assemble::single_mark;
use crate::chunk::{Chunk, SLICES};
use crate::link::Link;
use crate::pool::{Account, PooledBuf, SMALL};
use crate::reply::Payload;
use crate::splice::Spliced;

const ARENA: usize = 256 << 10;
/// The largest gap before a payload for record mark and head, which are known only after the payload.
const GAP: usize = 512;
/// Payload bytes in pooled buffers that are worth a sendmsg of their own.
const ENOUGH: usize = 512 << 10;

enum Piece {
    Arena { from: usize, to: usize },
    Heap(Vec<u8>),
    Pooled(PooledBuf, usize),
}

/// The gathered replies. Heads and small payloads lie in one arena, large payloads in their pooled buffers.
pub(crate) struct Batch {
    arena: Box<[u8]>,
    used: usize,
    /// Bytes left free before the next payload: the size of mark and head of the last reply with a payload. Replies to
    /// READ have heads of one size, so mostly no hole remains and the whole batch is one slice.
    gap: usize,
    pieces: Vec<Piece>,
    pooled: usize,
    /// The payload behind all pieces.
    spliced: Option<Spliced>,
}

impl Batch {
    /// Returns an empty batch with its arena, which an event loop uses for all of its connections.
    pub(crate) fn new() -> Self {
        Self {
            arena: vec![0; ARENA].into_boxed_slice(),
            used: 0,
            gap: 0,
            pieces: Vec::with_capacity(SLICES),
            pooled: 0,
            spliced: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns true if another reply may be added before the batch has to be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.used + 2 * GAP + SMALL <= ARENA
            && self.pieces.len() + 3 <= SLICES
            && self.pooled < ENOUGH
            && self.spliced.is_none()
    }

    /// Returns the space for the next reply's payload, if the payload is small.
    pub(crate) fn region(&mut self) -> &mut [u8] {
        let from = self.used + self.gap;
        &mut self.arena[from..from + SMALL]
    }

    /// Adds a reply, with a record mark if `is_marked`.
    pub(crate) fn push(&mut self, head: &mut Vec<u8>, payload: Payload, is_marked: bool) {
        let mark = single_mark(head.len() + payload.len());
        let mark = if is_marked { &mark[..] } else { &[] };
        match payload {
            Payload::None => self.push_head(mark, head),
            Payload::Pooled(buf, len) => {
                self.push_head(mark, head);
                self.pooled += len;
                self.pieces.push(Piece::Pooled(buf, len));
            }
            Payload::Spliced(spliced) => {
                self.push_head(mark, head);
                self.spliced = Some(spliced);
            }
            Payload::Region(len) => {
                let start = self.used + self.gap;
                let head_len = mark.len() + head.len();
                if head_len <= self.gap {
                    let from = start - head_len;
                    self.copy_head(from, mark, head);
                    self.used = start;
                    self.push_arena(from, start + len);
                } else {
                    self.used = start + len;
                    self.push_head(mark, head);
                    self.push_arena(start, start + len);
                }
                self.gap = head_len.min(GAP);
            }
        }
    }

    /// Adds mark and head without a payload, in the arena. If the arena is full, they stay in the head's own memory,
    /// and `head` is left empty.
    fn push_head(&mut self, mark: &[u8], head: &mut Vec<u8>) {
        let (from, to) = (self.used, self.used + mark.len() + head.len());
        if to > ARENA {
            let mut own = std::mem::take(head);
            own.splice(0..0, mark.iter().copied());
            self.pooled += own.len();
            self.pieces.push(Piece::Heap(own));
            return;
        }
        self.copy_head(from, mark, head);
        self.push_arena(from, to);
    }

    /// Adds a stretch of the arena. Extends the last piece if the stretch continues it.
    fn push_arena(&mut self, from: usize, to: usize) {
        self.used = self.used.max(to);
        match self.pieces.last_mut() {
            Some(Piece::Arena { to: end, .. }) if *end == from => *end = to,
            _ => self.pieces.push(Piece::Arena { from, to }),
        }
    }

    /// Copies mark and head into the arena at `at`, where the caller has found room.
    fn copy_head(&mut self, at: usize, mark: &[u8], head: &[u8]) {
        let body = at + mark.len();
        self.arena[at..body].copy_from_slice(mark);
        self.arena[body..body + head.len()].copy_from_slice(head);
    }

    /// Returns the bytes of a piece.
    fn bytes<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        match piece {
            Piece::Arena { from, to } => &self.arena[*from..*to],
            Piece::Heap(bytes) => bytes,
            Piece::Pooled(buf, len) => &buf[..*len],
        }
    }

    /// Sends as much as the socket takes. Returns the number of bytes, and whether these were all.
    pub(crate) fn send(&mut self, link: &Link) -> Result<(usize, bool), Errno> {
        let total: usize = self.pieces.iter().map(|piece| self.bytes(piece).len()).sum();
        let mut sent = 0;
        while sent < total {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut skip = sent;
            let mut used = 0;
            for piece in self.pieces.iter().take(SLICES) {
                let bytes = self.bytes(piece);
                let cut = skip.min(bytes.len());
                skip -= cut;
                if cut < bytes.len() {
                    slices[used] = IoSlice::new(&bytes[cut..]);
                    used += 1;
                }
            }
            match link.send(&slices[..used], self.spliced.is_some()) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => return Ok((sent, false)),
                Err(error) => return Err(error),
            }
        }
        while let Some(spliced) = self.spliced.as_mut().filter(|spliced| spliced.len() > 0) {
            match link.send_spliced(spliced) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => return Ok((sent, false)),
                Err(error) => return Err(error),
            }
        }
        Ok((sent, true))
    }

    /// Returns the bytes after the first `sent` ones, in buffers of their own.
    pub(crate) fn rest(&mut self, mut sent: usize, account: &Arc<Account>) -> VecDeque<Chunk> {
        let mut rest = VecDeque::new();
        for piece in std::mem::take(&mut self.pieces) {
            let len = self.bytes(&piece).len();
            let cut = sent.min(len);
            sent -= cut;
            if cut == len {
                continue;
            }
            rest.push_back(match piece {
                Piece::Arena { from, to } => {
                    Chunk::new(self.arena[from + cut..to].to_vec(), Payload::None, 0, account)
                }
                Piece::Heap(bytes) => Chunk::new(bytes, Payload::None, cut, account),
                Piece::Pooled(buf, len) => Chunk::new(Vec::new(), Payload::Pooled(buf, len), cut, account),
            });
        }
        if let Some(spliced) = self.spliced.take() {
            rest.push_back(Chunk::new(Vec::new(), Payload::Spliced(spliced), 0, account));
        }
        rest
    }

    /// Drops everything that is gathered, and returns pooled buffers to their pool.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.used = 0;
        self.pooled = 0;
        self.spliced = None;
    }
}
