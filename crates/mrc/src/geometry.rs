//! The sizes of a pool, and of a pool of another size.

/// The number of simulated sizes of the cache devices.
pub const SIZES: usize = 9;
/// The simulated sizes, as multiples of the present size.
pub(crate) const MULTIPLES: [f64; SIZES] = [0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0];
/// The number of simulated sizes of memory.
pub(crate) const MEMORIES: usize = 3;
/// The simulated sizes of memory, as multiples of the present size. The devices are simulated behind the first.
pub(crate) const MEMORY_MULTIPLES: [f64; MEMORIES] = [1.0, 2.0, 4.0];
/// The size of a block, in bytes.
pub(crate) const BLOCK: u64 = 4096;
/// The limits of a segment's size, in blocks, as the engine's format has them.
const SEGMENT: (u64, u64) = (256, 16384);
/// The number of segments of a device that the engine aims at when it chooses their size.
const SEGMENTS: u64 = 64;

/// The sizes that decide how much a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Geometry {
    /// Cache devices in use.
    pub devices: u64,
    /// Segments of all devices.
    pub segments: u64,
    /// Blocks of a segment, with its header and footer.
    pub slots: u64,
    /// Blocks that memory holds.
    pub memory: u64,
}

/// The room of a pool, in blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Room {
    /// Places for blocks on all devices. A dirty block takes two.
    pub(crate) all: f64,
    /// Places that are filled before eviction begins.
    pub(crate) usable: f64,
    /// Places of all devices' next segments: clean blocks are admitted without need while this much is unused.
    pub(crate) spare: f64,
    /// Blocks that the log holds at its share of the pool.
    pub(crate) share: f64,
    /// The most live blocks that eviction writes again to make room.
    pub(crate) movable: f64,
}

impl Geometry {
    /// Returns the bytes of all devices that hold segments.
    pub fn bytes(&self) -> u64 {
        self.segments * self.slots * BLOCK
    }

    /// Returns the room of a pool with `multiple` times the bytes. The engine chooses the size of segments by the size
    /// of a device, so a small pool has small segments.
    pub(crate) fn room(&self, multiple: f64) -> Room {
        let devices = self.devices.max(1) as f64;
        let device = (self.segments * self.slots) as f64 * multiple / devices;
        let slots = match multiple {
            1.0 => self.slots,
            _ => {
                let wanted = (device as u64 / SEGMENTS).clamp(SEGMENT.0, SEGMENT.1);
                1 << wanted.ilog2()
            }
        } as f64;
        let segments = device / slots;
        // A log of one device is not mirrored, and neither are its blocks dirty.
        let pairs = if devices > 1.0 { devices * segments / 2.0 } else { segments };
        let share = pairs * 0.7;
        let kept = 6.0_f64.max(share / 32.0);
        // Header, footer and the records of a segment.
        let data = slots - 2.0 - slots / 128.0;
        let all = devices * segments * data;
        // The open segments of the log and of clean blocks are half full on average.
        let usable = (devices * (segments - kept) - 2.5) * data;
        Room {
            all,
            usable: usable.max(all / 8.0),
            spare: 2.0 * devices * data,
            share: share * data,
            movable: 128.0 * slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_pool_keeps_a_larger_part_unused() {
        let pool = Geometry { devices: 2, segments: 128, slots: 4096, memory: 0 };
        assert_eq!(pool.bytes(), 2 << 30);
        let (one, four) = (pool.room(1.0), pool.room(4.0));
        assert!(one.usable < 0.9 * one.all && one.usable > 0.85 * one.all, "{one:?}");
        assert!((four.all / one.all - 4.0).abs() < 0.1, "{four:?}");
        let large = Geometry { devices: 2, segments: 12_800, slots: 16384, memory: 0 }.room(1.0);
        assert!(large.usable > 0.97 * large.all, "{large:?}");
        assert!((large.share / large.all - 0.35).abs() < 0.001);
    }
}
