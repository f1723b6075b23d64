//! Compares the directory at an export's path with the recorded identity. Nothing is written before the decision.
//!
//! | row | file system | directory | count of starts | then |
//! |---|---|---|---|---|
//! | I1 | nothing is recorded of the export | | | record the present one |
//! | I2 | recorded, on any mount point | recorded, by any path | none is recorded | serve |
//! | I3 | recorded | recorded | recorded, or the next of this pool (1) | serve |
//! | I4 | another type | | | refuse: nothing is mounted, or another file system is |
//! | I5 | another UUID | | | refuse |
//! | I6 | another subvolume of the recorded btrfs | | | refuse |
//! | I7 | recorded | another | | refuse |
//! | I8 | recorded | recorded | lower, or missing | refuse: an older copy, a snapshot |
//! | I9 | recorded | recorded | recorded, of another pool | refuse: two copies, each with a pool |
//! | I10 | recorded | recorded | higher | refuse if the pool holds changes (2) |
//!
//! (1) A crash may come between the two writes of the count. (2) The directory was served without those changes.
//!
//! The rows stand for these cases:
//!
//! - Unmounted: I4 or I5. A copy of another UUID: I5.
//! - A copy of the recorded UUID: I8 as soon as the original was served once more; until then it is the original.
//! - A bind mount, another mount point, another device node, a directory that was moved: I2 and I3.
//! - A subvolume that is not mounted: I6, or I7 if its parent is an ordinary directory.
//! - An adopted file system counts on beyond the record, so the file system that it replaced is I8.

use crate::identity::export_identity::ExportIdentity;
use crate::identity::record::Recorded;
use crate::identity::stamp::Stamp;

/// The difference between the directory that is there and the recorded one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Rows I4 to I6.
    FileSystem,
    /// Row I7.
    Directory,
    /// Row I8.
    Older,
    /// Row I9.
    Diverged,
    /// Row I10: counts only if the pool holds changes.
    Newer,
}

/// Compares by the table above. `stamp` is the count in the directory, `pool` the low 64 bits of the UUID of the pool
/// that has `recorded`. `None`: it is the recorded one.
pub fn compare(
    recorded: &Recorded,
    here: &ExportIdentity,
    stamp: Option<Stamp>,
    pool: u64,
) -> Option<Difference> {
    if !recorded.identity.is_filesystem_of(here) {
        return Some(Difference::FileSystem);
    }
    if !recorded.identity.is(here) {
        return Some(Difference::Directory);
    }
    let start = recorded.start;
    match stamp {
        _ if start == 0 => None,
        None => Some(Difference::Older),
        Some(stamp) if stamp.start < start => Some(Difference::Older),
        Some(stamp) if stamp.start == start && stamp.pool != pool => Some(Difference::Diverged),
        Some(stamp) if stamp.start > start && (stamp.start, stamp.pool) != (start + 1, pool) => {
            Some(Difference::Newer)
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Difference::{Directory, Diverged, FileSystem, Newer, Older};

    const POOL: u64 = 7;

    fn identity() -> ExportIdentity {
        ExportIdentity { magic: 0xef53, uuid: [1; 16], part: 256, root: 5, ..ExportIdentity::default() }
    }

    /// Compares with a record of start 10. `change` turns the recorded directory into the one that is there.
    fn against(change: impl FnOnce(&mut ExportIdentity), stamp: Option<(u64, u64)>) -> Option<Difference> {
        let recorded = Recorded { export: 1, number: 1, start: 10, salt: 0, identity: identity() };
        let mut here = identity();
        change(&mut here);
        compare(&recorded, &here, stamp.map(|(start, pool)| Stamp { start, pool }), POOL)
    }

    #[test]
    fn i2_without_a_count_the_directory_is_enough() {
        let recorded = Recorded { export: 1, number: 1, start: 0, salt: 0, identity: identity() };
        let other_pool = Stamp { start: 99, pool: 8 };
        for stamp in [None, Some(other_pool)] {
            assert_eq!(compare(&recorded, &identity(), stamp, POOL), None);
        }
    }

    #[test]
    fn i3_the_same_or_the_next_start_wherever_it_is_mounted() {
        let moved = |here: &mut ExportIdentity| {
            here.source = "/dev/sdz".into();
            here.mounted_at = "/elsewhere".into();
            here.mount_root = true;
        };
        assert_eq!(against(moved, Some((10, POOL))), None);
        assert_eq!(against(|_| {}, Some((11, POOL))), None, "a cut between file system and pool");
    }

    #[test]
    fn i4_another_type() {
        assert_eq!(against(|here| here.magic = 0x5846_5342, Some((10, POOL))), Some(FileSystem));
    }

    #[test]
    fn i5_another_uuid() {
        assert_eq!(against(|here| here.uuid = [2; 16], Some((10, POOL))), Some(FileSystem));
    }

    #[test]
    fn i6_another_subvolume() {
        assert_eq!(against(|here| here.part = 5, Some((10, POOL))), Some(FileSystem));
    }

    #[test]
    fn i7_another_directory() {
        assert_eq!(against(|here| here.root = 6, Some((10, POOL))), Some(Directory));
    }

    #[test]
    fn i8_an_older_copy() {
        assert_eq!(against(|_| {}, Some((9, POOL))), Some(Older));
        assert_eq!(against(|_| {}, None), Some(Older));
    }

    #[test]
    fn i9_two_copies_that_went_on() {
        assert_eq!(against(|_| {}, Some((10, 8))), Some(Diverged));
    }

    #[test]
    fn i10_served_with_another_pool_since() {
        assert_eq!(against(|_| {}, Some((11, 8))), Some(Newer));
        assert_eq!(against(|_| {}, Some((12, POOL))), Some(Newer), "the pool is a copy");
    }
}
