//! One request off the event loop's hot path: its operation on the device, and its reply.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_rpc::{Held, Record, Ticket, Workers};
use forebay_volume::disk::{DiskError, Extent, Stability};
use forebay_wire::nbd::{ErrorCode, Request, encode_data_head, encode_done, encode_error, encode_status};

use crate::export::{Context, Export};
use crate::nbd::Counts;
use crate::request::{Action, EXTENTS, Refused};

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
    /// The memory that the request needs beside its record and the data of its reply.
    pub(crate) held: Held,
}

/// A request that is not carried out, because there is no memory for its reply.
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

    /// Carries out the request and answers it.
    pub(crate) async fn answer(self) -> Result<(), Unanswered> {
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
        let (disk, Request { offset, length, .. }) = (&self.export.disk, self.request);
        let done = match self.action {
            Action::Write { fua } => {
                disk.write(offset, &self.record[self.payload..], Stability::of_write(fua)).await
            }
            Action::Flush => disk.flush().await,
            Action::Discard { fua } => disk.discard(offset, length, Stability::of_discard(fua)).await,
            Action::WriteZeroes { keep, fast, fua } => {
                if fast && !disk.zeroes_fast().await.map_err(error_code)? {
                    return Err((ErrorCode::NotSup, "zeros are not faster than a write on this device"));
                }
                disk.write_zeroes(offset, length, keep, Stability::of_write(fua)).await
            }
            Action::Prefetch => disk.prefetch(offset, length).await,
            Action::Read { .. } | Action::Status { .. } | Action::Disconnect => Ok(()),
        };
        done.map_err(error_code)
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
