//! The counters of one client, export, user or file.

use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::operation::Moved;

/// The number of classes of request sizes.
pub const SIZES: usize = 12;

/// The largest size of the first class, in bytes. Each class reaches to twice the size of the class before.
const SMALLEST: u64 = 512;

/// Returns the largest request of each class, in bytes: 512 B to 1 MiB. Larger requests are in the last class.
pub fn size_bounds() -> [u64; SIZES] {
    std::array::from_fn(|class| SMALLEST << class)
}

/// Counters of operations. All but the sizes of requests add up over clients, exports, users and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Operations by [`Kind`]. In JSON: an object of those kinds that occurred, by their names.
    #[serde(with = "by_name")]
    pub operations: [u64; Kind::COUNT],
    /// Operations that failed. They count in `operations` as well, and nowhere else.
    pub errors: u64,
    /// Bytes that READ returned.
    pub bytes_read: u64,
    /// Bytes that WRITE took.
    pub bytes_written: u64,
    /// READs by size, in the classes of [`size_bounds`].
    pub read_sizes: [u64; SIZES],
    /// WRITEs by size, in the classes of [`size_bounds`].
    pub write_sizes: [u64; SIZES],
    /// READs near the end of the last READ of their file by their client, or at offset 0 if none is known.
    pub sequential_reads: u64,
    /// WRITEs near the end of the last WRITE of their file by their client, or at offset 0 if none is known.
    pub sequential_writes: u64,
    /// WRITEs with FILE_SYNC or DATA_SYNC. The others are UNSTABLE.
    pub stable_writes: u64,
}

impl Counters {
    /// Returns the number of operations of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.operations[kind as usize]
    }

    /// Returns the number of operations.
    pub fn total(&self) -> u64 {
        self.operations.iter().sum()
    }

    /// Returns the number of READs and WRITEs that succeeded, which have a size.
    pub fn sized(&self) -> (u64, u64) {
        (self.read_sizes.iter().sum(), self.write_sizes.iter().sum())
    }

    /// Returns true if nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// Adds other counters.
    pub fn add(&mut self, other: &Counters) {
        self.combine(other, u64::saturating_add);
    }

    /// Returns what was counted since an earlier state of these counters. Counters that are smaller than before were
    /// reset, and count from 0.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        if self.total() < earlier.total() {
            return self.clone();
        }
        let mut since = self.clone();
        since.combine(earlier, u64::saturating_sub);
        since
    }

    /// Counts one operation `weight` times.
    pub(crate) fn count(&mut self, kind: Kind, failed: bool, moved: Option<(Moved, bool)>, weight: u64) {
        self.operations[kind as usize] += weight;
        if failed {
            self.errors += weight;
            return;
        }
        let Some((Moved { len, stable, .. }, sequential)) = moved else { return };
        let (bytes, sizes, in_sequence) = match kind {
            Kind::Read => (&mut self.bytes_read, &mut self.read_sizes, &mut self.sequential_reads),
            Kind::Write => (&mut self.bytes_written, &mut self.write_sizes, &mut self.sequential_writes),
            _ => return,
        };
        *bytes += u64::from(len) * weight;
        sizes[class(len)] += weight;
        *in_sequence += u64::from(sequential) * weight;
        if kind == Kind::Write && stable {
            self.stable_writes += weight;
        }
    }

    /// Combines each counter with the one of `other`.
    fn combine(&mut self, other: &Counters, with: fn(u64, u64) -> u64) {
        let arrays = [
            (&mut self.operations[..], &other.operations[..]),
            (&mut self.read_sizes, &other.read_sizes),
            (&mut self.write_sizes, &other.write_sizes),
        ];
        for (own, other) in arrays {
            own.iter_mut().zip(other).for_each(|(own, other)| *own = with(*own, *other));
        }
        for (own, other) in [
            (&mut self.errors, other.errors),
            (&mut self.bytes_read, other.bytes_read),
            (&mut self.bytes_written, other.bytes_written),
            (&mut self.sequential_reads, other.sequential_reads),
            (&mut self.sequential_writes, other.sequential_writes),
            (&mut self.stable_writes, other.stable_writes),
        ] {
            *own = with(*own, other);
        }
    }
}

/// Returns the class of a request's size.
fn class(len: u32) -> usize {
    let bits = u32::BITS - len.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(SMALLEST.ilog2()) as usize).min(SIZES - 1)
}

/// Operations by kind in JSON: an object of those that occurred. A kind that a newer server knows counts as `other`.
mod by_name {
    use std::collections::BTreeMap;

    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Kind;

    /// Writes the counts above 0 under the names of their operations.
    pub(super) fn serialize<S: Serializer>(
        operations: &[u64; Kind::COUNT],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for kind in Kind::ALL {
            let count = operations[kind as usize];
            if count > 0 {
                map.serialize_entry(kind.name(), &count)?;
            }
        }
        map.end()
    }

    /// Reads counts by name. Operations of a later version are counted together.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u64; Kind::COUNT], D::Error> {
        let named = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut operations = [0; Kind::COUNT];
        for (name, count) in named {
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Kind::Other);
            operations[kind as usize] += count;
        }
        Ok(operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(len: u32, stable: bool) -> Option<(Moved, bool)> {
        Some((Moved { offset: 0, len, stable }, true))
    }

    #[test]
    fn a_size_is_in_the_first_class_that_reaches_it() {
        for (class_number, bound) in size_bounds().into_iter().enumerate() {
            assert_eq!(class(bound as u32), class_number);
            assert_eq!(class(bound as u32 + 1), (class_number + 1).min(SIZES - 1));
        }
        assert_eq!((class(0), class(1), class(u32::MAX)), (0, 0, SIZES - 1));
    }

    #[test]
    fn counters_survive_json_and_unknown_kinds_are_other() {
        let mut counters = Counters::default();
        counters.count(Kind::Write, false, moved(4096, true), 3);
        counters.count(Kind::Lookup, true, None, 1);
        let json = serde_json::to_string(&counters).unwrap();
        assert!(json.contains(r#""operations":{"write":3,"lookup":1}"#), "{json}");
        assert_eq!(serde_json::from_str::<Counters>(&json).unwrap(), counters);
        let newer = json.replace("lookup", "teleport");
        assert_eq!(serde_json::from_str::<Counters>(&newer).unwrap().of(Kind::Other), 1);
    }

    #[test]
    fn a_difference_and_a_sum_undo_each_other() {
        let mut before = Counters::default();
        before.count(Kind::Read, false, moved(1000, false), 2);
        let mut after = before.clone();
        after.count(Kind::Write, false, moved(1 << 20, true), 1);
        after.count(Kind::Write, true, moved(9, true), 1);
        let between = after.since(&before);
        assert_eq!((between.of(Kind::Write), between.errors, between.stable_writes), (2, 1, 1));
        assert_eq!((between.bytes_written, between.bytes_read), (1 << 20, 0));
        assert_eq!(between.sized(), (0, 1));
        let mut sum = before.clone();
        sum.add(&between);
        assert_eq!(sum, after);
        assert_eq!(before.since(&after), before, "counters that fall were reset");
    }
}
