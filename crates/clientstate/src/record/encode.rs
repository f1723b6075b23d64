//! The bytes of records: little-endian, one encoding for each value. docs/client-state.md has the layout.

use super::{Kept, Record};
use crate::session::Channel;
use crate::{HostKey, LockKind, NlmOwner, Range, Share};

/// Returns the bytes of records that belong together.
pub fn encode_all(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 * records.len());
    records.iter().for_each(|record| record.encode(&mut out));
    out
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    /// Appends a byte.
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.array(&value.to_le_bytes())
    }

    /// Appends bytes whose number the reader knows.
    fn array(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Writes a string of at most 64 KiB. All strings have smaller bounds.
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.array(&(bytes.len() as u16).to_le_bytes()).array(bytes)
    }

    fn range(&mut self, range: Range) -> &mut Self {
        self.u64(range.first).u64(range.last)
    }

    /// Appends the kind of a lock, or 0 for no lock.
    fn kind(&mut self, kind: Option<LockKind>) -> &mut Self {
        self.u8(match kind {
            None => 0,
            Some(LockKind::Read) => 1,
            Some(LockKind::Write) => 2,
        })
    }

    fn share(&mut self, share: Share) -> &mut Self {
        self.u8(share.access | share.deny << 4)
    }

    /// Appends the limits of a channel.
    fn channel(&mut self, channel: &Channel) -> &mut Self {
        let Channel { max_request, max_response, max_cached, operations, slots } = *channel;
        self.u32(max_request).u32(max_response).u32(max_cached).u32(operations).u32(slots)
    }

    fn host(&mut self, host: &HostKey) -> &mut Self {
        self.bytes(host.name.as_bytes()).bytes(host.address.as_bytes())
    }

    fn nlm_owner(&mut self, owner: &NlmOwner) -> &mut Self {
        self.host(&owner.host).bytes(owner.opaque.as_bytes()).u32(owner.svid as u32)
    }
}

impl Record {
    /// Appends the encoding: at most [`RECORD_MAX`](super::RECORD_MAX) bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let out = &mut Writer(out);
        match self {
            Record::Client { id, owner, verifier, principal, sequence } => {
                out.u8(1).u64(id.0).bytes(owner.as_bytes()).array(verifier);
                out.bytes(principal.as_bytes()).u32(*sequence)
            }
            Record::ClientRemoved(id) => out.u8(2).u64(id.0),
            Record::ReclaimComplete(id) => out.u8(3).u64(id.0),
            Record::Session { id, client, sequence, flags, fore, back } => {
                out.u8(4).array(&id.0).u64(client.0).u32(*sequence).u32(*flags).channel(fore).channel(back)
            }
            Record::SessionDestroyed(id) => out.u8(5).array(&id.0),
            Record::Reply(reply) => {
                out.u8(6).array(&reply.session.0).u32(reply.slot).u32(reply.sequence).u64(reply.digest);
                match &reply.reply {
                    Kept::Repeatable => out.u8(0),
                    Kept::Not => out.u8(1),
                    Kept::Bytes(bytes) => out.u8(2).bytes(bytes),
                }
            }
            Record::SlotsDropped(session, from) => out.u8(7).array(&session.0).u32(*from),
            Record::Callback(session, slot, sequence) => {
                out.u8(19).array(&session.0).u32(*slot).u32(*sequence)
            }
            Record::Open { other, seqid, client, owner, file, share, seen } => out
                .u8(8)
                .array(other)
                .u32(*seqid)
                .u64(client.0)
                .bytes(owner.as_bytes())
                .bytes(file.handle())
                .share(*share)
                .u8(seen.0)
                .u8(seen.1),
            Record::Close(other) => out.u8(9).array(other),
            Record::Lock { other, seqid, open, owner, range } => {
                out.u8(10).array(other).u32(*seqid).array(open).bytes(owner.as_bytes());
                out.kind(range.map(|(_, kind)| kind));
                if let Some((range, _)) = range {
                    out.range(*range);
                }
                out
            }
            Record::Unlock { other, seqid, range } => out.u8(11).array(other).u32(*seqid).range(*range),
            Record::LockStateFreed(other) => out.u8(12).array(other),
            Record::Delegation { other, seqid, client, file, write } => {
                out.u8(13).array(other).u32(*seqid).u64(client.0).bytes(file.handle()).u8((*write).into())
            }
            Record::DelegationReturned(other) => out.u8(14).array(other),
            Record::Copy { other, client, file } => {
                out.u8(20).array(other).u64(client.0).bytes(file.handle())
            }
            Record::CopyEnded(other) => out.u8(21).array(other),
            Record::Host(host, state) => out.u8(15).host(host).u32(*state as u32),
            Record::HostFreed(host) => out.u8(16).host(host),
            Record::NlmLock(owner, file, range, kind) => {
                out.u8(17).nlm_owner(owner).bytes(file.handle()).range(*range).kind(*kind)
            }
            Record::NlmShare(owner, file, share) => {
                out.u8(18).nlm_owner(owner).bytes(file.handle()).share(share.unwrap_or_default())
            }
        };
    }
}
