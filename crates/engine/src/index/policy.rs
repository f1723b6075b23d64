//! The policy of an object: how the cache treats its blocks. The engine's user sets it, from rules about directories,
//! which the engine does not know.

use std::time::Duration;

use crate::mode::Mode;

/// The rule for keeping clean blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The blocks that are used most stay.
    #[default]
    Normal,
    /// Eviction writes the blocks again, as long as all pinned blocks together stay below a limit.
    Pin,
    /// No clean block stays. Writes go through the log, and leave the cache once the backing store has them.
    Never,
}

/// The way of streams: long sequential reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// A stream goes past the cache where the backing store is as fast.
    #[default]
    Past,
    /// A stream is cached as other requests are.
    Cache,
}

/// The rank of an object's clean blocks when room is needed. At equal use, blocks of a lower priority leave earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// Eviction writes a block again if it was read since it was written.
    #[default]
    Normal,
    /// Eviction drops a block even if it was read, and a block that was used gets no second turn in memory.
    Low,
    /// Eviction also writes a block again that was not read, but once. A block that was used once gets a place. Both
    /// hold within limits.
    High,
}

/// The count that the blocks of an object on the cache devices are in, besides those that all blocks are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None.
    #[default]
    Usual,
    /// The blocks of pinned objects.
    Pinned,
    /// The blocks of objects of high priority that are not pinned.
    High,
}

/// The policy of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The rule for keeping clean blocks.
    pub keep: Keep,
    /// The rank of clean blocks, unless the rule decides.
    pub priority: Priority,
    /// The way of streams.
    pub streams: Streams,
    /// The mode, unless that of the pool uses the cache less.
    pub mode: Mode,
    /// The time in seconds after which dirty data is destaged, at most [`Policy::LONGEST`]. 0: that of the settings.
    pub dirty_seconds: u32,
    /// The number of the share that the object is in, below [`Policy::SHARES`]. 0: none.
    pub share: u16,
}

impl Policy {
    /// The highest `dirty_seconds`.
    pub const LONGEST: u32 = (1 << 20) - 1;
    /// The number of shares, with the number 0 for none.
    pub const SHARES: u16 = 1 << 15;

    const KEEPS: [Keep; 3] = [Keep::Normal, Keep::Pin, Keep::Never];
    const RANKS: [Priority; 3] = [Priority::Normal, Priority::Low, Priority::High];
    const WAYS: [Streams; 2] = [Streams::Past, Streams::Cache];

    /// Returns the policy as a number below 2^42. The default policy is 0.
    pub fn to_bits(self) -> u64 {
        let dirty = u64::from(self.dirty_seconds.min(Self::LONGEST));
        let share = u64::from(self.share % Self::SHARES);
        let priority = (self.priority as u64) << 40;
        self.keep as u64
            | (self.streams as u64) << 2
            | (self.mode as u64) << 3
            | dirty << 5
            | share << 25
            | priority
    }

    /// Returns the policy of a number from [`Policy::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        Policy {
            keep: Self::KEEPS.get((bits & 3) as usize).copied().unwrap_or_default(),
            priority: Self::RANKS.get((bits >> 40 & 3) as usize).copied().unwrap_or_default(),
            streams: Self::WAYS[(bits >> 2 & 1) as usize],
            mode: Mode::ALL[(bits >> 3 & 3) as usize],
            dirty_seconds: (bits >> 5) as u32 & Self::LONGEST,
            share: (bits >> 25) as u16 % Self::SHARES,
        }
    }

    /// Returns the time after which dirty data is destaged; `None` for that of the settings.
    pub fn dirty_time(self) -> Option<Duration> {
        (self.dirty_seconds > 0).then(|| Duration::from_secs(self.dirty_seconds.into()))
    }

    /// Returns the count that the object's blocks are in.
    pub(crate) fn standing(self) -> Standing {
        match (self.keep, self.priority) {
            (Keep::Pin, _) => Standing::Pinned,
            (Keep::Normal, Priority::High) => Standing::High,
            (Keep::Normal | Keep::Never, _) => Standing::Usual,
        }
    }

    /// Returns true if streams are cached. Streams of pinned objects always are.
    pub fn caches_streams(self) -> bool {
        self.keep == Keep::Pin || self.streams == Streams::Cache
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_the_number_that_it_was_made_of() {
        assert_eq!(Policy::default().to_bits(), 0);
        for keep in Policy::KEEPS {
            for (streams, mode) in Policy::WAYS.into_iter().flat_map(|way| Mode::ALL.map(|mode| (way, mode)))
            {
                for (dirty_seconds, share) in
                    [(0, 0), (1, 0), (Policy::LONGEST, 0), (0, Policy::SHARES - 1), (Policy::LONGEST, 1)]
                {
                    for priority in Policy::RANKS {
                        let policy = Policy { keep, priority, streams, mode, dirty_seconds, share };
                        assert!(policy.to_bits() < 1 << 42);
                        assert_eq!(Policy::from_bits(policy.to_bits()), policy);
                    }
                }
            }
        }
    }
}
