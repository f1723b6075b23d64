//! The location of a file's data on its block device (ioctl FS_IOC_FIEMAP, Documentation/filesystems/fiemap.rst).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B;
const FIEMAP_FLAG_SYNC: u32 = 1;
/// Most extents returned by one call.
const EXTENTS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Map>() == 32 + 56 * EXTENTS);

/// Returns the ranges of the block device that hold the file's data (start and length in bytes). The data is written
/// out first.
pub(crate) fn ranges(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    let file = File::open(path)?;
    let (mut ranges, mut start) = (Vec::new(), 0);
    loop {
        let mut map = Map {
            start,
            length: u64::MAX - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped: 0,
            count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        };
        // SAFETY: the kernel writes at most `count` extents behind the header, and `map` has room for that many.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &mut map) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = map.extents.get(..map.mapped as usize).unwrap_or_default();
        ranges.extend(found.iter().map(|e| (e.physical, e.length)));
        match found.last() {
            Some(last) if found.len() == EXTENTS => start = last.logical + last.length,
            _ => return Ok(ranges),
        }
    }
}
