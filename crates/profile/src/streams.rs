//! Sequential or random: the end of the last READ or WRITE of each client in each file.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Streams remembered at most. A new stream takes the place of an older one.
const STREAMS: usize = 4096;

/// A request continues a stream if it begins at most this many times its own length before or behind the end. Clients
/// have several requests of a stream in flight, and the server answers them in any order.
const IN_FLIGHT: u64 = 16;

/// The ends of streams. Threads that race for a place make a stream look random once.
pub(crate) struct Streams(Box<[Stream]>);

#[derive(Default)]
struct Stream {
    key: AtomicU64,
    end: AtomicU64,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Streams((0..STREAMS).map(|_| Stream::default()).collect())
    }

    /// Returns true if a request continues its stream. The first request of a stream does at offset 0.
    pub(crate) fn follow(&self, key: u64, offset: u64, len: u64) -> bool {
        let stream = &self.0[key as usize % STREAMS];
        let (known, last) = (stream.key.load(Relaxed) == key, stream.end.load(Relaxed));
        if !known {
            stream.key.store(key, Relaxed);
        }
        stream.end.store(offset.saturating_add(len), Relaxed);
        match known {
            true => offset.abs_diff(last) <= len.saturating_mul(IN_FLIGHT),
            false => offset == 0,
        }
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|stream| stream.key.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_sequential_also_out_of_order_and_scattered_requests_are_not() {
        let streams = Streams::new();
        for offset in [0_u64, 2, 1, 3, 4, 9, 5, 6, 8, 7] {
            assert!(streams.follow(5, offset << 20, 1 << 20), "{offset}");
        }
        assert!(!streams.follow(6, 4096, 4096), "a stream that does not begin at its file's begin");
        assert!(streams.follow(6, 8192, 4096));
        assert!(!streams.follow(6, 1 << 30, 4096));
        assert!(!streams.follow(6, 0, 4096));
        assert!(!streams.follow(6 + STREAMS as u64, 7, 1), "it takes the place of the stream before");
        assert!(streams.follow(6, 0, 4096), "so that one begins at 0 again");
    }
}
