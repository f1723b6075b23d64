//! Seeds of the contents of cache devices.

use forebay_engine::buffer::BLOCK;
use forebay_engine::format::{
    Body, Facts, Footer, FrameHead, Place, Record, SegmentHeader, SegmentKind, body_len, frame,
};
use forebay_engine::io::{Key, Time};
use forebay_engine::pool::{Entry, State, Superblock};

const POOL: u128 = 7;

/// Removes the zeros at the end. The targets add them again.
fn trimmed(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(len);
    bytes
}

pub(crate) fn superblocks() -> Vec<Vec<u8>> {
    let entry = |uuid, state| Entry { uuid, segments: 63, state, since_epoch: 1 };
    let one = vec![entry(1, State::Active)];
    let three = vec![entry(1, State::Active), entry(2, State::Lost), entry(3, State::Removed)];
    let superblock = |(members, owner): (_, &[u8])| Superblock {
        pool: POOL,
        device: 1,
        index: 0,
        segment_size: 1 << 24,
        epoch: 3,
        in_use: 2,
        generation: 8,
        optional: 0,
        reach: Default::default(),
        newest: 7,
        durable: 9,
        owner: owner.to_vec(),
        members,
    };
    [(one, &[][..]), (three, b"an owner")].map(|pool| trimmed(superblock(pool).encode().to_vec())).into()
}

pub(crate) fn segment_headers() -> Vec<Vec<u8>> {
    let peer = Some(Place { device: 1, segment: 4 });
    [(SegmentKind::Log, peer), (SegmentKind::Log, None), (SegmentKind::Clean, None)]
        .map(|(kind, peer)| {
            let here = Place { device: 0, segment: 3 };
            let header = SegmentHeader {
                pool: POOL,
                epoch: 2,
                seq: 9,
                position: 9,
                kind,
                here,
                peer,
                first_frame: 50,
                previous: 8,
            };
            let mut block = vec![0; BLOCK];
            header.encode(&mut block).unwrap_or_else(|error| unreachable!("{error}"));
            trimmed(block)
        })
        .into()
}

/// Returns bodies with every kind of record. The last body needs more than one block.
fn bodies() -> [Body; 3] {
    let facts = |key: &[u8], mtime| {
        let key = Key::new(key).unwrap_or_else(|| unreachable!("keys of the right length"));
        Facts { key, size: 1 << 20, mtime }
    };
    let time = Time { sec: 1_700_000_000, nsec: 5 };
    let objects = vec![facts(b"a", None), facts(&[1; 64], Some(time))];
    let few = vec![
        Record::Data { object: 0, block: 1, slot: 2, checksums: [1, 2, 3].into_iter().collect() },
        Record::Truncate { object: 1, size: 100 },
        Record::Truncated { object: 1 },
        Record::Invalidate { object: 0, block: 5, count: u64::MAX },
        Record::Destaged { object: 0, block: 0, count: 9 },
        Record::Forget { object: 1 },
        Record::UserRecord { bytes: (*b"a note").into() },
    ];
    let many = few.iter().cycle().take(500).cloned().collect();
    [Body::default(), Body { objects: objects.clone(), records: few }, Body { objects, records: many }]
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    bodies()
        .map(|body| {
            let tail_blocks = frame::spill_blocks(body_len(&body)) as u16;
            let head = FrameHead {
                pool: POOL,
                epoch: 2,
                seq: 51,
                acked: 50,
                tail: 8,
                oldest_position: 7,
                oldest_seq: 6,
                segment_seq: 9,
                start: 1,
                data_blocks: 4,
                tail_blocks,
            };
            let mut buffer = vec![0; head.blocks() * BLOCK];
            frame::encode(&head, &body, &mut buffer).unwrap_or_else(|error| unreachable!("{error}"));
            buffer.drain(BLOCK..5 * BLOCK);
            trimmed(buffer)
        })
        .into()
}

pub(crate) fn footers() -> Vec<Vec<u8>> {
    bodies()
        .map(|body| {
            let footer = Footer { pool: POOL, segment_seq: 9, epoch: 2, body };
            let blocks = footer.encode(16384).unwrap_or_else(|error| unreachable!("{error}"));
            let (spilled, last) = blocks.split_at(blocks.len() - BLOCK);
            trimmed([last, spilled].concat())
        })
        .into()
}
