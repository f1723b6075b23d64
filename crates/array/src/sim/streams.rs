//! Sequential streams: which requests continue a stream, and which ranges were read ahead for it.

/// Number of requests in sequence that confirm a stream.
const CONFIRM: u32 = 3;
/// Largest distance, in requests, of a request from its place in the sequence. Several requests may be in flight and
/// overtake each other.
const REORDER: u64 = 4;

/// The sequences of requests that are followed.
#[derive(Debug)]
pub(crate) struct Streams {
    table: Vec<Stream>,
    capacity: usize,
    clock: u64,
}

/// One sequence of requests.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Number that distinguishes this stream from earlier ones in its slot.
    generation: u64,
    next: u64,
    length: u64,
    seen: u32,
    bytes: u64,
    used: u64,
    /// End of the range that has been requested from the disks.
    frontier: u64,
    pieces: Vec<Piece>,
}

/// A range that is read ahead.
#[derive(Debug)]
struct Piece {
    start: u64,
    end: u64,
    /// Disk commands that have not ended.
    outstanding: u32,
    waiters: Vec<usize>,
}

/// The name of a piece while disk commands for it are in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceKey {
    slot: u32,
    generation: u64,
    start: u64,
}

impl Streams {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { table: Vec::new(), capacity, clock: 0 }
    }

    /// Notes a request. Returns the slot of the confirmed stream that the request continues, if any.
    pub(crate) fn observe(&mut self, offset: u64, length: u64) -> Option<usize> {
        self.clock += 1;
        let fits =
            |s: &Stream| offset.abs_diff(s.next) <= if s.seen < CONFIRM { 0 } else { s.reorder(length) };
        let Some(slot) = self.table.iter().position(fits) else {
            self.begin(offset + length, length);
            return None;
        };
        let stream = &mut self.table[slot];
        stream.used = self.clock;
        stream.next = stream.next.max(offset + length);
        stream.length = length;
        stream.seen += 1;
        stream.bytes += length;
        (stream.seen >= CONFIRM).then_some(slot)
    }

    /// Records a possible new stream that continues at `next`. In a full table it replaces the least recently used
    /// stream for which no request waits.
    fn begin(&mut self, next: u64, length: u64) {
        let generation = self.clock;
        let fresh = Stream {
            generation,
            next,
            length,
            seen: 1,
            bytes: length,
            used: self.clock,
            frontier: 0,
            pieces: Vec::new(),
        };
        if self.table.len() < self.capacity {
            self.table.push(fresh);
            return;
        }
        // A stream that a request waits for must stay, or that request would never complete.
        let idle = |s: &&mut Stream| s.pieces.iter().all(|p| p.waiters.is_empty());
        if let Some(oldest) = self.table.iter_mut().filter(idle).min_by_key(|s| s.used) {
            *oldest = fresh;
        }
    }

    /// Returns the ranges to read ahead now for the stream in `slot`, cut at multiples of `grain`, none beyond
    /// `limit`.
    ///
    /// The window is twice the bytes that the stream has read, at most `window` bytes. It is filled in halves.
    pub(crate) fn ahead(
        &mut self,
        slot: usize,
        window: u64,
        grain: u64,
        limit: u64,
    ) -> Vec<(PieceKey, u64, u64)> {
        let stream = &mut self.table[slot];
        let window = window.min(stream.bytes * 2);
        stream.frontier = stream.frontier.max(stream.next);
        let keep = stream.next.saturating_sub(stream.reorder(stream.length));
        stream.pieces.retain(|p| p.end > keep || p.outstanding > 0);
        let mut wanted = Vec::new();
        if stream.frontier - stream.next >= window / 2 {
            return wanted;
        }
        let until = ((stream.next + window) / grain * grain).min(limit);
        while stream.frontier < until {
            let (start, end) = (stream.frontier, ((stream.frontier / grain + 1) * grain).min(until));
            stream.pieces.push(Piece { start, end, outstanding: 0, waiters: Vec::new() });
            let key = PieceKey { slot: slot as u32, generation: stream.generation, start };
            wanted.push((key, start, end));
            stream.frontier = end;
        }
        wanted
    }

    /// Sets the number of disk commands that a piece consists of.
    pub(crate) fn issued(&mut self, key: PieceKey, commands: u32) {
        if let Some(piece) = self.piece(key) {
            piece.outstanding = commands;
        }
    }

    /// Notes the end of one disk command of a piece. After the last one, returns the requests that waited for the
    /// piece.
    pub(crate) fn arrived(&mut self, key: PieceKey) -> Vec<usize> {
        let Some(piece) = self.piece(key) else { return Vec::new() };
        piece.outstanding -= 1;
        if piece.outstanding == 0 { std::mem::take(&mut piece.waiters) } else { Vec::new() }
    }

    /// Makes `request` wait for the pieces of its range that are in progress. Adds the ranges that were not read ahead
    /// to `missing`. Returns the number of pieces that the request waits for.
    pub(crate) fn join(
        &mut self,
        slot: usize,
        (offset, length): (u64, u64),
        request: usize,
        missing: &mut Vec<(u64, u64)>,
    ) -> u32 {
        let (mut at, end, mut waits) = (offset, offset + length, 0);
        for piece in self.table[slot].pieces.iter_mut().filter(|p| p.end > offset && p.start < end) {
            if piece.start > at {
                missing.push((at, piece.start - at));
            }
            at = at.max(piece.end);
            if piece.outstanding > 0 {
                piece.waiters.push(request);
                waits += 1;
            }
        }
        if at < end {
            missing.push((at, end - at));
        }
        waits
    }

    /// Returns the piece with this key, or `None` if another stream has taken the slot meanwhile.
    fn piece(&mut self, key: PieceKey) -> Option<&mut Piece> {
        let stream = self.table.get_mut(key.slot as usize).filter(|s| s.generation == key.generation)?;
        stream.pieces.iter_mut().find(|p| p.start == key.start)
    }
}

impl Stream {
    fn reorder(&self, length: u64) -> u64 {
        self.length.max(length) * REORDER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_confirmed_by_its_third_request_in_sequence() {
        let mut s = Streams::new(4);
        assert_eq!(s.observe(0, 4096), None);
        assert_eq!(s.observe(4096, 4096), None);
        assert_eq!(s.observe(8192, 4096), Some(0));
        assert_eq!(s.observe(1 << 30, 4096), None);
        assert_eq!(s.observe(16384, 4096), Some(0), "one that overtook its neighbour still belongs");
        assert_eq!(s.observe(12288, 4096), Some(0));
    }

    #[test]
    fn random_requests_are_no_stream() {
        let mut s = Streams::new(8);
        let mut state = 3u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            assert_eq!(s.observe((state >> 24) % (1 << 30) * 4096, 4096), None);
        }
    }

    #[test]
    fn what_is_read_ahead_is_waited_for_and_the_rest_is_missing() {
        let mut s = Streams::new(4);
        for i in 0..3 {
            s.observe(i * 65536, 65536);
        }
        let pieces = s.ahead(0, 1 << 20, 65536, u64::MAX);
        assert_eq!(pieces.first().map(|p| (p.1, p.2)), Some((3 * 65536, 4 * 65536)));
        for p in &pieces {
            s.issued(p.0, 1);
        }
        let mut missing = Vec::new();
        assert_eq!(s.join(0, (2 * 65536, 2 * 65536), 9, &mut missing), 1);
        assert_eq!(missing, [(2 * 65536, 65536)]);
        assert_eq!(s.arrived(pieces[0].0), [9]);
        missing.clear();
        assert_eq!(s.join(0, (3 * 65536, 65536), 9, &mut missing), 0);
        assert!(missing.is_empty());
    }
}
