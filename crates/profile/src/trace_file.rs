//! The file of a trace. It has no data, no names, no addresses and no users: clients and files are numbers in the order
//! of their appearance.
//!
//! ```text
//!  header: "FOREBAY-TRACE\n", version (1 byte: 2)
//!  record: microseconds since the record before (varint)
//!          client (varint)
//!          kind (5 bits) | failed (bit 6) | stable (bit 7)
//!          file + 1, or 0 for none (varint)
//!          READ and WRITE that succeeded: offset (varint), length (varint)
//!  end:    0, 0, 31 (1 byte each), operations (varint), operations that the recorder has lost (varint)
//! ```
//!
//! Version 1 has no end. A trace of version 2 has none if the recorder was killed.
//!
//! A varint has 7 bits of the number in each byte, the lowest first. All bytes but the last have bit 7 set.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::kind::Kind;
use crate::operation::Moved;
use crate::trace::Traced;

const MAGIC: &[u8] = b"FOREBAY-TRACE\n";
const VERSION: u8 = 2;
/// The version without an end.
const WITHOUT_END: u8 = 1;
const KIND: u8 = 0x1f;
/// The number in place of a kind that marks the end.
const END: u8 = KIND;
/// The most bytes that one READ or WRITE moves. A larger number is damage.
const LONGEST: u32 = 64 << 20;
const FAILED: u8 = 0x40;
const STABLE: u8 = 0x80;

/// A record of a trace's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Microseconds since the first record.
    pub at_us: u64,
    /// Number of the client.
    pub client: u32,
    /// The kind.
    pub kind: Kind,
    /// True if it failed.
    pub failed: bool,
    /// Number of the file or directory.
    pub file: Option<u32>,
    /// The range of a READ or WRITE that succeeded.
    pub moved: Option<Moved>,
}

/// The contents of a trace's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// The operations. Numbers of clients and files are in the order of their appearance, without gaps.
    pub records: Vec<TraceRecord>,
    /// The end; `None` if the file has none, so that operations may be missing.
    pub end: Option<TraceEnd>,
}

/// The end of a trace's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEnd {
    /// The number of operations in the file.
    pub operations: u64,
    /// Operations that are missing, because they came faster than they could be written.
    pub lost: u64,
}

/// Encodes a trace.
#[derive(Default)]
pub struct TraceEncoder {
    operations: u64,
    clients: HashMap<IpAddr, u32>,
    files: HashMap<u64, u32>,
    last_us: Option<u64>,
}

/// The reason why bytes are no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// The bytes do not begin as a trace does.
    NoTrace,
    /// A newer Forebay has written the trace. The value is the version.
    Newer(u8),
    /// The bytes end within a record, or a record is damaged. The value is the number of good records before.
    CutShort(u64),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::NoTrace => write!(f, "it is no trace; make one with `forebay profile record`"),
            TraceError::Newer(version) => {
                write!(f, "it has version {version} of the format; use the forebay that recorded it")
            }
            TraceError::CutShort(good) => {
                write!(f, "it is cut short or damaged after {good} operations; record it again")
            }
        }
    }
}

impl std::error::Error for TraceError {}

impl TraceEncoder {
    /// Appends the header of a file.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(MAGIC);
        out.push(VERSION);
        Self::default()
    }

    /// Appends an operation. One that ended before the operation in front of it counts as simultaneous.
    pub fn add(&mut self, out: &mut Vec<u8>, traced: &Traced) {
        self.operations += 1;
        let at_us = traced.at.as_micros() as u64;
        let last_us = self.last_us.unwrap_or(at_us);
        self.last_us = Some(at_us.max(last_us));
        let next = self.clients.len() as u32;
        let client = *self.clients.entry(traced.client).or_insert(next);
        let next = self.files.len() as u32;
        let file = (traced.file != 0).then(|| *self.files.entry(traced.file).or_insert(next));
        let stable = traced.moved.is_some_and(|moved| moved.stable);
        let flag = |flag: u8, on: bool| if on { flag } else { 0 };
        put(out, at_us.saturating_sub(last_us));
        put(out, client.into());
        out.push(traced.kind as u8 | flag(FAILED, traced.failed) | flag(STABLE, stable));
        put(out, file.map_or(0, |file| u64::from(file) + 1));
        if has_range(traced.kind, traced.failed) {
            let Moved { offset, len, .. } = traced.moved.unwrap_or_default();
            put(out, offset);
            put(out, len.into());
        }
    }

    /// Appends the end. `lost` operations are missing.
    pub fn end(self, out: &mut Vec<u8>, lost: u64) {
        out.extend_from_slice(&[0, 0, END]);
        put(out, self.operations);
        put(out, lost);
    }
}

/// Decodes a whole trace.
///
/// # Errors
/// The bytes are no trace, or are not all of one.
pub fn decode_trace(bytes: &[u8]) -> Result<TraceFile, TraceError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(TraceError::NoTrace)?;
    let mut rest = match rest.split_first() {
        Some((&(WITHOUT_END | VERSION), rest)) => rest,
        Some((&version, _)) => return Err(TraceError::Newer(version)),
        None => return Err(TraceError::CutShort(0)),
    };
    let mut records = Vec::new();
    let mut numbers = Numbers::default();
    let mut at_us = 0;
    while !rest.is_empty() {
        let damaged = TraceError::CutShort(records.len() as u64);
        if let Some(after) = rest.strip_prefix(&[0, 0, END]) {
            let end = end(after).filter(|end| end.operations == records.len() as u64).ok_or(damaged)?;
            return Ok(TraceFile { records, end: Some(end) });
        }
        let record = record(&mut rest, &mut at_us).filter(|record| numbers.take(record)).ok_or(damaged)?;
        records.push(record);
    }
    Ok(TraceFile { records, end: None })
}

/// The numbers of clients and files that were seen.
#[derive(Default)]
struct Numbers {
    clients: u32,
    files: u32,
}

impl Numbers {
    /// Takes the numbers of a record. Returns false if one is neither known nor the next one. Such a record is damaged:
    /// a replay would make all clients and files up to the number.
    fn take(&mut self, record: &TraceRecord) -> bool {
        let take = |known: &mut u32, number: u32| {
            let fits = number <= *known;
            *known = (*known).max(number.saturating_add(1));
            fits
        };
        take(&mut self.clients, record.client) && record.file.is_none_or(|file| take(&mut self.files, file))
    }
}

/// Returns the end, if `rest` has it and nothing else.
fn end(mut rest: &[u8]) -> Option<TraceEnd> {
    let end = TraceEnd { operations: take(&mut rest)?, lost: take(&mut rest)? };
    rest.is_empty().then_some(end)
}

/// Takes a record from the front of `rest`. `at_us` is the time of the record before, and then of this one.
fn record(rest: &mut &[u8], at_us: &mut u64) -> Option<TraceRecord> {
    *at_us = at_us.checked_add(take(rest)?)?;
    let client = u32::try_from(take(rest)?).ok()?;
    let (&flags, after) = rest.split_first()?;
    *rest = after;
    let kind = *Kind::ALL.get(usize::from(flags & KIND))?;
    let failed = flags & FAILED != 0;
    let file = match take(rest)? {
        0 => None,
        number => Some(u32::try_from(number - 1).ok()?),
    };
    let moved = match has_range(kind, failed) {
        false => None,
        true => Some(Moved {
            offset: take(rest)?,
            len: u32::try_from(take(rest)?).ok().filter(|len| *len <= LONGEST)?,
            stable: flags & STABLE != 0,
        }),
    };
    Some(TraceRecord { at_us: *at_us, client, kind, failed, file, moved })
}

fn has_range(kind: Kind, failed: bool) -> bool {
    matches!(kind, Kind::Read | Kind::Write) && !failed
}

/// Appends a number in groups of seven bits, lowest first.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes a number; `None` if it is cut short or exceeds 64 bits.
fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        let bits = u64::from(byte & 0x7f);
        number |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn traced(ms: u64, client: &str, kind: Kind, file: u64, moved: Option<Moved>) -> Traced {
        let client = client.parse().unwrap();
        Traced { at: Duration::from_millis(ms), client, kind, failed: false, file, moved }
    }

    fn sample() -> (Vec<u8>, Vec<TraceRecord>) {
        let range = |offset, len, stable| Some(Moved { offset, len, stable });
        let operations = [
            traced(1000, "10.0.0.9", Kind::Create, 0xdead_beef, None),
            traced(1001, "10.0.0.9", Kind::Write, 0xdead_beef, range(u64::MAX, 1 << 20, true)),
            traced(1500, "::1", Kind::Read, 0xfeed, range(4096, 0, false)),
            // It ended earlier, and was counted later.
            traced(1400, "::1", Kind::Commit, 0xdead_beef, None),
            Traced { failed: true, ..traced(1600, "10.0.0.9", Kind::Read, 0, None) },
        ];
        let mut bytes = Vec::new();
        let mut encoder = TraceEncoder::begin(&mut bytes);
        operations.iter().for_each(|operation| encoder.add(&mut bytes, operation));
        encoder.end(&mut bytes, 3);
        let record = |at_us, client, kind, file, moved| TraceRecord {
            at_us,
            client,
            kind,
            failed: false,
            file,
            moved,
        };
        let records = vec![
            record(0, 0, Kind::Create, Some(0), None),
            record(1000, 0, Kind::Write, Some(0), range(u64::MAX, 1 << 20, true)),
            record(500_000, 1, Kind::Read, Some(1), range(4096, 0, false)),
            record(500_000, 1, Kind::Commit, Some(0), None),
            TraceRecord { failed: true, ..record(600_000, 0, Kind::Read, None, None) },
        ];
        (bytes, records)
    }

    #[test]
    fn a_trace_is_small_and_read_as_it_was_written() {
        let (bytes, records) = sample();
        let end = Some(TraceEnd { operations: records.len() as u64, lost: 3 });
        assert_eq!(decode_trace(&bytes), Ok(TraceFile { records, end }));
        assert!(bytes.len() < 75, "{}", bytes.len());
    }

    #[test]
    fn a_trace_that_is_cut_short_says_how_much_is_good() {
        let (bytes, records) = sample();
        let begin = MAGIC.len() + 1;
        let mut whole = 0;
        for len in 0..bytes.len() {
            match decode_trace(&bytes[..len]) {
                Err(TraceError::NoTrace) => assert!(len < MAGIC.len()),
                Err(TraceError::CutShort(good)) => assert!(good as usize <= whole && len >= begin - 1),
                Ok(read) => {
                    assert_eq!(read.records, records[..whole], "a cut between two records");
                    assert_eq!(read.end, None, "the cut is noticed");
                    whole += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(whole, records.len() + 1, "after the header and after each operation");
        assert_eq!(decode_trace(b"FOREBAY-TRACE\n\x09"), Err(TraceError::Newer(9)));
        assert_eq!(decode_trace(&[&bytes[..], &[0]].concat()), Err(TraceError::CutShort(5)));
        let old = [MAGIC, &[WITHOUT_END], &bytes[begin..bytes.len() - 5]].concat();
        assert_eq!(decode_trace(&old), Ok(TraceFile { records, end: None }));
        let endless = [MAGIC, &[VERSION], &[0xff; 20]].concat();
        assert_eq!(decode_trace(&endless), Err(TraceError::CutShort(0)));
    }

    #[test]
    fn numbers_and_lengths_that_no_recorder_writes_are_damage() {
        let kind = Kind::Read as u8;
        let records = |records: &[&[u8]]| decode_trace(&[MAGIC, &[VERSION], &records.concat()].concat());
        let good = [0, 0, kind, 1, 0, 1];
        assert!(records(&[&good, &[0, 1, kind, 2, 0, 1]]).is_ok());
        let most = [0xff, 0xff, 0xff, 0xff, 0x0f];
        for damaged in [
            // Client 2 and file 2 after client 0 and file 0.
            &[0, 2, kind, 1, 0, 1][..],
            &[0, 0, kind, 3, 0, 1],
            &[&[0], &most[..], &[kind, 1, 0, 1]].concat(),
            &[&[0, 0, kind], &most[..], &[0, 1]].concat(),
            &[&[0, 0, kind, 1, 0], &most[..]].concat(),
            // An end with another number of operations.
            &[0, 0, END, 2, 0],
        ] {
            assert_eq!(records(&[&good, damaged]), Err(TraceError::CutShort(1)), "{damaged:?}");
        }
    }
}
