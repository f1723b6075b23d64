//! The body of a frame or a footer: objects, then records. Its length is the sum of its parts, so that the log can
//! track the length while a frame grows.

use std::ops::Range;

use smallvec::SmallVec;

use super::limits::{BLOCKS_MAX, Invalid};
use super::record::{Body, Facts, Record, USER_RECORD_MAX};
use crate::io::{Key, Time};

/// Bytes of a body without objects and records: the two counts.
pub const BODY_BASE: usize = 8;

const DATA: u8 = 1;
const TRUNCATE: u8 = 2;
const TRUNCATED: u8 = 3;
const INVALIDATE: u8 = 4;
const FORGET: u8 = 5;
const NOTE: u8 = 6;
const DESTAGED: u8 = 7;

/// The flag of an object that has a modification time.
const HAS_MTIME: u8 = 1;
/// The smallest object: length of the key, flags, size, a key of one byte.
const FACTS_MIN: usize = 11;
/// The smallest record: tag, and object or length.
const RECORD_MIN: usize = 3;
const NSEC_END: u32 = 1_000_000_000;

/// Returns the bytes that `facts` take in a body.
pub fn facts_len(facts: &Facts) -> usize {
    let mtime = if facts.mtime.is_some() { 12 } else { 0 };
    10 + mtime + facts.key.as_bytes().len()
}

/// Returns the bytes that `record` takes in a body.
pub fn record_len(record: &Record) -> usize {
    match record {
        Record::Data { checksums, .. } => 15 + 4 * checksums.len(),
        Record::Truncate { .. } => 11,
        Record::Truncated { .. } | Record::Forget { .. } => RECORD_MIN,
        Record::Invalidate { .. } | Record::Destaged { .. } => 19,
        Record::UserRecord { bytes } => RECORD_MIN + bytes.len(),
    }
}

/// Returns the bytes of a whole body: [`BODY_BASE`] and the lengths of all objects and records.
pub fn body_len(body: &Body) -> usize {
    let objects: usize = body.objects.iter().map(facts_len).sum();
    let records: usize = body.records.iter().map(record_len).sum();
    BODY_BASE + objects + records
}

/// Checks that a decoder accepts `body`, whose data is in `slots`.
pub(super) fn check(body: &Body, slots: &Range<u16>) -> Result<(), Invalid> {
    if body.objects.len() > usize::from(u16::MAX) {
        return Err(Invalid("more than 65,535 objects in a body"));
    }
    if body.objects.iter().any(|facts| facts.mtime.is_some_and(|time| time.nsec >= NSEC_END)) {
        return Err(Invalid("a time of a billion nanoseconds or more"));
    }
    body.records.iter().try_for_each(|record| check_record(record, body.objects.len(), slots))
}

/// Fails unless a record names an object of its body, and slots within `slots`.
fn check_record(record: &Record, objects: usize, slots: &Range<u16>) -> Result<(), Invalid> {
    let object = match record {
        Record::Data { object, .. }
        | Record::Truncate { object, .. }
        | Record::Truncated { object }
        | Record::Invalidate { object, .. }
        | Record::Destaged { object, .. }
        | Record::Forget { object } => *object,
        Record::UserRecord { bytes } if (1..=USER_RECORD_MAX).contains(&bytes.len()) => return Ok(()),
        Record::UserRecord { .. } => return Err(Invalid("a note that is empty or too long")),
    };
    if usize::from(object) >= objects {
        return Err(Invalid("a record of an object that is not in the body"));
    }
    match record {
        Record::Data { block, slot, checksums, .. } => {
            let count = checksums.len();
            let room = usize::from(slots.end.saturating_sub(*slot));
            if count == 0 {
                return Err(Invalid("a record of no blocks"));
            }
            if *slot < slots.start || count > room {
                return Err(Invalid("a record of slots outside of its frame or segment"));
            }
            check_blocks(*block, count as u64)
        }
        Record::Invalidate { block, count, .. } | Record::Destaged { block, count, .. } => {
            check_blocks(*block, if *count == u64::MAX { 0 } else { *count })
        }
        _ => Ok(()),
    }
}

/// Refuses a range of blocks beyond the largest offset.
fn check_blocks(block: u64, count: u64) -> Result<(), Invalid> {
    match block.checked_add(count) {
        Some(end) if end <= BLOCKS_MAX => Ok(()),
        _ => Err(Invalid("blocks beyond the largest offset")),
    }
}

/// Returns the bytes of a body that [`check`] accepts.
pub(super) fn encode(body: &Body) -> Vec<u8> {
    let len = body_len(body);
    let mut out = Vec::with_capacity(len);
    // Both counts fit: the objects were counted, and each record takes more than one byte of a body below 4 GiB.
    out.extend_from_slice(&(body.objects.len() as u32).to_le_bytes());
    out.extend_from_slice(&(body.records.len() as u32).to_le_bytes());
    body.objects.iter().for_each(|facts| encode_facts(facts, &mut out));
    body.records.iter().for_each(|record| encode_record(record, &mut out));
    assert_eq!(out.len(), len, "the length is known before the body is encoded");
    out
}

/// Appends the facts about an object: its key, size and modification time.
fn encode_facts(facts: &Facts, out: &mut Vec<u8>) {
    let key = facts.key.as_bytes();
    // A key is at most 64 bytes long.
    out.push(key.len() as u8);
    out.push(if facts.mtime.is_some() { HAS_MTIME } else { 0 });
    out.extend_from_slice(&facts.size.to_le_bytes());
    if let Some(Time { sec, nsec }) = facts.mtime {
        out.extend_from_slice(&sec.to_le_bytes());
        out.extend_from_slice(&nsec.to_le_bytes());
    }
    out.extend_from_slice(key);
}

/// Appends a record: its tag, its object, and its fields.
fn encode_record(record: &Record, out: &mut Vec<u8>) {
    let mut head = |tag: u8, object_or_len: u16| {
        out.push(tag);
        out.extend_from_slice(&object_or_len.to_le_bytes());
    };
    match record {
        Record::Data { object, block, slot, checksums } => {
            head(DATA, *object);
            out.extend_from_slice(&slot.to_le_bytes());
            // The count fits, since the slots were checked.
            out.extend_from_slice(&(checksums.len() as u16).to_le_bytes());
            out.extend_from_slice(&block.to_le_bytes());
            checksums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
        }
        Record::Truncate { object, size } => {
            head(TRUNCATE, *object);
            out.extend_from_slice(&size.to_le_bytes());
        }
        Record::Truncated { object } => head(TRUNCATED, *object),
        Record::Invalidate { object, block, count } => {
            head(INVALIDATE, *object);
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        Record::Destaged { object, block, count } => {
            head(DESTAGED, *object);
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
        Record::Forget { object } => head(FORGET, *object),
        Record::UserRecord { bytes } => {
            // The length fits, since it was checked.
            head(NOTE, bytes.len() as u16);
            out.extend_from_slice(bytes);
        }
    }
}

/// Returns the body that fills `bytes`, if [`check`] accepts it.
pub(super) fn decode(bytes: &[u8], slots: &Range<u16>) -> Option<Body> {
    let mut input = Reader(bytes);
    let objects = input.count()?;
    let records = input.count()?;
    // A wrong count must not reserve memory that no input pays for.
    if objects.checked_mul(FACTS_MIN)?.checked_add(records.checked_mul(RECORD_MIN)?)? > input.0.len() {
        return None;
    }
    let mut body = Body { objects: Vec::with_capacity(objects), records: Vec::with_capacity(records) };
    for _ in 0..objects {
        body.objects.push(decode_facts(&mut input)?);
    }
    for _ in 0..records {
        body.records.push(decode_record(&mut input)?);
    }
    (input.0.is_empty() && check(&body, slots).is_ok()).then_some(body)
}

/// Takes the facts about an object; `None` if the bytes are none.
fn decode_facts(input: &mut Reader<'_>) -> Option<Facts> {
    let [key_len, flags] = input.array()?;
    let size = u64::from_le_bytes(input.array()?);
    let mtime = match flags {
        0 => None,
        HAS_MTIME => {
            Some(Time { sec: i64::from_le_bytes(input.array()?), nsec: u32::from_le_bytes(input.array()?) })
        }
        _ => return None,
    };
    let key = Key::new(input.bytes(usize::from(key_len))?)?;
    Some(Facts { key, size, mtime })
}

/// Takes a record; `None` if the bytes are none.
fn decode_record(input: &mut Reader<'_>) -> Option<Record> {
    let [tag] = input.array()?;
    let object = u16::from_le_bytes(input.array()?);
    Some(match tag {
        DATA => {
            let slot = u16::from_le_bytes(input.array()?);
            let count = u16::from_le_bytes(input.array()?);
            let block = u64::from_le_bytes(input.array()?);
            let (sums, _) = input.bytes(4 * usize::from(count))?.as_chunks::<4>();
            let checksums: SmallVec<_> = sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
            Record::Data { object, block, slot, checksums }
        }
        TRUNCATE => Record::Truncate { object, size: u64::from_le_bytes(input.array()?) },
        TRUNCATED => Record::Truncated { object },
        INVALIDATE => Record::Invalidate {
            object,
            block: u64::from_le_bytes(input.array()?),
            count: u64::from_le_bytes(input.array()?),
        },
        DESTAGED => Record::Destaged {
            object,
            block: u64::from_le_bytes(input.array()?),
            count: u64::from_le_bytes(input.array()?),
        },
        FORGET => Record::Forget { object },
        NOTE => Record::UserRecord { bytes: input.bytes(usize::from(object))?.into() },
        _ => return None,
    })
}

/// The bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Takes `len` bytes; `None` if fewer are left.
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Takes `N` bytes; `None` if fewer are left.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).ok()
    }
}
