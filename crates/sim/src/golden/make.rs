//! Makes the pools of the images, and damages them.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device as _, Durability, Key, Time};
use forebay_engine::pool::{Pool, PoolError};
use forebay_engine::{Engine, Env, Mode, OpenError, Recovered, Settings};
use forebay_oplog::Record;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::image::{Image, SIZE};
use crate::backing::Store;
use crate::content::Content;
use crate::disk::Disk;
use crate::executor::Executor;
use crate::rng::Rng;

const LIMIT: Duration = Duration::from_secs(3600);
/// The byte that fills the backing files: no client wrote it.
pub(super) const BACKING: u8 = 0xee;

/// A machine with two devices and a backing store.
pub(super) struct Rig {
    pub(super) executor: Executor,
    disks: [Disk; 2],
    pub(super) store: Store,
}

/// The reason for which a pool was refused.
#[derive(Debug)]
pub(super) enum Refused {
    Pool(PoolError),
    Engine(OpenError),
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

impl Rig {
    /// Makes two empty devices and an empty backing store. The seed is fixed, so that every run makes equal images.
    pub(super) fn new() -> Self {
        let mut rng = Rng::new(1);
        let executor = Executor::new(rng.fork());
        let hits = Arc::default();
        let disks = ["a", "b"].map(|name| Disk::new(&executor, name, SIZE, rng.fork(), &hits));
        let store = Store::new(&executor, 1 << 30, rng.fork(), &hits);
        Rig { executor, disks, store }
    }

    /// Makes a machine with the devices of an image.
    pub(super) fn with(image: &Image) -> Self {
        let rig = Rig::new();
        for (disk, blocks) in rig.disks.iter().zip(&image.0) {
            for (number, block) in blocks {
                let data = Slice::from(Buffer::from_bytes(block));
                rig.run(disk.write(number * BLOCK as u64, data, Durability::Now)).unwrap();
            }
        }
        rig
    }

    /// Returns the contents of the devices.
    pub(super) fn image(&self) -> Image {
        let mut image = Image::default();
        for (disk, blocks) in self.disks.iter().zip(&mut image.0) {
            for number in disk.written() {
                let (buffer, result) = self.run(disk.read(number * BLOCK as u64, Buffer::zeroed(1)));
                result.unwrap();
                if buffer.iter().any(|byte| *byte != 0) {
                    blocks.insert(number, buffer.to_vec());
                }
            }
        }
        image
    }

    pub(super) fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        self.executor.block_on(LIMIT, future).unwrap()
    }

    /// Makes a backing file of `size` bytes of [`BACKING`].
    pub(super) fn file(&self, name: &str, size: u64) {
        let mut content = Content::default();
        content.resize(size);
        for block in 0..size.div_ceil(BLOCK as u64) {
            content.put(block, Arc::new([BACKING; BLOCK]));
        }
        self.store.create(&key(name), content);
    }

    /// Opens the pool, or formats it. Nothing is destaged by itself.
    pub(super) fn open(&self, format: bool) -> Result<(Arc<Engine>, Recovered), Refused> {
        let devices: Vec<_> = self.disks.iter().map(|disk| Arc::new(disk.clone()) as _).collect();
        let mut random = Rng::new(2);
        let mut uuid = move || u128::from(random.draw()) << 64 | u128::from(random.draw());
        let pool = match format {
            true => self.run(async move { Pool::format(devices, &mut uuid, false).await }),
            false => self.run(Pool::open(devices)),
        };
        let env = Env {
            clock: Arc::new(self.executor.clone()),
            spawn: Arc::new(self.executor.clone()),
            backing: Arc::new(self.store.clone()),
            witness: None,
            deliver: Arc::new(|batch| batch()),
            events: Arc::new(|_| ()),
        };
        let settings = Settings {
            mode: Mode::WriteBack,
            destage_after: LIMIT,
            ram: 1 << 20,
            scrub_every: LIMIT,
            ..Settings::default()
        };
        self.run(Engine::open(pool.map_err(Refused::Pool)?, env, settings)).map_err(Refused::Engine)
    }
}

/// Returns a pool that was used until its power failed.
pub(super) fn used() -> Image {
    let rig = Rig::new();
    let names = ["first", "second", "third", "removed"];
    names.iter().for_each(|name| rig.file(name, 8 * BLOCK as u64));
    let (engine, _) = rig.open(true).unwrap();
    let theirs = engine.clone();
    rig.run(async move {
        let [first, second, third, removed] = names.map(|name| theirs.object(&key(name), 8 * BLOCK as u64));
        let time = |sec| Time { sec, nsec: 5 };
        let write = async |object, offset, len, byte| {
            let frame = theirs.write(object, offset, &vec![byte; len], time(i64::from(byte))).await.unwrap();
            theirs.commit(frame).await.unwrap();
        };
        // These blocks become clean, and leave the log.
        write(&first, 0, 6 * BLOCK, 0x11).await;
        write(&removed, 0, BLOCK, 0x66).await;
        theirs.flush().await.unwrap();
        // These blocks stay dirty.
        write(&second, 0, 4 * BLOCK, 0x22).await;
        write(&second, BLOCK as u64 + 100, 200, 0x23).await;
        write(&third, 0, 3 * BLOCK, 0x33).await;
        theirs.truncate(&third, 5000, time(0x34)).await.unwrap();
        theirs.forget(&removed).await;
        for note in notes_kept() {
            theirs.note(&note).await.unwrap();
        }
        // A write past the log leaves a copy that does not count any more.
        theirs.set_mode(Mode::WriteAround);
        write(&first, 2 * BLOCK as u64, BLOCK, 0x44).await;
        theirs.set_mode(Mode::WriteBack);
        write(&first, 40_000, 10, 0x55).await;
    });
    drop(engine);
    rig.executor.reset();
    rig.disks.iter().for_each(Disk::kill);
    rig.image()
}

/// Returns one record of each kind that the server keeps in the log.
pub(super) fn notes_kept() -> Vec<Vec<u8>> {
    let checkpoint = Record::Checkpoint { filesystem: 2, upto: 1 << 40 };
    let settled = Record::Settled { upto: 7, void: vec![9, 12] };
    vec![settled.encode(), checkpoint.encode()]
}

/// Gives the block at `offset` a right checksum again.
pub(super) fn seal(image: &mut Image, device: usize, offset: u64) {
    let block = image.0[device].get_mut(&(offset / BLOCK as u64)).unwrap();
    let magic = u64::from_le_bytes(block[..8].try_into().unwrap());
    let checksum = xxh3_64_with_seed(&block[16..], magic);
    block[8..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Changes some bytes of both superblocks of both devices.
pub(super) fn superblocks(image: &mut Image, change: impl Fn(&mut [u8])) {
    for device in 0..2 {
        for offset in [0, SIZE - BLOCK as u64] {
            let block = image.0[device].get_mut(&(offset / BLOCK as u64)).unwrap();
            change(block);
            seal(image, device, offset);
        }
    }
}

/// Returns the offsets of a device's blocks that begin with `magic`.
pub(super) fn all_of(image: &Image, device: usize, magic: &[u8; 8]) -> Vec<u64> {
    let found = image.0[device].iter().filter(|(_, block)| block.starts_with(magic));
    found.map(|(number, _)| number * BLOCK as u64).collect()
}

/// Flips a bit of the block at `offset`.
pub(super) fn rot(image: &mut Image, device: usize, offset: u64) {
    image.line(device, offset + 48)[3] ^= 4;
}
