//! The backing device of a volume on another host, or in another process: an NBD export.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use forebay_common::nbd_url::NbdUrl;
use forebay_disk::{KnownExport, LinkError, NbdLink};
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{BackingError, BackingResult, Io};
use forebay_volume::device::BackingDevice;

use super::open::OpenDevice;

const EIO: i32 = 5;
const ENOTCONN: i32 = 107;

/// The bytes of zeros that one write has, where the server cannot zero a range.
const ZEROS: u64 = 1 << 20;

/// An NBD export behind a volume. NBD has no lock: nothing keeps other clients from the export.
pub(crate) struct RemoteDevice {
    url: NbdUrl,
    link: NbdLink,
}

impl RemoteDevice {
    /// Connects to the export, see [`NbdLink::open`].
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn open(
        url: &NbdUrl,
        read_only: bool,
        known: Option<KnownExport>,
        tell: impl Fn(bool) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        Ok(RemoteDevice { url: url.clone(), link: NbdLink::open(url, read_only, known, tell)? })
    }

    /// Returns the unit of the server's requests in bytes.
    pub(crate) fn unit(&self) -> u32 {
        self.link.unit()
    }
}

impl OpenDevice for RemoteDevice {
    fn measure(&self) -> io::Result<u64> {
        Ok(self.link.size())
    }

    fn grow(&self, size: u64) -> Result<(), String> {
        let now = self.link.size();
        Err(format!(
            "it is an NBD export of {now} bytes, and {size} bytes are in force only after a new start"
        ))
    }

    fn logical_block(&self) -> u32 {
        self.link.unit()
    }

    fn trouble(&self) -> Option<String> {
        let url = &self.url;
        (!self.link.is_connected()).then(|| {
            format!(
                "there is no connection to {url}; nothing is lost, and it is tried again every second: see whether the NBD \
                 server runs"
            )
        })
    }
}

impl BackingDevice for RemoteDevice {
    fn size(&self) -> u64 {
        self.link.size()
    }

    fn is_rotational(&self) -> bool {
        self.link.is_rotational()
    }

    fn losses(&self) -> u64 {
        self.link.losses()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let link = self.link.clone();
        let len = (buffer.len() as u64).min(link.size().saturating_sub(offset)) as usize;
        Box::pin(async move {
            let (buffer, read) = link.read(offset, buffer, len).await;
            (buffer, read.map(|()| len).map_err(backing))
        })
    }

    fn write(&self, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let link = self.link.clone();
        Box::pin(async move { write(&link, offset, data).await.map_err(backing) })
    }

    fn sync(&self) -> Io<BackingResult<()>> {
        let link = self.link.clone();
        Box::pin(async move { link.sync().await.map_err(backing) })
    }

    fn discard(&self, offset: u64, len: u64) -> Io<BackingResult<()>> {
        let link = self.link.clone();
        Box::pin(async move { link.discard(offset, len).await.map_err(backing) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Io<BackingResult<()>> {
        let link = self.link.clone();
        Box::pin(async move { zero(&link, offset, len, keep).await.map_err(backing) })
    }

    fn allocated(&self, offset: u64, len: u64, _: usize) -> Io<BackingResult<Vec<Range<u64>>>> {
        Box::pin(std::future::ready(Ok(std::iter::once(offset..offset + len).collect())))
    }
}

/// Returns the engine's error for an error of the NBD connection. Only lack of space has a meaning of its own.
fn backing(error: LinkError) -> BackingError {
    match error {
        LinkError::Lost => BackingError::Io(ENOTCONN),
        LinkError::NoSpace => BackingError::NoSpace,
        LinkError::Refused => BackingError::Io(EIO),
    }
}

/// Writes bytes that need not be whole units of the server.
async fn write(link: &NbdLink, offset: u64, data: Slice) -> Result<(), LinkError> {
    let len = data.len() as u64;
    if offset + len > link.size() {
        return Err(LinkError::NoSpace);
    }
    let unit = u64::from(link.unit());
    if offset.is_multiple_of(unit) && len.is_multiple_of(unit) {
        return link.write(offset, data).await;
    }
    // The caller has no other write of these blocks in flight, and a unit is no larger than a block.
    let start = offset / unit * unit;
    let whole = ((offset + len).next_multiple_of(unit) - start) as usize;
    let (mut buffer, read) = link.read(start, Buffer::zeroed(whole.div_ceil(BLOCK)), whole).await;
    read?;
    buffer[(offset - start) as usize..][..data.len()].copy_from_slice(&data);
    link.write(start, Slice::new(Arc::new(buffer), 0..whole)).await
}

/// Makes a range of bytes read as zeros. Sends zeros as data if the NBD server has no such operation, or the range is
/// not in its units.
async fn zero(link: &NbdLink, offset: u64, len: u64, keep: bool) -> Result<(), LinkError> {
    let unit = u64::from(link.unit());
    let is_whole = offset.is_multiple_of(unit) && len.is_multiple_of(unit);
    if is_whole && link.write_zeroes(offset, len, keep).await? {
        return Ok(());
    }
    let zeros = Arc::new(Buffer::zeroed((ZEROS.min(len) as usize).div_ceil(BLOCK)));
    let mut at = offset;
    while at < offset + len {
        let part = (zeros.len() as u64).min(offset + len - at);
        write(link, at, Slice::new(zeros.clone(), 0..part as usize)).await?;
        at += part;
    }
    Ok(())
}
