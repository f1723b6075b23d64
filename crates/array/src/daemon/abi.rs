//! The part of the FUSE protocol (include/uapi/linux/fuse.h, version 7) that is needed to serve one file.
//!
//! Numbers are in the machine's byte order. Requests come from the kernel, so a short request is a protocol error,
//! not an attack. It returns an error and does not panic.

/// Size of a request's header, in bytes.
pub(super) const IN_HEADER: usize = 40;
/// Size of a reply's header, in bytes.
const OUT_HEADER: usize = 16;
/// Longest read or write that the kernel may send, in bytes.
pub(super) const MAX_TRANSFER: usize = 1 << 20;
/// Node number of the directory that holds the file.
const ROOT: u64 = 1;
/// Node number of the file.
const FILE: u64 = 2;
/// Name of the file.
pub(crate) const FILE_NAME: &str = "disk";
/// Most requests that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 1024;
/// Minor version of the protocol that this code implements.
const MINOR: u32 = 31;

const FUSE_ASYNC_READ: u32 = 1 << 0;
const FUSE_BIG_WRITES: u32 = 1 << 5;
const FUSE_ASYNC_DIO: u32 = 1 << 15;
const FUSE_MAX_PAGES: u32 = 1 << 22;
const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call<'a> {
    Init,
    Lookup {
        name: &'a [u8],
    },
    GetAttr {
        node: u64,
    },
    Open,
    OpenDir,
    ReadDir,
    Read {
        offset: u64,
        length: u64,
    },
    Write {
        offset: u64,
        data: &'a [u8],
    },
    Fsync,
    Discard {
        offset: u64,
        length: u64,
    },
    StatFs,
    /// A request that succeeds without any action.
    Nothing,
    /// A request that takes no reply.
    Silent,
    Unsupported,
}

/// A request, with the number that its reply must carry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) unique: u64,
    pub(super) call: Call<'a>,
}

/// Parses one request. Returns `None` if the request is shorter than its length fields require.
pub(super) fn parse(bytes: &[u8]) -> Option<Request<'_>> {
    let opcode = u32_at(bytes, 4)?;
    let unique = u64_at(bytes, 8)?;
    let node = u64_at(bytes, 16)?;
    let body = bytes.get(IN_HEADER..u32_at(bytes, 0)? as usize)?;
    let call = match opcode {
        1 => Call::Lookup { name: body.split(|b| *b == 0).next()? },
        2 | 36 | 42 => Call::Silent,
        3 | 4 => Call::GetAttr { node },
        14 => Call::Open,
        15 => Call::Read { offset: u64_at(body, 8)?, length: u32_at(body, 16)?.into() },
        16 => {
            let length = u32_at(body, 16)? as usize;
            Call::Write { offset: u64_at(body, 8)?, data: body.get(40..40 + length)? }
        }
        17 => Call::StatFs,
        // RELEASE, RELEASEDIR, DESTROY
        18 | 29 | 38 => Call::Nothing,
        20 => Call::Fsync,
        26 => Call::Init,
        27 => Call::OpenDir,
        28 => Call::ReadDir,
        43 => Call::Discard { offset: u64_at(body, 8)?, length: u64_at(body, 16)? },
        _ => Call::Unsupported,
    };
    Some(Request { unique, call })
}

/// Returns the header of a reply with `length` bytes of body. For an error, `error` is positive and there is no body.
pub(super) fn header(unique: u64, error: i32, length: usize) -> [u8; OUT_HEADER] {
    let mut out = [0; OUT_HEADER];
    out[..4].copy_from_slice(&((OUT_HEADER + length) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&(-error).to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// Returns the answer to INIT, with the abilities of this file system.
pub(super) fn init() -> Vec<u8> {
    let flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_ASYNC_DIO | FUSE_MAX_PAGES;
    let mut out = Body::default();
    out.u32(7).u32(MINOR).u32(MAX_TRANSFER as u32).u32(flags);
    out.u16(MAX_BACKGROUND).u16(MAX_BACKGROUND);
    out.u32(MAX_TRANSFER as u32).u32(1).u16((MAX_TRANSFER / 4096) as u16).u16(0);
    // Flags2 and the reserved words.
    (0..8).for_each(|_| _ = out.u32(0));
    out.0
}

/// Returns the answer to LOOKUP of the file.
pub(super) fn entry(size: u64) -> Vec<u8> {
    let mut out = Body::default();
    // Node, generation, and the validity of name and attributes. Both are valid forever, because only the daemon
    // changes them.
    out.u64(FILE).u64(0).u64(u32::MAX.into()).u64(u32::MAX.into()).u32(0).u32(0);
    attributes(&mut out, FILE, size);
    out.0
}

/// Returns the answer to GETATTR.
pub(super) fn attr(node: u64, size: u64) -> Vec<u8> {
    let mut out = Body::default();
    out.u64(u32::MAX.into()).u32(0).u32(0);
    attributes(&mut out, node, size);
    out.0
}

/// Returns the answer to OPEN of the file: no page cache, parallel writes.
pub(super) fn open() -> Vec<u8> {
    let mut out = Body::default();
    out.u64(0).u32(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES).u32(0);
    out.0
}

/// Returns the answer to OPENDIR.
pub(super) fn open_dir() -> Vec<u8> {
    vec![0; 16]
}

/// Returns the answer to WRITE of `length` bytes.
pub(super) fn written(length: u64) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    out
}

/// Returns the answer to STATFS. Its block size becomes the granularity of discards.
pub(super) fn stat_fs(size: u64) -> Vec<u8> {
    let mut out = Body::default();
    out.u64(size / 4096).u64(0).u64(0).u64(1).u64(0);
    out.u32(4096).u32(255).u32(4096).u32(0);
    (0..6).for_each(|_| _ = out.u32(0));
    out.0
}

/// Appends `struct fuse_attr` of a node. Every node but the root directory is the one file, of `size` bytes.
fn attributes(out: &mut Body, node: u64, size: u64) {
    let (mode, size) = if node == ROOT { (libc::S_IFDIR | 0o700, 0) } else { (libc::S_IFREG | 0o600, size) };
    out.u64(node).u64(size).u64(size / 512);
    // The times, in seconds and nanoseconds, are all 0, which is 1970.
    out.u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
    out.u32(mode).u32(1).u32(0).u32(0).u32(0).u32(4096).u32(0);
}

#[derive(Default)]
struct Body(Vec<u8>);

impl Body {
    /// Appends a number of 16 bits in the machine's byte order.
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Appends a number of 32 bits in the machine's byte order.
    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// Appends a number of 64 bits in the machine's byte order.
    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_ne_bytes());
        self
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_sizes_of_the_protocol() {
        assert_eq!(init().len(), 64);
        assert_eq!(entry(0).len(), 128);
        assert_eq!(attr(1, 0).len(), 104);
        assert_eq!(open().len(), 16);
        assert_eq!(stat_fs(0).len(), 80);
    }

    #[test]
    fn a_write_carries_its_data_and_a_short_one_is_refused() {
        let mut bytes = vec![0; IN_HEADER + 40];
        bytes.extend([7; 16]);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..8].copy_from_slice(&16u32.to_ne_bytes());
        bytes[8..16].copy_from_slice(&99u64.to_ne_bytes());
        bytes[48..56].copy_from_slice(&8192u64.to_ne_bytes());
        bytes[56..60].copy_from_slice(&16u32.to_ne_bytes());
        let expected = Request { unique: 99, call: Call::Write { offset: 8192, data: &[7; 16] } };
        assert_eq!(parse(&bytes), Some(expected));
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), None, "{cut} bytes");
        }
    }
}
