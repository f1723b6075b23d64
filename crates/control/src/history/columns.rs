//! The figures of one interval of time, as the history keeps them.

use crate::sample::{CacheCounters, OperationSample, StatSample};

/// The way in which a column of several intervals becomes one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    /// The mean, weighted by the length of the intervals.
    Mean,
    /// The largest figure.
    Most,
    /// The figure of the last interval.
    Last,
    /// The sum.
    Sum,
}

/// Defines the columns from one list, so that the file, the page and the joining cannot miss one.
macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident: $joined:ident),+ $(,)?) => {
        /// The figures of one interval. Rates are per second, latencies are in seconds, and sizes are in bytes.
        #[derive(Debug, Clone, Copy, Default, PartialEq)]
        pub struct Point {
            /// End of the interval, in milliseconds since 1970.
            pub time_ms: u64,
            $($(#[$doc])* pub $name: f32),+
        }

        /// The names of the columns, in the order of [`Point::values`].
        pub const COLUMNS: &[&str] = &[$(stringify!($name)),+];
        const JOINED: [Joined; COLUMNS.len()] = [$(Joined::$joined),+];

        impl Point {
            /// Returns the figures in the order of [`COLUMNS`].
            pub fn values(&self) -> [f32; COLUMNS.len()] {
                [$(self.$name),+]
            }

            /// Returns a point with these figures.
            pub(crate) fn from_values(time_ms: u64, values: [f32; COLUMNS.len()]) -> Self {
                let [$($name),+] = values;
                Point { time_ms, $($name),+ }
            }
        }
    };
}

columns! {
    /// Length of the interval in seconds.
    seconds: Sum,
    /// READ.
    reads: Mean,
    /// WRITE.
    writes: Mean,
    /// COMMIT.
    commits: Mean,
    /// Requests that change nothing.
    looks: Mean,
    /// Requests that change names or attributes.
    changes: Mean,
    /// Requests answered with an error.
    errors: Mean,
    /// Payload of READ.
    read_bytes: Mean,
    /// Payload of WRITE.
    written_bytes: Mean,
    /// Median latency of READ.
    read_p50: Most,
    /// Latency that 99 % of all READs do not exceed.
    read_p99: Most,
    /// Median latency of WRITE.
    write_p50: Most,
    /// Latency that 99 % of all WRITEs do not exceed.
    write_p99: Most,
    /// Latency that 99 % of all requests that change nothing do not exceed.
    look_p99: Most,
    /// Latency that 99 % of all requests that change names or attributes do not exceed.
    change_p99: Most,
    /// Bytes read from memory.
    ram_bytes: Mean,
    /// Bytes read from the cache devices.
    ssd_bytes: Mean,
    /// Bytes read from the backing store through the cache.
    backing_bytes: Mean,
    /// Bytes that only the cache has, at the end of the interval.
    dirty_bytes: Last,
    /// Bytes that clients wrote to the log.
    logged_bytes: Mean,
    /// Bytes destaged.
    destaged_bytes: Mean,
    /// Bytes that clients wrote straight to the backing store.
    direct_bytes: Mean,
    /// Traffic of the cache less the traffic of the backing store that the cache caused.
    spared_bytes: Mean,
    /// Bytes written to the cache devices, with all copies and headers.
    device_bytes: Mean,
    /// Syncs of the backing store.
    syncs: Mean,
    /// Processors that the server used; 1 is one processor all the time.
    processors: Mean,
    /// Requests in flight at the end of the interval.
    inflight: Last,
    /// Open connections at the end of the interval.
    connections: Last,
}

impl Point {
    /// Returns the figures between two samples of one start.
    pub(crate) fn between(earlier: &StatSample, now: &StatSample) -> Self {
        let sample = now.since(earlier);
        // The length is at least one microsecond, so that no rate is infinite.
        let seconds = (sample.uptime_ns as f64 / 1e9).max(1e-6);
        let rate = |count: u64| (count as f64 / seconds) as f32;
        let operations = |one: &OperationSample| rate(one.latency.count());
        let latency = |one: &OperationSample, percent| (one.latency.percentile(percent) as f64 / 1e9) as f32;
        let kinds = [&sample.read, &sample.write, &sample.commit, &sample.lookup, &sample.change];
        let cache = sample.cache.unwrap_or_default();
        let blocks = |count: u64| rate(count * 4096);
        Point {
            time_ms: sample.time_ns / 1_000_000,
            seconds: seconds as f32,
            reads: operations(&sample.read),
            writes: operations(&sample.write),
            commits: operations(&sample.commit),
            looks: operations(&sample.lookup),
            changes: operations(&sample.change),
            errors: rate(kinds.iter().map(|kind| kind.errors).sum()),
            read_bytes: rate(sample.read.bytes),
            written_bytes: rate(sample.write.bytes),
            read_p50: latency(&sample.read, 50.0),
            read_p99: latency(&sample.read, 99.0),
            write_p50: latency(&sample.write, 50.0),
            write_p99: latency(&sample.write, 99.0),
            look_p99: latency(&sample.lookup, 99.0),
            change_p99: latency(&sample.change, 99.0),
            ram_bytes: blocks(cache.blocks_read_ram),
            ssd_bytes: blocks(cache.blocks_read_ssd),
            backing_bytes: blocks(cache.blocks_read_backing),
            dirty_bytes: sample.dirty_bytes as f32,
            logged_bytes: blocks(cache.blocks_written),
            destaged_bytes: blocks(cache.blocks_destaged),
            direct_bytes: rate(cache.direct_bytes),
            spared_bytes: blocks(cache.blocks_read() + cache.blocks_written) - blocks(cost(&cache)),
            device_bytes: rate(cache.ssd_bytes_written),
            syncs: rate(sample.sync_batches),
            processors: (sample.cpu_ns as f64 / 1e9 / seconds) as f32,
            inflight: sample.inflight as f32,
            connections: sample.connections as f32,
        }
    }

    /// Returns the figures of consecutive intervals as those of one interval; `None` if there are none.
    pub(crate) fn joined(points: &[Point]) -> Option<Point> {
        let last = points.last()?;
        let seconds: f32 = points.iter().map(|point| point.seconds).sum();
        let mut values = last.values();
        for (column, value) in values.iter_mut().enumerate() {
            let each = || points.iter().map(|point| (point.values()[column], point.seconds));
            *value = match JOINED[column] {
                Joined::Mean => each().map(|(value, length)| value * length).sum::<f32>() / seconds,
                Joined::Most => each().map(|(value, _)| value).fold(0.0, f32::max),
                Joined::Sum => each().map(|(value, _)| value).sum(),
                Joined::Last => *value,
            };
        }
        Some(Point::from_values(last.time_ms, values))
    }
}

/// Returns the blocks of traffic of the backing store that the cache caused.
fn cost(counters: &CacheCounters) -> u64 {
    counters.blocks_read_backing + counters.blocks_destaged
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_common::metrics::Recorder;

    use super::*;

    #[test]
    fn a_point_has_the_rates_of_its_interval() {
        let recorder = Recorder::default();
        let earlier = StatSample { uptime_ns: 1_000_000_000, ..StatSample::default() };
        (0..6).for_each(|_| recorder.record(Duration::from_millis(2)));
        let read = OperationSample { errors: 4, bytes: 4096, latency: recorder.snapshot() };
        let cache = CacheCounters {
            blocks_read_ram: 5,
            blocks_read_backing: 1,
            blocks_written: 8,
            blocks_destaged: 2,
            ..CacheCounters::default()
        };
        let now = StatSample {
            time_ns: 5_000_000,
            uptime_ns: 3_000_000_000,
            read,
            cache: Some(cache),
            dirty_bytes: 7 * 4096,
            ..StatSample::default()
        };
        let point = Point::between(&earlier, &now);
        assert_eq!((point.time_ms, point.seconds, point.reads, point.errors), (5, 2.0, 3.0, 2.0));
        assert_eq!((point.read_bytes, point.dirty_bytes, point.spared_bytes), (2048.0, 28672.0, 22528.0));
        assert!((0.002..0.002_26).contains(&point.read_p99), "{}", point.read_p99);
    }

    #[test]
    fn joined_intervals_weigh_by_their_length() {
        let one = Point {
            time_ms: 1,
            seconds: 1.0,
            reads: 10.0,
            read_p99: 0.5,
            dirty_bytes: 9.0,
            ..Point::default()
        };
        let other = Point {
            time_ms: 2,
            seconds: 3.0,
            reads: 2.0,
            read_p99: 0.1,
            dirty_bytes: 1.0,
            ..Point::default()
        };
        let joined = Point::joined(&[one, other]).unwrap();
        assert_eq!((joined.time_ms, joined.seconds, joined.reads), (2, 4.0, 4.0));
        assert_eq!((joined.read_p99, joined.dirty_bytes), (0.5, 1.0));
        assert_eq!(Point::joined(&[]), None);
    }
}
