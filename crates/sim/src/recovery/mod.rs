//! A test for each row of recovery's table of cases (docs/on-disk-format.md), on devices whose contents are put
//! together block by block. The name of a test is the label of its row.

mod label;
pub(crate) mod log;
pub(crate) mod records;
pub(crate) mod segments;

use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::format::{
    Body, Facts, Footer, FrameHead, Place, Record, SegmentHeader, SegmentKind, bind, body_len, content_hash,
    frame, key_hash,
};
use forebay_engine::io::{Device as _, Durability, Key};
use forebay_engine::pool::{Pool, PoolError, Superblock, segment_offset};
use forebay_engine::{Engine, Env, Event, Mode, OpenError, Recovered, Settings};

use crate::backing::Store;
use crate::content::Content;
use crate::disk::Disk;
use crate::executor::{Executor, Stop};
use crate::rng::Rng;

const LIMIT: Duration = Duration::from_secs(600);
const SIZE: u64 = 64 << 20;
/// Bytes of a segment of such devices, and then its blocks.
const SEGMENT: u32 = 1 << 20;
const SLOTS: u16 = 256;
/// The pool's epoch, and the epoch in which its devices became members.
const EPOCH: u64 = 5;
const SINCE: u64 = 3;
/// The byte that fills the backing file.
const BACKING: u8 = 0xee;

/// A pool that was never in service.
struct Rig {
    executor: Executor,
    disks: Vec<Disk>,
    store: Store,
    events: Arc<Mutex<Vec<Event>>>,
    pool: u128,
}

/// A segment of the log, at one place on every device that it is written to.
#[derive(Clone, Copy)]
struct Segment {
    seq: u64,
    previous: u64,
    first_frame: u64,
    epoch: u64,
}

/// Makes segment `seq` of a log without gaps.
fn segment(seq: u64, first_frame: u64) -> Segment {
    Segment { seq, previous: seq - 1, first_frame, epoch: EPOCH }
}

/// A frame. Its user record is its number.
#[derive(Clone)]
struct Frame {
    seq: u64,
    start: u16,
    epoch: u64,
    tail: u64,
    /// Segments before this one are not in use.
    oldest: u64,
    /// Blocks of the file from `block` on, each filled with a byte.
    data: Vec<u8>,
    block: u64,
    /// Further records, of the object with index 0.
    records: Vec<Record>,
    size: u64,
}

/// Makes frame `seq` at slot `start`, with no data: one block.
fn frame_at(seq: u64, start: u16) -> Frame {
    let (data, records) = (Vec::new(), Vec::new());
    Frame { seq, start, epoch: EPOCH, tail: 1, oldest: 0, data, block: 0, records, size: 16 * BLOCK as u64 }
}

impl Frame {
    /// Adds blocks of the file from `block` on.
    fn with(self, block: u64, data: &[u8]) -> Self {
        Frame { block, data: data.to_vec(), ..self }
    }

    fn recording(self, record: Record) -> Self {
        Frame { records: vec![record], ..self }
    }
}

/// The result of opening a pool.
struct Opened {
    engine: Arc<Engine>,
    recovered: Recovered,
}

fn file() -> Key {
    Key::new(b"file").unwrap()
}

impl Rig {
    /// Makes one or two formatted devices with a fixed epoch, and a file of 16 blocks in the backing store. Tests
    /// then write their own segments to the devices.
    fn new(devices: usize) -> Self {
        let mut rng = Rng::new(1);
        let executor = Executor::new(rng.fork());
        let hits = Arc::default();
        let names = ["a", "b"].iter().take(devices);
        let disks: Vec<_> = names.map(|name| Disk::new(&executor, name, SIZE, rng.fork(), &hits)).collect();
        let store = Store::new(&executor, 1 << 30, rng.fork(), &hits);
        let mut content = Content::default();
        content.resize(16 * BLOCK as u64);
        (0..16).for_each(|block| content.put(block, Arc::new([BACKING; BLOCK])));
        store.create(&file(), content);
        let mut rig = Rig { executor, disks, store, events: Arc::default(), pool: 0 };
        let members: Vec<_> = rig.disks.iter().map(|disk| Arc::new(disk.clone()) as _).collect();
        let format = async move {
            let mut uuid = || u128::from(rng.draw()) << 64 | u128::from(rng.draw());
            Pool::format(members, &mut uuid, false).await
        };
        rig.pool = rig.run(format).unwrap().uuid;
        rig.superblocks(|superblock| {
            (superblock.epoch, superblock.in_use) = (EPOCH, EPOCH);
            superblock.members.iter_mut().for_each(|member| member.since_epoch = SINCE);
        });
        rig
    }

    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.executor.block_on(LIMIT, future).unwrap()
    }

    /// Changes both superblocks of every device.
    fn superblocks(&self, change: impl Fn(&mut Superblock)) {
        for disk in &self.disks {
            let (block, result) = self.run(disk.read(0, Buffer::zeroed(1)));
            result.unwrap();
            let mut superblock = Superblock::decode(&block).unwrap();
            change(&mut superblock);
            superblock.generation += 1;
            for offset in [0, SIZE - BLOCK as u64] {
                self.put(disk, offset, superblock.encode());
            }
        }
    }

    fn put(&self, disk: &Disk, offset: u64, data: Buffer) {
        self.run(disk.write(offset, Slice::from(data), Durability::Now)).unwrap();
    }

    /// Returns the place of a slot of segment `seq`, on every device that has the segment.
    fn place(seq: u64, slot: u16) -> u64 {
        segment_offset(seq as u32, SEGMENT) + u64::from(slot) * BLOCK as u64
    }

    /// Writes a segment's header to these devices.
    fn header(&self, segment: Segment, legs: &[usize]) {
        self.header_at(segment, segment.seq, legs);
    }

    /// Writes a segment's header to the place of segment `number`.
    fn header_at(&self, segment: Segment, number: u64, legs: &[usize]) {
        let Segment { seq, previous, first_frame, epoch } = segment;
        for leg in legs {
            let place = |device: usize| Place { device: device as u16, segment: number as u32 };
            let header = SegmentHeader {
                pool: self.pool,
                epoch,
                seq,
                position: seq,
                kind: SegmentKind::Log,
                here: place(*leg),
                peer: legs.iter().find(|other| *other != leg).map(|other| place(*other)),
                first_frame,
                previous,
            };
            let mut block = Buffer::zeroed(1);
            header.encode(&mut block).unwrap();
            self.put(&self.disks[*leg], segment_offset(number as u32, SEGMENT), block);
        }
    }

    /// Writes a frame into segment `seq` of these devices.
    fn frame(&self, seq: u64, frame: &Frame, legs: &[usize]) {
        self.frame_at(seq, seq, frame, legs);
    }

    fn frame_at(&self, seq: u64, number: u64, frame: &Frame, legs: &[usize]) {
        self.frame_of(seq, number, frame, &self.body(seq, frame), legs);
    }

    /// Writes a frame with these records.
    fn frame_of(&self, seq: u64, number: u64, frame: &Frame, body: &Body, legs: &[usize]) {
        let Frame { start, epoch, tail, oldest, .. } = *frame;
        let spill = frame::spill_blocks(body_len(body));
        let mut bytes = Buffer::zeroed(1 + frame.data.len() + spill);
        let data = bytes[BLOCK..].chunks_mut(BLOCK).zip(&frame.data);
        data.for_each(|(block, byte)| block.fill(*byte));
        let head = FrameHead {
            pool: self.pool,
            epoch,
            seq: frame.seq,
            acked: frame.seq - 1,
            tail,
            oldest_position: oldest,
            oldest_seq: 0,
            segment_seq: seq,
            start,
            data_blocks: frame.data.len() as u16,
            tail_blocks: spill as u16,
        };
        frame::encode(&head, body, &mut bytes).unwrap();
        let offset = segment_offset(number as u32, SEGMENT) + u64::from(start) * BLOCK as u64;
        legs.iter().for_each(|leg| self.put(&self.disks[*leg], offset, Buffer::from_bytes(&bytes)));
    }

    /// Returns the records of a frame in segment `seq`.
    fn body(&self, seq: u64, frame: &Frame) -> Body {
        let mut records = frame.records.clone();
        let checksum = |(at, byte): (u16, &u8)| {
            let (hash, block) = (content_hash(&[*byte; BLOCK]), frame.block + u64::from(at));
            bind(hash, self.pool, key_hash(&file()), block, seq, frame.start + 1 + at)
        };
        if !frame.data.is_empty() {
            let (block, slot) = (frame.block, frame.start + 1);
            let checksums = (0..).zip(&frame.data).map(checksum).collect();
            records.push(Record::Data { object: 0, block, slot, checksums });
        }
        let facts = Facts { key: file(), size: frame.size, mtime: None };
        let objects = if records.is_empty() { Vec::new() } else { vec![facts] };
        records.push(Record::UserRecord { bytes: frame.seq.to_le_bytes().into() });
        Body { objects, records }
    }

    /// Writes the footer of segment `seq`, which holds one frame, to these devices.
    fn footer(&self, seq: u64, frame: &Frame, legs: &[usize]) {
        let (pool, body) = (self.pool, self.body(seq, frame));
        let footer = Footer { pool, segment_seq: seq, epoch: EPOCH, body }.encode(SLOTS).unwrap();
        let slot = SLOTS - (footer.len() / BLOCK) as u16;
        legs.iter().for_each(|leg| {
            self.put(&self.disks[*leg], Rig::place(seq, slot), Buffer::from_bytes(&footer));
        });
    }

    /// Returns the block at a slot of segment `seq` of a device.
    fn block(&self, device: usize, seq: u64, slot: u16) -> Vec<u8> {
        let (block, result) = self.run(self.disks[device].read(Rig::place(seq, slot), Buffer::zeroed(1)));
        result.unwrap();
        block.to_vec()
    }

    fn rot(&self, device: usize, seq: u64, slot: u16) {
        self.disks[device].rot_at(Rig::place(seq, slot));
    }

    /// Recovers the pool and puts it into service.
    fn open(&self) -> Result<Opened, OpenError> {
        self.open_within(LIMIT).unwrap()
    }

    /// Recovers the pool and puts it into service, if that takes no longer than `limit`.
    fn open_within(&self, limit: Duration) -> Result<Result<Opened, OpenError>, Stop> {
        let present = self.disks.iter().filter(|disk| !disk.is_gone());
        let devices = present.map(|disk| Arc::new(disk.clone()) as _).collect();
        let events = self.events.clone();
        let env = Env {
            clock: Arc::new(self.executor.clone()),
            spawn: Arc::new(self.executor.clone()),
            backing: Arc::new(self.store.clone()),
            witness: None,
            deliver: Arc::new(|batch| batch()),
            events: Arc::new(move |event| events.lock().push(event)),
        };
        let settings = Settings {
            mode: Mode::WriteBack,
            destage_after: LIMIT * 10,
            scrub_every: LIMIT * 10,
            ..Settings::default()
        };
        let open = async move {
            let pool = Pool::open(devices).await?;
            let (engine, recovered) = Engine::open(pool, env, settings).await?;
            Ok(Opened { engine, recovered })
        };
        self.executor.block_on(limit, open)
    }

    /// Returns the missing frame for which the pool is not opened.
    fn hole(&self) -> u64 {
        match self.open() {
            Err(OpenError::Hole { frame }) => frame,
            Err(error) => panic!("{error}"),
            Ok(opened) => panic!("it opens with {:?}", opened.notes()),
        }
    }

    /// Kills the process: no task goes on, and no write to the backing store is in flight any more.
    fn kill(&self) {
        self.executor.reset();
        self.store.kill();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.executor.reset();
    }
}

impl Opened {
    /// Returns the numbers of the frames that count, which are the frames with a user record.
    fn notes(&self) -> Vec<u64> {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        self.recovered.notes.iter().map(|note| number(&note.bytes)).collect()
    }

    /// Returns the byte that fills a block of the file.
    fn read(&self, rig: &Rig, block: u64) -> Result<u8, forebay_engine::Error> {
        let (engine, object) = (self.engine.clone(), self.engine.object(&file(), 16 * BLOCK as u64));
        let read = async move {
            let mut contents = vec![0; BLOCK];
            engine.read(&object, block * BLOCK as u64, &mut contents).await.map(|_| contents)
        };
        let contents = rig.run(read)?;
        assert!(contents.iter().all(|byte| *byte == contents[0]), "{:?}", &contents[..16]);
        Ok(contents[0])
    }
}
