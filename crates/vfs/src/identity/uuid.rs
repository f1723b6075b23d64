//! The UUID of a file system, read in the way of its type, since the common way is as new as Linux 6.9.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::error::Result;
use crate::identity::fs_type::{EXT4, XFS, type_name};
use crate::sys::check;

/// FS_IOC_GETFSUUID: struct fsuuid2, a length and 16 bytes.
const FS_GETFSUUID: libc::c_ulong = 0x8011_1500;
/// EXT4_IOC_GETFSUUID: struct fsuuid, two words (length, flags) and 16 bytes.
const EXT4_GETFSUUID: libc::c_ulong = 0x8008_662c;
/// XFS_IOC_FSGEOMETRY_V1: 112 bytes, with the UUID at 64.
const XFS_FSGEOMETRY: libc::c_ulong = 0x8070_5864;
/// BTRFS_IOC_FS_INFO: 1024 bytes, with the UUID at 16.
const BTRFS_FS_INFO: libc::c_ulong = 0x8400_941f;
/// BTRFS_IOC_INO_LOOKUP: 4096 bytes; the tree's id, then an inode's, then its name.
const BTRFS_INO_LOOKUP: libc::c_ulong = 0xd000_9412;
/// The root directory of each subvolume. A process that has it open may ask for the subvolume's number.
const BTRFS_FIRST_FREE_OBJECTID: u64 = 256;

/// Returns the file system's UUID, or zeros if it has none.
///
/// # Errors
/// The kernel refuses in a way that does not say that there is no UUID. Nothing may be concluded then.
pub(super) fn uuid(root: impl AsFd, magic: i64) -> Result<[u8; 16]> {
    if let Some(found) = ask::<17>(&root, FS_GETFSUUID, &[])? {
        return Ok(field(&found, 1));
    }
    let own = match magic {
        EXT4 => ask::<24>(&root, EXT4_GETFSUUID, &16u32.to_ne_bytes())?.map(|found| field(&found, 8)),
        XFS => ask::<112>(&root, XFS_FSGEOMETRY, &[])?.map(|found| field(&found, 64)),
        _ if type_name(magic) == "btrfs" => {
            ask::<1024>(&root, BTRFS_FS_INFO, &[])?.map(|found| field(&found, 16))
        }
        _ => None,
    };
    Ok(own.unwrap_or_default())
}

/// Returns the number that tells trees of one UUID apart.
pub(super) fn part(root: impl AsFd, magic: i64) -> Result<u64> {
    match type_name(magic) {
        "btrfs" => {
            let mut asked = [0; 16];
            asked[8..].copy_from_slice(&BTRFS_FIRST_FREE_OBJECTID.to_ne_bytes());
            let found = ask::<4096>(root, BTRFS_INO_LOOKUP, &asked)?;
            Ok(found.map_or(0, |found| u64::from_ne_bytes(field(&found, 0))))
        }
        // Made of the data set's GUID. XFS and other file systems make theirs of device numbers.
        "zfs" => Ok(rustix::fs::fstatvfs(root)?.f_fsid),
        _ => Ok(0),
    }
}

/// Returns the bytes of a field. The caller has checked the length.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

/// Asks with a structure of `N` bytes that begins with `asked`; `None`: the file system does not know the question.
fn ask<const N: usize>(root: impl AsFd, request: libc::c_ulong, asked: &[u8]) -> Result<Option<[u8; N]>> {
    let mut buffer = [0u64; 512];
    assert!(N <= size_of_val(&buffer) && asked.len() <= N);
    let bytes: &mut [u8] = as_bytes(&mut buffer);
    bytes[..asked.len()].copy_from_slice(asked);
    // SAFETY: the buffer is live, aligned for any of the structures, and not smaller than the `N` bytes that the
    // request's number says the kernel fills.
    match check(unsafe { libc::ioctl(root.as_fd().as_raw_fd(), request, bytes.as_mut_ptr()) }.into()) {
        Ok(_) => Ok(Some(field(bytes, 0))),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the memory of the words as bytes.
fn as_bytes(words: &mut [u64; 512]) -> &mut [u8] {
    // SAFETY: any byte is a part of a word, and the slice borrows the words as long as it lives.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}
