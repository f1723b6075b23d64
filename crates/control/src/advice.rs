//! Advice from measured figures: what another size of the cache or of memory, another mode, or larger frames would
//! bring.

mod load;

use forebay_config::{Mode, format_size};
use forebay_mrc::{Curve, MINIMUM, Point};
use serde::{Deserialize, Serialize};

use crate::sample::CacheCounters;
pub use load::{ExportLoad, Link};

/// Ratios that differ by less than this are treated as equal: about the error of the curve.
const EQUAL: f64 = 0.02;
/// The least gain in the ratio of reads that is worth naming.
const WORTH: f64 = 0.05;
/// The least part of writes that must become fewer for a larger cache to be worth it.
const WORTH_WRITES: f64 = 0.2;

/// The miss-ratio curve, and what follows from it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The curve.
    pub curve: Curve,
    /// The mode in force.
    pub mode: Option<Mode>,
    /// Blocks written for each block destaged since the start; `None` if nothing was destaged.
    pub coalescing: Option<f64>,
    /// The single change that would bring most, as a sentence.
    pub best: String,
    /// Further facts, a sentence each.
    pub facts: Vec<String>,
}

/// Measured figures that the advice rests on, besides the curve.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// The mode in force.
    pub mode: Mode,
    /// The counters of the cache.
    pub counters: &'a CacheCounters,
    /// Bytes of all WRITEs since the start.
    pub bytes_written: u64,
    /// Bytes of all READs since the start.
    pub bytes_read: u64,
    /// The mean time of a WRITE, in nanoseconds; 0 if there was none.
    pub write_ns: u64,
    /// The time since the start, in seconds.
    pub seconds: f64,
    /// The exports that clients have used.
    pub exports: &'a [ExportLoad],
    /// The network interfaces.
    pub links: &'a [Link],
}

impl Advice {
    /// Returns the advice that follows from a curve and from measured figures.
    pub fn new(curve: Curve, measured: Measured<'_>) -> Self {
        let CacheCounters { blocks_written, blocks_destaged, .. } = *measured.counters;
        let coalescing = (blocks_destaged > 0 && blocks_written >= blocks_destaged)
            .then(|| blocks_written as f64 / blocks_destaged as f64);
        let mut advice = Advice { curve, mode: Some(measured.mode), coalescing, ..Advice::default() };
        if !advice.curve.enough {
            advice.best = format!(
                "Not enough requests seen yet: {} of {MINIMUM} samples. Ask again when the applications have run for a while.",
                advice.curve.sampled
            );
            return advice;
        }
        let gains = [advice.larger_cache(), advice.larger_memory(), written_through(&measured)];
        let loads = [load::other_modes(&measured), load::excluded(&measured), load::larger_frames(&measured)];
        let facts = [advice.coalesced(), advice.unfilled()];
        advice.facts.extend(facts.into_iter().flatten());
        let mut gains: Vec<Gain> = gains.into_iter().flatten().chain(loads.into_iter().flatten()).collect();
        gains.sort_by(|a, b| b.worth.total_cmp(&a.worth));
        let mut sentences: Vec<String> = gains.iter().map(|gain| gain.sentence.clone()).collect();
        advice.best = match gains.first() {
            Some(best) if best.worth > 0.0 => sentences.remove(0),
            _ => "No change of the cache's size or of memory would bring much.".to_owned(),
        };
        advice.facts.splice(0..0, sentences);
        advice
    }

    /// Returns what larger cache devices would bring.
    fn larger_cache(&self) -> Option<Gain> {
        let present = self.curve.present()?;
        let now = present.cache_bytes;
        let larger = || self.curve.points.iter().filter(move |point| point.cache_bytes > now);
        let most = larger().map(|point| point.hit_ratio).fold(present.hit_ratio, f64::max);
        let reads = most - present.hit_ratio;
        let spared = larger().map(|point| spared(present, point)).fold(0.0, f64::max);
        let writes = if self.curve.blocks_written > self.curve.blocks_read { spared } else { 0.0 };
        if reads < EQUAL && writes < WORTH_WRITES {
            return Some(self.smaller_cache(present));
        }
        // The smallest size that brings nearly all.
        let brings = |point: &&Point| {
            most - point.hit_ratio < EQUAL && (writes < WORTH_WRITES || spared_within(present, point, spared))
        };
        let enough = larger().find(brings).or_else(|| larger().next_back())?;
        let mut brought = Vec::new();
        if reads >= EQUAL {
            brought.push(format!(
                "{} instead of {} of block reads come from the cache",
                percent(enough.hit_ratio),
                percent(present.hit_ratio)
            ));
        }
        if writes >= WORTH_WRITES {
            let (more, now) = (enough.coalescing, present.coalescing);
            brought.push(format!("dirty data coalesces {more:.1} times instead of {now:.1}"));
        }
        let more = format_size(enough.cache_bytes - present.cache_bytes);
        let mut sentence = format!("With {more} more on the cache devices, {}.", brought.join(", and "));
        if larger().any(|point| point.cache_bytes > enough.cache_bytes) {
            sentence += &format!(" Beyond {} nothing changes.", format_size(enough.cache_bytes));
        }
        let worth = if reads >= WORTH { reads } else { 0.0 };
        Some(Gain { worth: worth.max(if writes >= WORTH_WRITES { writes / 2.0 } else { 0.0 }), sentence })
    }

    /// Says that larger cache devices bring nothing, and how small they could be.
    fn smaller_cache(&self, present: &Point) -> Gain {
        let serves = |point: &&Point| {
            present.hit_ratio - point.hit_ratio < EQUAL && -spared(present, point) < WORTH_WRITES
        };
        let least = self.curve.points.iter().find(serves).unwrap_or(present);
        let mut sentence = format!(
            "Larger cache devices change nothing: {} of block reads come from the cache at any larger size.",
            percent(present.hit_ratio)
        );
        if least.cache_bytes < present.cache_bytes {
            sentence += &format!(" {} would do as well.", format_size(least.cache_bytes));
        }
        Gain { worth: 0.0, sentence }
    }

    /// Returns what more memory would bring: reads that do not go to a device at all.
    fn larger_memory(&self) -> Option<Gain> {
        let (present, larger) = self.curve.memory.split_first()?;
        let best = larger.iter().max_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio))?;
        let gain = best.hit_ratio - present.hit_ratio;
        if gain < EQUAL {
            let sentence = format!(
                "More memory changes nothing: {} of block reads come from memory.",
                percent(present.hit_ratio)
            );
            return Some(Gain { worth: 0.0, sentence });
        }
        let enough = larger.iter().find(|point| best.hit_ratio - point.hit_ratio < EQUAL)?;
        let sentence = format!(
            "With {} more memory (`ram`), {} instead of {} of block reads come from memory.",
            format_size(enough.memory_bytes - present.memory_bytes),
            percent(enough.hit_ratio),
            percent(present.hit_ratio)
        );
        // A read from an SSD is far nearer to one from memory than to one from a disk.
        let worth = if gain >= WORTH { gain / 4.0 } else { 0.0 };
        Some(Gain { worth, sentence })
    }

    /// Returns the sentence on how often a block is overwritten before it is destaged. `None` before that is
    /// measured.
    fn coalesced(&self) -> Option<String> {
        self.coalescing.map(|times| {
            format!(
                "Dirty data coalesces {times:.1} times: so many blocks are written for each one destaged."
            )
        })
    }

    /// Returns a warning if simulated caches from some size on are not full yet. `None` if all of them have been
    /// filled.
    fn unfilled(&self) -> Option<String> {
        let least = self.curve.points.iter().find(|point| !point.filled)?;
        Some(format!(
            "Caches from {} on were not filled yet since the estimate began; their ratios may still rise.",
            format_size(least.cache_bytes)
        ))
    }
}

/// The gain from a change: its worth, to compare changes, and a sentence.
struct Gain {
    worth: f64,
    sentence: String,
}

/// Returns the part of destaged blocks that a cache of another size would spare.
fn spared(present: &Point, other: &Point) -> f64 {
    if other.coalescing <= 0.0 { 0.0 } else { 1.0 - present.coalescing / other.coalescing }
}

fn spared_within(present: &Point, other: &Point, most: f64) -> bool {
    most - spared(present, other) < WORTH_WRITES / 4.0
}

/// Says what a mode costs in which each write waits for the backing store, if writes dominate.
fn written_through(measured: &Measured<'_>) -> Option<Gain> {
    let Measured { mode, bytes_written, bytes_read, write_ns, .. } = *measured;
    let all = (bytes_written + bytes_read).max(1) as f64;
    let part = bytes_written as f64 / all;
    if mode == Mode::WriteBack || part < 0.5 || write_ns == 0 {
        return None;
    }
    let sentence = format!(
        "{} of the bytes are written, and each WRITE waits for the backing store: {:.1} ms on average in mode {mode}. In mode \
         write-back it waits for the SSDs only.",
        percent(part),
        write_ns as f64 / 1e6
    );
    Some(Gain { worth: part, sentence })
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_mrc::MemoryPoint;

    const GIB: u64 = 1 << 30;

    /// Returns a curve of a cache of 200 GiB.
    fn curve(points: &[(u64, f64, f64)], memory: [f64; 3]) -> Curve {
        let points = points.iter().map(|(size, hit_ratio, coalescing)| Point {
            cache_bytes: size * GIB,
            hit_ratio: *hit_ratio,
            coalescing: *coalescing,
            filled: true,
        });
        let memory = [1, 2, 4].into_iter().zip(memory);
        Curve {
            enough: true,
            sampled: MINIMUM,
            blocks_read: 1000,
            cache_bytes: 200 * GIB,
            memory_bytes: GIB,
            points: points.collect(),
            memory: memory
                .map(|(size, hit_ratio)| MemoryPoint { memory_bytes: size * GIB, hit_ratio })
                .collect(),
            ..Curve::default()
        }
    }

    fn advice(curve: Curve, mode: Mode) -> Advice {
        let counters =
            CacheCounters { blocks_written: 420, blocks_destaged: 100, ..CacheCounters::default() };
        let measured = Measured {
            mode,
            counters: &counters,
            bytes_written: 900,
            bytes_read: 100,
            write_ns: 12_300_000,
            seconds: 1.0,
            exports: &[],
            links: &[],
        };
        Advice::new(curve, measured)
    }

    #[test]
    fn a_larger_cache_is_advised_up_to_the_size_that_brings_something() {
        let points =
            [(100, 0.4, 1.0), (200, 0.61, 1.0), (300, 0.83, 1.0), (400, 0.835, 1.0), (800, 0.84, 1.0)];
        let advice = advice(curve(&points, [0.2, 0.205, 0.21]), Mode::WriteBack);
        assert_eq!(
            advice.best,
            "With 100 GiB more on the cache devices, 83 % instead of 61 % of block reads come from the cache. Beyond 300 GiB \
             nothing changes."
        );
        let facts = [
            "More memory changes nothing: 20 % of block reads come from memory.",
            "Dirty data coalesces 4.2 times: so many blocks are written for each one destaged.",
        ];
        assert_eq!(advice.facts, facts);
    }

    #[test]
    fn a_cache_that_is_large_enough_is_not_enlarged() {
        let points = [(50, 0.5, 1.0), (100, 0.895, 1.0), (200, 0.9, 1.0), (400, 0.905, 1.0)];
        let advice = advice(curve(&points, [0.2, 0.3, 0.6]), Mode::WriteBack);
        assert_eq!(
            advice.best,
            "With 3 GiB more memory (`ram`), 60 % instead of 20 % of block reads come from memory."
        );
        assert_eq!(
            advice.facts[0],
            "Larger cache devices change nothing: 90 % of block reads come from the cache at any larger size. 100 GiB would do as \
             well."
        );
    }

    #[test]
    fn a_cache_that_fits_is_left_as_it_is() {
        let advice =
            advice(curve(&[(100, 0.5, 1.0), (200, 0.9, 1.0), (400, 0.9, 1.0)], [0.2; 3]), Mode::WriteBack);
        assert_eq!(advice.best, "No change of the cache's size or of memory would bring much.");
        assert_eq!(advice.facts.len(), 3, "{:?}", advice.facts);
    }

    #[test]
    fn writes_count_where_they_dominate() {
        let points = [(100, 0.6, 1.5), (200, 0.61, 2.0), (400, 0.61, 8.0), (800, 0.61, 8.1)];
        let mut many_writes = curve(&points, [0.2; 3]);
        many_writes.blocks_written = 5000;
        let larger = "With 200 GiB more on the cache devices, dirty data coalesces 8.0 times instead of 2.0. Beyond 400 GiB \
                      nothing changes.";
        assert_eq!(advice(many_writes.clone(), Mode::WriteBack).best, larger);
        let through = advice(many_writes, Mode::WriteThrough);
        assert!(through.best.starts_with("90 % of the bytes are written"), "{}", through.best);
        assert!(through.best.contains("12.3 ms on average in mode write-through"), "{}", through.best);
        assert_eq!(through.facts[0], larger);
    }

    #[test]
    fn nothing_is_advised_from_too_few_requests() {
        let young = Curve { enough: false, sampled: 17, ..curve(&[(200, 0.1, 1.0)], [0.0; 3]) };
        let advice = advice(young, Mode::WriteThrough);
        assert!(advice.best.starts_with("Not enough requests seen yet: 17 of 5000"), "{}", advice.best);
        assert!(advice.facts.is_empty());
    }

    #[test]
    fn sizes_that_were_not_filled_are_named() {
        let mut young = curve(&[(100, 0.4, 1.0), (200, 0.4, 1.0)], [0.2; 3]);
        young.points[1].filled = false;
        let facts = advice(young, Mode::WriteBack).facts;
        assert!(facts.last().unwrap().starts_with("Caches from 200 GiB on were not filled yet"), "{facts:?}");
    }
}
