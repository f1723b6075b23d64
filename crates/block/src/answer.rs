//! One request off the event loop's hot path: its operation on the device, and its reply.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_rpc::{Held, Record, Ticket, Workers};
use forebay_volume::disk::{DiskError, Extent, Stability};
use forebay_wire::nbd::{ErrorCode, Request, encode_data_head, encode_done, encode_error, encode_status};

use crate::export::{Context, Export};
use crate::nbd::Counts;
use crate::request::{Action, EXTENTS, Refused};

/// The bytes of CACHE after which the server looks whether the client is still connected.
const CACHED_PIECE: u64 = 64 << 20;
/// The bytes of TRIM and WRITE_ZEROES after which the server looks whether the client is still connected.
const CHANGED_PIECE: u64 = 1 << 30;

/// A request with everything that its answer needs.
pub(crate) struct Job {
    pub(crate) export: Arc<Export>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) request: Request,
    pub(crate) action: Action,
    /// The header and the payload of the request.
    pub(crate) record: Record,
    /// The place of the payload in the record.
    pub(crate) payload: usize,
    pub(crate) ticket: Ticket,
    /// The memory that the request needs beside its record and the data of its reply, once it is carried out.
    pub(crate) held: Option<Held>,
}

/// A request that is not carried out, because there is no memory for it or for its reply.
pub(crate) struct Unanswered(pub(crate) Job);

/// Returns the error of the protocol for an error of a device.
pub(crate) fn error_code(error: DiskError) -> Refused {
    match error {
        DiskError::Io => (ErrorCode::Io, "a device failed for this range"),
        DiskError::NoSpace => (ErrorCode::NoSpc, "the backing device has no space left"),
        DiskError::Invalid => (ErrorCode::Inval, "the volume does not take this range"),
        DiskError::ReadOnly => (ErrorCode::Perm, "the volume is read-only"),
        DiskError::Stopping => (ErrorCode::Shutdown, "the volume leaves service"),
    }
}

impl Job {
    /// Gives the request to a worker. The transport bounds the requests in flight.
    pub(crate) fn submit(self, workers: &Workers<Job>) {
        let bytes = self.record.len() + self.action.memory(self.request.length);
        let address = self.ticket.peer().addr.ip();
        // After the end of the workers no client is left.
        let _ = workers.submit_beyond(address, bytes, self);
    }

    /// Counts the memory that the request needs. Returns false if there is none.
    fn has_memory(&mut self) -> bool {
        let bytes = self.action.memory(self.request.length);
        self.held = match self.action {
            // The buffer of the reply counts by itself.
            Action::Read { .. } => return true,
            // WRITEs that keep their payloads and wait for memory would wait for each other.
            Action::Write { .. } => Some(self.ticket.hold(bytes)),
            _ => self.ticket.try_hold(bytes),
        };
        self.held.is_some()
    }

    /// Carries out the request and answers it.
    pub(crate) async fn answer(mut self) -> Result<(), Unanswered> {
        if !self.has_memory() {
            return Err(Unanswered(self));
        }
        let style = self.export.style;
        let id = (self.request.cookie, self.request.offset);
        let mut reply = self.ticket.reply();
        let done = match self.action {
            Action::Read { len } => {
                let payload = reply.payload(len);
                if payload.capacity() < len {
                    drop(reply);
                    return Err(Unanswered(self));
                }
                let read = self.export.disk.read(self.request.offset, &mut payload.spare_mut()[..len]).await;
                payload.set_len(len);
                read.map(|()| encode_data_head(style, id, len as u64, reply.head())).map_err(error_code)
            }
            Action::Status { is_one } => self.status(is_one, reply.head()).await.map_err(error_code),
            _ => self.change().await.map(|()| encode_done(style, id.0, id.1, reply.head())),
        };
        self.count(done.is_ok());
        if let Err((code, text)) = done {
            reply.clear();
            encode_error(style, id, code, text, reply.head());
        }
        // The memory of the request is free before the reply invites the next one.
        drop((self.record, self.held));
        self.ticket.send(reply);
        Ok(())
    }

    /// Carries out a request whose reply has no data.
    async fn change(&self) -> Result<(), Refused> {
        let (disk, offset) = (&self.export.disk, self.request.offset);
        let done = match self.action {
            Action::Write { fua } => {
                disk.write(offset, &self.record[self.payload..], Stability::of_write(fua)).await
            }
            Action::Flush => disk.flush().await,
            Action::WriteZeroes { fast: true, .. } if !disk.zeroes_fast().await.map_err(error_code)? => {
                return Err((ErrorCode::NotSup, "zeros are not faster than a write on this device"));
            }
            Action::Discard { .. } | Action::WriteZeroes { .. } | Action::Prefetch => self.go_through().await,
            Action::Read { .. } | Action::Status { .. } | Action::Disconnect => Ok(()),
        };
        done.map_err(error_code)
    }

    /// Carries out a request whose range may be as long as the volume, in pieces. After the end of the connection the
    /// remaining pieces are left out. Otherwise a client that connects again and again could keep the device busy for
    /// days.
    async fn go_through(&self) -> Result<(), DiskError> {
        let (disk, Request { offset, length, .. }) = (&self.export.disk, self.request);
        let piece = if self.action == Action::Prefetch { CACHED_PIECE } else { CHANGED_PIECE };
        for Range { start, end } in pieces(offset..offset + length, piece) {
            if !self.ticket.is_wanted() {
                return Ok(());
            }
            let len = end - start;
            match self.action {
                Action::Discard { fua } => disk.discard(start, len, Stability::of_discard(fua)).await?,
                Action::WriteZeroes { keep, fua, .. } => {
                    disk.write_zeroes(start, len, keep, Stability::of_write(fua)).await?;
                }
                _ => disk.prefetch(start, len).await?,
            }
        }
        Ok(())
    }

    /// Appends the status of the range in each selected context.
    async fn status(&self, is_one: bool, out: &mut Vec<u8>) -> Result<(), DiskError> {
        let Request { offset, length, cookie, .. } = self.request;
        let extents = self.export.disk.extents(offset, length, EXTENTS).await?;
        let contexts = &self.export.contexts;
        for (number, context) in contexts.iter().enumerate() {
            let runs = runs(*context, &extents, length, if is_one { 1 } else { EXTENTS });
            if runs.is_empty() {
                return Err(DiskError::Io);
            }
            let is_last = number + 1 == contexts.len();
            encode_status(self.export.style, (cookie, offset), context.id(), &runs, is_last, out);
        }
        Ok(())
    }

    /// Counts the request once it is answered: an error, or a READ, WRITE or FLUSH with its bytes. Other requests are
    /// counted only if they fail.
    fn count(&self, is_ok: bool) {
        let counts = &self.counts;
        let (number, bytes) = match self.action {
            _ if !is_ok => (&counts.errors, None),
            Action::Read { .. } => (&counts.reads, Some(&counts.bytes_read)),
            Action::Write { .. } => (&counts.writes, Some(&counts.bytes_written)),
            Action::Flush => (&counts.flushes, None),
            _ => return,
        };
        number.fetch_add(1, Relaxed);
        if let Some(bytes) = bytes {
            bytes.fetch_add(self.request.length, Relaxed);
        }
    }
}

/// Returns the pieces of a range, which end at multiples of `piece`.
fn pieces(range: Range<u64>, piece: u64) -> impl Iterator<Item = Range<u64>> {
    let next = move |at: u64| (at / piece + 1).saturating_mul(piece).min(range.end);
    std::iter::successors(Some(range.start..next(range.start)), move |last| {
        (last.end < range.end).then(|| last.end..next(last.end))
    })
}

/// Returns at most `most` runs of one status in a context, as pairs of length and status. They cover at most `limit`
/// bytes.
fn runs(context: Context, extents: &[Extent], limit: u64, most: usize) -> Vec<(u64, u64)> {
    let (mut runs, mut left): (Vec<(u64, u64)>, _) = (Vec::new(), limit);
    for extent in extents {
        let (len, status) = (extent.len.min(left), context.status(extent));
        if len == 0 {
            break;
        }
        let is_full = runs.len() == most;
        match runs.last_mut().filter(|run| run.1 == status) {
            Some(run) => run.0 += len,
            None if is_full => break,
            None => runs.push((len, status)),
        }
        left -= len;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_range_is_cut_at_whole_pieces() {
        assert_eq!(pieces(5..9, 10).collect::<Vec<_>>(), vec![5..9]);
        assert_eq!(pieces(5..30, 10).collect::<Vec<_>>(), [5..10, 10..20, 20..30]);
        assert_eq!(pieces(10..21, 10).collect::<Vec<_>>(), [10..20, 20..21]);
        assert_eq!(pieces(u64::MAX - 1..u64::MAX, 1 << 30).count(), 1);
    }

    #[test]
    fn runs_join_equal_extents_and_stay_within_the_request() {
        let extent = |len, hole, dirty| Extent { len, hole, zero: hole, cached: true, dirty };
        let extents = [extent(4096, true, false), extent(4096, true, true), extent(8192, false, true)];
        let all = |context, limit, most| runs(context, &extents, limit, most);
        assert_eq!(all(Context::Allocation, 1 << 20, 9), [(8192, 3), (8192, 0)]);
        assert_eq!(all(Context::Cache, 1 << 20, 9), [(4096, 1), (12_288, 3)]);
        assert_eq!(all(Context::Cache, 5000, 9), [(4096, 1), (904, 3)]);
        assert_eq!(all(Context::Allocation, 1 << 20, 1), [(8192, 3)]);
        assert_eq!(runs(Context::Cache, &[], 512, 9), []);
    }
}
