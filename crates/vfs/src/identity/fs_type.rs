//! Types of file systems, by the numbers that statfs(2) has for them.

pub(crate) const EXT4: i64 = 0xef53;
pub(crate) const XFS: i64 = 0x5846_5342;

/// Returns the name of a file system type for people.
pub(crate) fn type_name(magic: i64) -> &'static str {
    match magic {
        EXT4 => "ext4",
        XFS => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x6573_5546 => "fuse",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x794c_7630 => "overlayfs",
        0x6969 => "nfs",
        _ => "other",
    }
}

/// Returns true if only this host's kernel changes a file system of this type.
pub(crate) fn is_local(magic: i64) -> bool {
    matches!(type_name(magic), "ext4" | "xfs" | "btrfs" | "tmpfs" | "zfs" | "f2fs")
}
