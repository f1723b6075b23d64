//! The curve as its readers get it.

use serde::{Deserialize, Serialize};

/// The number of sampled references below which the curve says nothing.
pub const MINIMUM: u64 = 5000;

/// The ratio of reads from the cache by its size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// True if at least [`MINIMUM`] references were sampled. If false, the ratios may be far off.
    pub enough: bool,
    /// References sampled since the simulation began.
    pub sampled: u64,
    /// Sampled references that were lost since the start because a buffer was full.
    pub lost: u64,
    /// The part of all blocks that is sampled now.
    pub rate: f64,
    /// Blocks read since the start, with those past the cache.
    pub blocks_read: u64,
    /// Blocks written to the log since the start.
    pub blocks_written: u64,
    /// Bytes of the cache devices now.
    pub cache_bytes: u64,
    /// Bytes of memory for cached blocks now.
    pub memory_bytes: u64,
    /// Bytes of memory that the simulation takes.
    pub simulation_bytes: u64,
    /// The simulated sizes of the cache devices, in order, with the present memory.
    pub points: Vec<Point>,
    /// The simulated sizes of memory, in order.
    pub memory: Vec<MemoryPoint>,
    /// The curves of single groups of objects: a served file system or block volume each.
    pub groups: Vec<GroupCurve>,
}

/// A simulated size of the cache devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Bytes of the cache devices.
    pub cache_bytes: u64,
    /// The part of block reads that memory or the devices serve, from 0 to 1.
    pub hit_ratio: f64,
    /// Blocks written for each block destaged; 1 if no write is coalesced.
    pub coalescing: f64,
    /// False while the simulated devices still have unused room. The ratio may rise until then.
    pub filled: bool,
}

/// A simulated size of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryPoint {
    /// Bytes of memory for cached blocks.
    pub memory_bytes: u64,
    /// The part of block reads that memory serves, from 0 to 1.
    pub hit_ratio: f64,
}

/// The curve of a group of objects in the shared cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupCurve {
    /// Number of the group; `u32::MAX` for all groups without a curve of their own.
    pub group: u32,
    /// The name of the group, if the server has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The part of all block reads that belongs to the group, from 0 to 1.
    pub reads: f64,
    /// The part of all block writes that belongs to the group, from 0 to 1.
    pub writes: f64,
    /// For each size of [`Curve::points`], the part of the group's block reads that the cache serves.
    pub hit_ratios: Vec<f64>,
    /// For each size of [`Curve::points`], the group's blocks written for each block destaged.
    pub coalescing: Vec<f64>,
}

impl Curve {
    /// Returns the point of the present size.
    pub fn present(&self) -> Option<&Point> {
        self.points.iter().min_by_key(|point| point.cache_bytes.abs_diff(self.cache_bytes))
    }
}
