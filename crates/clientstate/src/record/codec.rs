//! Bytes of records: little-endian, one encoding for each value. docs/client-state.md has the layout.

use super::{Kept, RECORD_MAX, Record, SlotReply};
use crate::session::Channel;
use crate::{
    Address, ClientId, FileKey, HostKey, HostName, LockKind, NlmOwner, OwnerName, Principal, REPLY_MAX,
    Range, SessionId, Share,
};

/// Returns the bytes of records that belong together.
pub fn encode_all(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 * records.len());
    records.iter().for_each(|record| record.encode(&mut out));
    out
}

/// Decodes records that belong together. Returns `None` for bytes that are no records, and for unknown kinds.
pub fn decode_all(mut bytes: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (record, rest) = Record::decode(bytes)?;
        records.push(record);
        bytes = rest;
    }
    Some(records)
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
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
    /// Appends the encoding: at most [`RECORD_MAX`] bytes.
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
            Record::Open { other, seqid, client, owner, file, share, seen } => out
                .u8(8)
                .array(other)
                .u32(*seqid)
                .u64(client.0)
                .bytes(owner.as_bytes())
                .bytes(file.as_bytes())
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
                out.u8(13).array(other).u32(*seqid).u64(client.0).bytes(file.as_bytes()).u8((*write).into())
            }
            Record::DelegationReturned(other) => out.u8(14).array(other),
            Record::Host(host, state) => out.u8(15).host(host).u32(*state as u32),
            Record::HostFreed(host) => out.u8(16).host(host),
            Record::NlmLock(owner, file, range, kind) => {
                out.u8(17).nlm_owner(owner).bytes(file.as_bytes()).range(*range).kind(*kind)
            }
            Record::NlmShare(owner, file, share) => {
                out.u8(18).nlm_owner(owner).bytes(file.as_bytes()).share(share.unwrap_or_default())
            }
        };
    }

    /// Decodes the first record of some bytes; returns it and the bytes behind it. Returns `None` for anything that
    /// [`Record::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let mut input = Reader(bytes);
        let record = input.record()?;
        (bytes.len() - input.0.len() <= RECORD_MAX).then_some((record, input.0))
    }
}

/// Bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn record(&mut self) -> Option<Record> {
        Some(match self.u8()? {
            1 => Record::Client {
                id: self.client()?,
                owner: self.owner()?,
                verifier: self.array()?,
                principal: Principal::new(self.bytes()?)?,
                sequence: self.u32()?,
            },
            2 => Record::ClientRemoved(self.client()?),
            3 => Record::ReclaimComplete(self.client()?),
            4 => Record::Session {
                id: self.session()?,
                client: self.client()?,
                sequence: self.u32()?,
                flags: self.u32()?,
                fore: self.channel()?,
                back: self.channel()?,
            },
            5 => Record::SessionDestroyed(self.session()?),
            6 => Record::Reply(self.reply()?),
            7 => Record::SlotsDropped(self.session()?, self.u32()?),
            8 => Record::Open {
                other: self.array()?,
                seqid: self.u32()?,
                client: self.client()?,
                owner: self.owner()?,
                file: self.file()?,
                share: self.share()?.filter(|share| share.access != 0)?,
                seen: (self.u8()?, self.u8()?),
            },
            9 => Record::Close(self.array()?),
            10 => self.lock()?,
            11 => Record::Unlock { other: self.array()?, seqid: self.u32()?, range: self.range()? },
            12 => Record::LockStateFreed(self.array()?),
            13 => Record::Delegation {
                other: self.array()?,
                seqid: self.u32()?,
                client: self.client()?,
                file: self.file()?,
                write: self.flag()?,
            },
            14 => Record::DelegationReturned(self.array()?),
            15 => Record::Host(self.host()?, self.u32()? as i32),
            16 => Record::HostFreed(self.host()?),
            17 => Record::NlmLock(self.nlm_owner()?, self.file()?, self.range()?, self.kind()?),
            18 => Record::NlmShare(self.nlm_owner()?, self.file()?, self.share()?),
            _ => return None,
        })
    }

    fn reply(&mut self) -> Option<SlotReply> {
        let (session, slot, sequence) = (self.session()?, self.u32()?, self.u32()?);
        let digest = self.u64()?;
        let reply = match self.u8()? {
            0 => Kept::Repeatable,
            1 => Kept::Not,
            2 => Kept::Bytes(self.bytes().filter(|bytes| bytes.len() <= REPLY_MAX)?.to_vec()),
            _ => return None,
        };
        Some(SlotReply { session, slot, sequence, digest, reply })
    }

    fn lock(&mut self) -> Option<Record> {
        let (other, seqid, open) = (self.array()?, self.u32()?, self.array()?);
        let owner = self.owner()?;
        let range = match self.kind()? {
            Some(kind) => Some((self.range()?, kind)),
            None => None,
        };
        Some(Record::Lock { other, seqid, open, owner, range })
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&[u8]> {
        let len = u16::from_le_bytes(self.array()?);
        let (bytes, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn client(&mut self) -> Option<ClientId> {
        self.u64().map(ClientId)
    }

    fn session(&mut self) -> Option<SessionId> {
        self.array().map(SessionId)
    }

    fn owner(&mut self) -> Option<OwnerName> {
        OwnerName::new(self.bytes()?)
    }

    fn file(&mut self) -> Option<FileKey> {
        FileKey::new(self.bytes()?)
    }

    fn range(&mut self) -> Option<Range> {
        let range = Range { first: self.u64()?, last: self.u64()? };
        (range.first <= range.last).then_some(range)
    }

    fn kind(&mut self) -> Option<Option<LockKind>> {
        Some(match self.u8()? {
            0 => None,
            1 => Some(LockKind::Read),
            2 => Some(LockKind::Write),
            _ => return None,
        })
    }

    /// Returns `Some(None)` for the share of an owner that has none.
    fn share(&mut self) -> Option<Option<Share>> {
        let byte = self.u8()?;
        let share = Share { access: byte & 15, deny: byte >> 4 };
        (byte & 0b1100_1100 == 0).then_some((byte != 0).then_some(share))
    }

    fn channel(&mut self) -> Option<Channel> {
        Some(Channel {
            max_request: self.u32()?,
            max_response: self.u32()?,
            max_cached: self.u32()?,
            operations: self.u32()?,
            slots: self.u32()?,
        })
    }

    fn host(&mut self) -> Option<HostKey> {
        Some(HostKey { name: HostName::new(self.bytes()?)?, address: Address::new(self.bytes()?)? })
    }

    fn nlm_owner(&mut self) -> Option<NlmOwner> {
        Some(NlmOwner { host: self.host()?, opaque: self.owner()?, svid: self.u32()? as i32 })
    }
}
