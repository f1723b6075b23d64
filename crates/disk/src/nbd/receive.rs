//! Replies, as the receiving thread of a connection takes them. A reply that does not follow the protocol ends the
//! connection. So a hostile server can only fail its own device.

use std::io;
use std::ops::Range;

use forebay_wire::nbd::{
    Chunk, Command, EXTENDED_REPLY, ErrorCode, MAX_STRING, ReplyHeader, Style, chunk_type,
};

use super::connection::Shared;
use super::pending::{Failure, Pending};

/// The bytes that one system call receives, unless they belong to one READ.
const BUFFER: usize = 64 << 10;
/// The longest payload of a chunk in bytes that is no data: an error.
const LONGEST: u64 = MAX_STRING as u64 + 64;
/// The most separate parts of one READ that have arrived at any time.
const MOST_PARTS: usize = 4096;

/// The reason why the connection ends.
type End = String;

/// Receives until the connection ends.
pub(super) fn run(shared: &Shared) {
    let mut replies = Replies { shared, bytes: vec![0; BUFFER], range: 0..0 };
    let end = loop {
        if let Err(end) = replies.next() {
            break end;
        }
    };
    shared.lose(&end);
}

/// The received bytes that are not used yet.
struct Replies<'a> {
    shared: &'a Shared,
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl Replies<'_> {
    /// Receives one simple reply or one chunk.
    fn next(&mut self) -> Result<(), End> {
        self.have(4)?;
        let magic = &self.bytes[self.range.start..][..4];
        let size = magic.try_into().ok().and_then(ReplyHeader::size);
        let size = size.ok_or_else(|| broken("a reply begins with a wrong magic number"))?;
        let style = self.shared.export.style;
        if (size == EXTENDED_REPLY) != (style == Style::Extended) {
            return Err(broken("a reply has another form than negotiated"));
        }
        let header = self.take(size)?;
        let header = ReplyHeader::decode(header).map_err(|error| broken(&error.to_string()))?;
        match header {
            ReplyHeader::Simple { error, cookie } => self.simple(error, cookie),
            ReplyHeader::Chunk { .. } if style == Style::Simple => {
                Err(broken("a reply has another form than negotiated"))
            }
            ReplyHeader::Chunk { is_last, kind, cookie, length } => self.chunk(is_last, kind, cookie, length),
        }
    }

    /// Takes a simple reply, with the data of a READ. Fails if the server has negotiated other replies for READ.
    fn simple(&mut self, error: u32, cookie: u64) -> Result<(), End> {
        let mut pending = self.pending(cookie)?;
        let is_read = pending.command == Command::Read;
        if is_read && self.shared.export.style != Style::Simple {
            return self.fails(pending, broken("a READ has a simple reply among structured ones"));
        }
        if error != 0 {
            self.shared.end(pending, Err(Failure::Refused(ErrorCode::from_number(error))));
            return Ok(());
        }
        let whole = 0..pending.len;
        if is_read && let Err(end) = self.fill(&mut pending, whole) {
            return self.fails(pending, end);
        }
        self.shared.end(pending, Ok(()));
        Ok(())
    }

    /// Takes a chunk of a structured reply. The request ends with the last chunk. Fails if a READ then lacks a part
    /// of its data.
    fn chunk(&mut self, is_last: bool, kind: u16, cookie: u64, length: u64) -> Result<(), End> {
        let mut pending = self.pending(cookie)?;
        if let Err(end) = self.payload(&mut pending, kind, length) {
            return self.fails(pending, end);
        }
        if !is_last {
            self.shared.put_back(cookie, pending);
            return Ok(());
        }
        let is_whole = match &pending.filled[..] {
            [] => pending.command != Command::Read,
            [only] => *only == (0..pending.len),
            _ => false,
        };
        match pending.error {
            Some(error) => self.shared.end(pending, Err(Failure::Refused(error))),
            None if is_whole => self.shared.end(pending, Ok(())),
            None => return self.fails(pending, broken("a READ ends without all of its data")),
        }
        Ok(())
    }

    /// Receives the payload of a chunk.
    fn payload(&mut self, pending: &mut Pending, kind: u16, length: u64) -> Result<(), End> {
        let is_read = pending.command == Command::Read;
        match kind {
            chunk_type::OFFSET_DATA if is_read && length > 8 && length - 8 <= pending.len as u64 => {
                let offset = u64::from_be_bytes(self.array()?);
                let part = part(pending, offset, length - 8)?;
                self.fill(pending, part)
            }
            chunk_type::OFFSET_DATA => Err(broken("a chunk of data has a wrong length")),
            _ if length > LONGEST => Err(broken("a chunk is too long")),
            kind => {
                let payload = self.take(length as usize)?;
                match Chunk::decode(kind, payload).map_err(|error| broken(&error.to_string()))? {
                    Chunk::None => Ok(()),
                    Chunk::Hole { offset, length } if is_read => {
                        let part = part(pending, offset, length.into())?;
                        if let Some(buffer) = &mut pending.buffer {
                            buffer[part.clone()].fill(0);
                        }
                        add(&mut pending.filled, part)
                    }
                    Chunk::Error { error, .. } => {
                        pending.error.get_or_insert(ErrorCode::from_number(error));
                        Ok(())
                    }
                    Chunk::Hole { .. } | Chunk::Data { .. } | Chunk::Status { .. } => {
                        Err(broken("a chunk does not belong to its request"))
                    }
                }
            }
        }
    }

    /// Receives the bytes of a part of a READ.
    fn fill(&mut self, pending: &mut Pending, part: Range<usize>) -> Result<(), End> {
        add(&mut pending.filled, part.clone())?;
        let Some(into) = pending.buffer.as_mut().and_then(|buffer| buffer.get_mut(part)) else {
            return Err(broken("data does not belong to its request"));
        };
        let here = self.range.len().min(into.len());
        into[..here].copy_from_slice(&self.bytes[self.range.start..][..here]);
        self.range.start += here;
        let mut done = here;
        while done < into.len() {
            // A short rest is received together with the replies behind it.
            if into.len() - done < BUFFER / 4 {
                let rest = into.len() - done;
                into[done..].copy_from_slice(self.take(rest)?);
                return Ok(());
            }
            done += received(self.shared.stream.receive(&mut into[done..]))?;
        }
        Ok(())
    }

    fn pending(&self, cookie: u64) -> Result<Pending, End> {
        self.shared.take(cookie).ok_or_else(|| broken("a reply belongs to no request"))
    }

    /// Ends the connection while the request is not among those in flight.
    fn fails(&self, pending: Pending, end: End) -> Result<(), End> {
        self.shared.lose(&end);
        self.shared.end(pending, Err(Failure::Lost));
        Err(end)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], End> {
        self.take(N)?.try_into().map_err(|_| broken("a reply is too short"))
    }

    /// Takes `len` bytes, at most [`BUFFER`].
    fn take(&mut self, len: usize) -> Result<&[u8], End> {
        self.have(len)?;
        let start = self.range.start;
        self.range.start += len;
        Ok(&self.bytes[start..start + len])
    }

    /// Receives until there are `len` bytes, at most [`BUFFER`].
    fn have(&mut self, len: usize) -> Result<(), End> {
        if self.range.len() >= len {
            return Ok(());
        }
        self.bytes.copy_within(self.range.clone(), 0);
        self.range = 0..self.range.len();
        while self.range.len() < len {
            self.range.end += received(self.shared.stream.receive(&mut self.bytes[self.range.end..]))?;
        }
        Ok(())
    }
}

/// Returns the number of received bytes, 0 after an interrupted call. The end of the stream is an error.
fn received(result: io::Result<usize>) -> Result<usize, End> {
    match result {
        Ok(0) => Err("the server has ended it".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(format!("receiving fails: {error}")),
    }
}

fn broken(what: &str) -> End {
    format!("the server does not follow the protocol: {what}")
}

/// Returns the part of a READ's buffer that a chunk is for.
fn part(pending: &Pending, offset: u64, len: u64) -> Result<Range<usize>, End> {
    let start = offset.checked_sub(pending.offset);
    let part = start.and_then(|start| Some(start..start.checked_add(len)?));
    let part = part.filter(|part| part.end <= pending.len as u64 && part.start < part.end);
    part.map(|part| part.start as usize..part.end as usize)
        .ok_or_else(|| broken("a chunk lies outside of its request"))
}

/// Adds a part to separate parts in ascending order.
fn add(parts: &mut Vec<Range<usize>>, part: Range<usize>) -> Result<(), End> {
    let at = parts.partition_point(|other| other.start < part.start);
    let overlaps = at.checked_sub(1).is_some_and(|before| parts[before].end > part.start)
        || parts.get(at).is_some_and(|next| next.start < part.end);
    if overlaps || parts.len() >= MOST_PARTS {
        return Err(broken("the chunks of a READ overlap, or are too many"));
    }
    let joins_before = at > 0 && parts[at - 1].end == part.start;
    let joins_next = parts.get(at).is_some_and(|next| next.start == part.end);
    match (joins_before, joins_next) {
        (true, true) => {
            parts[at - 1].end = parts[at].end;
            parts.remove(at);
        }
        (true, false) => parts[at - 1].end = part.end,
        (false, true) => parts[at].start = part.start,
        (false, false) => parts.insert(at, part),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_and_must_not_overlap() {
        let mut parts = Vec::new();
        for part in [8..12, 0..4, 4..6, 16..20, 12..16] {
            add(&mut parts, part).unwrap();
        }
        assert_eq!(parts, [0..6, 8..20]);
        for part in [0..1, 5..7, 7..9, 19..21, 0..30, 8..20] {
            assert!(add(&mut parts, part.clone()).is_err(), "{part:?}");
        }
        add(&mut parts, 6..8).unwrap();
        assert!(parts.len() == 1 && parts[0] == (0..20), "{parts:?}");
        let mut many: Vec<_> = (0..MOST_PARTS).map(|at| 2 * at..2 * at + 1).collect();
        assert!(add(&mut many, 3 * MOST_PARTS..3 * MOST_PARTS + 1).is_err());
    }
}
