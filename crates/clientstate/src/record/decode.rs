//! Records from bytes. Nothing is accepted that the encoding does not write.

use super::{Kept, RECORD_MAX, Record, SlotReply};
use crate::session::Channel;
use crate::{
    Address, ClientId, FileKey, HostKey, HostName, LockKind, NlmOwner, OwnerName, Principal, REPLY_MAX,
    Range, SessionId, Share,
};

/// The slots of a session in a record. No instance grants more.
const SLOTS_MAX: u32 = 1 << 16;

/// Returns the file that a handle names, or `None` for bytes that are no handle.
pub type KeyOf<'a> = &'a dyn Fn(&[u8]) -> Option<FileKey>;

/// Decodes records that belong together. Returns `None` for bytes that are no records, and for unknown kinds. Records
/// have handles of files: `key_of` finds their keys.
pub fn decode_all(mut bytes: &[u8], key_of: KeyOf<'_>) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (record, rest) = Record::decode(bytes, key_of)?;
        records.push(record);
        bytes = rest;
    }
    Some(records)
}

impl Record {
    /// Decodes the first record of some bytes; returns it and the bytes behind it. Returns `None` for anything that
    /// [`Record::encode`] does not write. `key_of` finds the keys of files.
    pub fn decode<'a>(bytes: &'a [u8], key_of: KeyOf<'_>) -> Option<(Record, &'a [u8])> {
        let mut input = Reader { bytes, key_of };
        let record = input.record()?;
        (bytes.len() - input.bytes.len() <= RECORD_MAX).then_some((record, input.bytes))
    }
}

/// Bytes that are not read yet, and the way from handles to keys.
struct Reader<'a, 'k> {
    bytes: &'a [u8],
    key_of: KeyOf<'k>,
}

impl Reader<'_, '_> {
    /// Reads one record. Returns `None` for an unknown kind, so that a later version's log is not misread.
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
            19 => Record::Callback(self.session()?, self.u32()?, self.u32()?),
            20 => Record::Copy { other: self.array()?, client: self.client()?, file: self.file()? },
            21 => Record::CopyEnded(self.array()?),
            _ => return None,
        })
    }

    /// Reads the reply in a slot. Returns `None` if it is longer than `REPLY_MAX` bytes.
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

    /// Reads the record of a lock state, which may have no lock.
    fn lock(&mut self) -> Option<Record> {
        let (other, seqid, open) = (self.array()?, self.u32()?, self.array()?);
        let owner = self.owner()?;
        let range = match self.kind()? {
            Some(kind) => Some((self.range()?, kind)),
            None => None,
        };
        Some(Record::Lock { other, seqid, open, owner, range })
    }

    /// Reads `N` bytes. Returns `None` if fewer are left.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
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

    /// Reads bytes behind their length, which has 16 bits.
    fn bytes(&mut self) -> Option<&[u8]> {
        let len = u16::from_le_bytes(self.array()?);
        let (bytes, rest) = self.bytes.split_at_checked(len.into())?;
        self.bytes = rest;
        Some(bytes)
    }

    /// Reads a byte that is 0 or 1. Returns `None` for any other byte.
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
        (self.key_of)(self.bytes()?)
    }

    /// Reads a range of bytes. Returns `None` if its end is before its beginning.
    fn range(&mut self) -> Option<Range> {
        let range = Range { first: self.u64()?, last: self.u64()? };
        (range.first <= range.last).then_some(range)
    }

    /// Reads the kind of a lock. Returns `Some(None)` for no lock, and `None` for an unknown kind.
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

    /// Reads the limits of a channel. Returns `None` if it has no slots or more than any server grants.
    fn channel(&mut self) -> Option<Channel> {
        let channel = Channel {
            max_request: self.u32()?,
            max_response: self.u32()?,
            max_cached: self.u32()?,
            operations: self.u32()?,
            slots: self.u32()?,
        };
        (1..=SLOTS_MAX).contains(&channel.slots).then_some(channel)
    }

    fn host(&mut self) -> Option<HostKey> {
        Some(HostKey { name: HostName::new(self.bytes()?)?, address: Address::new(self.bytes()?)? })
    }

    fn nlm_owner(&mut self) -> Option<NlmOwner> {
        Some(NlmOwner { host: self.host()?, opaque: self.owner()?, svid: self.u32()? as i32 })
    }
}
