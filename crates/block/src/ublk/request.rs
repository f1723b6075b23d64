//! The translation of a request of the driver: a descriptor in, an operation of the disk or an error out. No I/O.

use rustix::io::Errno;

use super::interface::{Descriptor, operation};
use forebay_volume::disk::{DiskError, Stability};

/// The unit of the driver's offsets and lengths in bytes, whatever the block size of the device is.
pub(super) const SECTOR: u64 = 512;

/// A request as the disk carries it out. Offsets and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, stability: Stability },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64, keep: bool, stability: Stability },
}

impl Operation {
    /// Returns the operation of a request, whose data has a buffer of `buffer` bytes.
    pub(super) fn of(request: &Descriptor, buffer: usize) -> Result<Self, Errno> {
        let has = |flag| request.operation & flag != 0;
        let len = u64::from(request.sectors) * SECTOR;
        let data = || usize::try_from(len).ok().filter(|len| *len <= buffer).ok_or(Errno::INVAL);
        // The client goes on after a crash of the server, so an answered change must survive it.
        let stability = Stability::of_write(has(operation::FUA));
        let kind = request.operation & operation::MASK;
        if kind == operation::FLUSH {
            // A flush has no place: its first sector is the largest number there is.
            return Ok(Operation::Flush);
        }
        let offset = request.start_sector.checked_mul(SECTOR).ok_or(Errno::INVAL)?;
        Ok(match kind {
            operation::READ => Operation::Read { offset, len: data()? },
            operation::WRITE => Operation::Write { offset, len: data()?, stability },
            operation::DISCARD => Operation::Discard { offset, len },
            operation::WRITE_ZEROES => {
                Operation::WriteZeroes { offset, len, keep: has(operation::NO_UNMAP), stability }
            }
            _ => return Err(Errno::OPNOTSUPP),
        })
    }

    /// Returns the result of the operation in the driver's form after it was carried out: the bytes of the data.
    pub(super) fn done(self) -> i32 {
        match self {
            // A buffer has fewer than 2 GiB.
            Operation::Read { len, .. } | Operation::Write { len, .. } => len as i32,
            Operation::Flush | Operation::Discard { .. } | Operation::WriteZeroes { .. } => 0,
        }
    }
}

/// Returns the error in the driver's form for an error of the disk; `None` if the request must stay unanswered, because
/// the next server will carry it out.
pub(super) fn failed(error: DiskError) -> Option<i32> {
    let errno = match error {
        DiskError::Io => Errno::IO,
        DiskError::NoSpace => Errno::NOSPC,
        DiskError::Invalid => Errno::INVAL,
        DiskError::ReadOnly => Errno::PERM,
        DiskError::Stopping => return None,
    };
    Some(refused(errno))
}

/// Returns an error in the driver's form.
pub(super) fn refused(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: usize = 64 << 10;

    fn of(operation: u32, start_sector: u64, sectors: u32) -> Result<Operation, Errno> {
        Operation::of(&Descriptor { operation, sectors, start_sector, address: 0 }, BUFFER)
    }

    #[test]
    fn requests_have_bytes_and_an_answered_change_survives_the_server() {
        use Stability::{Durable, Logged};
        use operation::{DISCARD, FLUSH, FUA, NO_UNMAP, READ, WRITE, WRITE_ZEROES};
        assert_eq!(of(READ, 8, 3), Ok(Operation::Read { offset: 4096, len: 1536 }));
        assert_eq!(of(WRITE, 0, 8), Ok(Operation::Write { offset: 0, len: 4096, stability: Logged }));
        assert_eq!(of(WRITE | FUA, 1, 1), Ok(Operation::Write { offset: 512, len: 512, stability: Durable }));
        // A flag that this door does not know, such as that of metadata, changes nothing.
        assert_eq!(of(FLUSH | 1 << 11, u64::MAX, 0), Ok(Operation::Flush));
        assert_eq!(of(DISCARD, 1 << 32, 1 << 21), Ok(Operation::Discard { offset: 1 << 41, len: 1 << 30 }));
        let zeroes = |keep, stability| Operation::WriteZeroes { offset: 0, len: 4096, keep, stability };
        assert_eq!(of(WRITE_ZEROES, 0, 8), Ok(zeroes(false, Logged)));
        assert_eq!(of(WRITE_ZEROES | NO_UNMAP | FUA, 0, 8), Ok(zeroes(true, Durable)));
    }

    #[test]
    fn a_request_that_cannot_be_is_refused() {
        assert_eq!(of(4, 0, 8), Err(Errno::OPNOTSUPP));
        assert_eq!(of(0xff, 0, 8), Err(Errno::OPNOTSUPP));
        let longest = (BUFFER as u64 / SECTOR) as u32;
        assert!(of(operation::READ, 0, longest).is_ok());
        assert_eq!(of(operation::READ, 0, longest + 1), Err(Errno::INVAL));
        assert_eq!(of(operation::WRITE, 0, u32::MAX), Err(Errno::INVAL));
        assert_eq!(of(operation::READ, u64::MAX, 1), Err(Errno::INVAL));
    }

    #[test]
    fn results_are_bytes_or_errors_and_a_stop_is_no_result() {
        assert_eq!(of(operation::READ, 0, 3).unwrap().done(), 1536);
        assert_eq!(of(operation::DISCARD, 0, 3).unwrap().done(), 0);
        assert_eq!((failed(DiskError::Io), failed(DiskError::NoSpace)), (Some(-5), Some(-28)));
        assert_eq!((failed(DiskError::ReadOnly), failed(DiskError::Stopping)), (Some(-1), None));
    }
}
