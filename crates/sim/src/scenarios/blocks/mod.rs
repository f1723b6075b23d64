//! Worlds with a block volume: clients write, flush, discard and read it, through crashes and the loss of a device.

pub(super) mod fua;
mod growth;
pub(super) mod link;
pub(super) mod mixed;
mod model;

use std::ops::Range;

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicU64, Ordering};
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Backing, BackingResult, Clock as _, Io, Key};
use forebay_volume::device::BackingDevice;
use forebay_volume::disk::{Disk as _, DiskError, Stability};
use forebay_volume::store::Store as AllStores;
use forebay_volume::volume::Volume;

use super::*;
use crate::backing::{Rates, Store};
use crate::content::Content;
use link::Link;
use mixed::{Bad, What};
use model::{Change, Model, SECTOR, fill, value};

/// The size of the device in bytes: its last block is not whole.
const SIZE: u64 = (1 << 20) + 3 * SECTOR as u64;
const UUID: u128 = 7;
const CLIENTS: u64 = 3;
/// Zeros of this number of bytes go past the log.
const ZEROS_PAST_THE_LOG: u64 = 512 << 10;
/// The stabilities of changes, by weight.
const STABILITIES: [Stability; 5] =
    [Stability::Durable, Stability::Logged, Stability::Unstable, Stability::Unstable, Stability::Unstable];

/// The backing device of the volume: a file of the virtual store, whose faults it has.
struct Virtual {
    store: Store,
    file: Key,
    /// The size in bytes.
    size: AtomicU64,
    /// True if discarded bytes read as zeros.
    zeroes: bool,
    /// The connection to the device, if it is on another host.
    link: Option<Link>,
    executor: crate::executor::Executor,
    /// True if clients ask for the holes. The device then takes its time to answer.
    is_mapped: bool,
    /// The number of questions for the allocated parts.
    asked: AtomicU64,
}

impl Virtual {
    /// Ends the connection, perhaps. The server then forgets what was not synced. Returns true if it did.
    fn may_lose(&self) -> bool {
        let lost = self.link.as_ref().is_some_and(Link::may_end);
        if lost {
            self.store.lose_unsynced(&self.file);
        }
        lost
    }
}

impl BackingDevice for Virtual {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn is_rotational(&self) -> bool {
        false
    }

    fn losses(&self) -> u64 {
        self.link.as_ref().map_or(0, Link::losses)
    }

    fn is_remote(&self) -> bool {
        self.link.is_some()
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        self.may_lose();
        self.store.read(&self.file, offset, buffer)
    }

    fn write(&self, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        assert!(offset + data.len() as u64 <= self.size(), "a write makes a device longer");
        self.may_lose();
        let write = self.store.write(&self.file, offset, data);
        match &self.link {
            None => write,
            Some(link) => link.answer(write),
        }
    }

    fn sync(&self) -> Io<BackingResult<()>> {
        self.may_lose();
        if self.link.as_ref().is_some_and(Link::tells_the_sync) {
            return Box::pin(async { Err(link::LOST) });
        }
        let sync = self.store.sync(vec![self.file.clone()]);
        let lost = self.link.as_ref().map(Link::lost_since);
        Box::pin(async move {
            let result = sync.await.pop().unwrap_or(Ok(()));
            // The answer to a sync comes on its own connection.
            if lost.is_some_and(|lost| lost()) { Err(link::LOST) } else { result }
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Io<BackingResult<()>> {
        if self.zeroes { self.write_zeroes(offset, len, false) } else { Box::pin(async { Ok(()) }) }
    }

    fn write_zeroes(&self, offset: u64, len: u64, _: bool) -> Io<BackingResult<()>> {
        let zeros = Arc::new(Buffer::zeroed((len as usize).div_ceil(BLOCK)));
        self.store.write(&self.file, offset, Slice::new(zeros, 0..len as usize))
    }

    fn allocated(&self, offset: u64, len: u64, most: usize) -> Io<BackingResult<Vec<Range<u64>>>> {
        if self.is_remote() {
            return Box::pin(async move { Ok(std::iter::once(offset..offset + len).collect()) });
        }
        let block = BLOCK as u64;
        let blocks = offset / block..(offset + len).div_ceil(block);
        let part = |at: u64| (at * block).max(offset)..((at + 1) * block).min(offset + len);
        let content = self.store.current(&self.file).unwrap_or_default();
        let is_hole = |at: u64| content.page(at).iter().all(|byte| *byte == 0);
        let found = blocks.filter(|at| !is_hole(*at)).map(part).take(most).collect();
        // The answer may be old, and blocks may be destaged meanwhile.
        let late = Duration::from_millis(10 * (self.asked.fetch_add(1, Ordering::Relaxed) % 4));
        let sleep = self.is_mapped.then(|| self.executor.sleep(late));
        Box::pin(async move {
            if let Some(sleep) = sleep {
                sleep.await;
            }
            Ok(found)
        })
    }
}

/// A world with a volume.
struct Blocks {
    world: World,
    model: Arc<Mutex<Model>>,
    device: Arc<Virtual>,
    /// True if requests may fail with EIO.
    fails: bool,
    /// A range of the device that fails now and then.
    bad: Option<Arc<Bad>>,
}

impl Blocks {
    fn new(seed: u64, zeroes: bool) -> Self {
        Blocks::with_link(seed, zeroes, |_| None)
    }

    /// Makes a world with a block volume over a virtual backing device. The device `zeroes` discarded ranges or keeps
    /// them.
    fn with_link(seed: u64, zeroes: bool, link: impl FnOnce(&mut World) -> Option<Link>) -> Self {
        Blocks::with_plan(seed, zeroes, link, |_| ())
    }

    /// Makes a world whose plan `change` modifies.
    fn with_plan(
        seed: u64,
        zeroes: bool,
        link: impl FnOnce(&mut World) -> Option<Link>,
        change: impl FnOnce(&mut Plan),
    ) -> Self {
        let mut world = world_with(seed, 2, |plan| {
            plan.destage_after = Duration::from_millis(if seed.is_multiple_of(3) { 20 } else { 600_000 });
            change(plan);
        });
        let store = world.shared.store.clone();
        let file = Key::new(b"\0the backing device").unwrap();
        let mut content = Content::default();
        content.resize(SIZE);
        store.create(&file, content);
        let link = link(&mut world);
        let executor = world.shared.executor.clone();
        let device = Arc::new(Virtual {
            store: store.clone(),
            file,
            size: AtomicU64::new(SIZE),
            zeroes,
            link,
            executor,
            is_mapped: seed % 2 == 1,
            asked: AtomicU64::new(0),
        });
        let stores = AllStores::new(Arc::new(store), Vec::new());
        stores.add(UUID, "a volume", SIZE, Some(device.clone()));
        world.backing = Some(Arc::new(stores));
        Blocks { world, model: Arc::default(), device, fails: false, bad: None }
    }

    /// Starts the world and returns the block volume, in this mode or in that of the engine.
    fn open(&mut self, mode: Option<Mode>) -> Arc<Volume> {
        let engine = self.world.start_through(Vec::new()).unwrap();
        Volume::new(&engine, UUID, self.device.clone(), mode, false)
    }

    /// Makes client `number`, which has a part of the volume to itself. So its changes do not depend on the order of
    /// the clients.
    fn client(&mut self, volume: &Arc<Volume>, number: u64) -> BlockClient {
        let (model, volume, executor) =
            (self.model.clone(), volume.clone(), self.world.shared.executor.clone());
        let part = SIZE / SECTOR as u64 / CLIENTS / 8 * 8;
        let end = if number + 1 == CLIENTS { SIZE / SECTOR as u64 } else { (number + 1) * part };
        let rng = self.world.rng.fork();
        BlockClient {
            model,
            volume,
            executor,
            rng,
            own: number * part..end,
            maps: self.device.is_mapped,
            fails: self.fails,
            bad: self.bad.clone(),
            failure: None,
        }
    }

    /// Reads everything.
    fn check(&mut self, volume: &Arc<Volume>) -> Result<(), String> {
        let mut client = self.client(volume, 0);
        let reading = async move {
            let all = SIZE / SECTOR as u64;
            for first in (0..all).step_by(64) {
                client.read(first..(first + 64).min(all)).await;
            }
            client.failure
        };
        match self.world.shared.executor.block_on(LIMIT, reading) {
            Ok(failure) => failure.map_or(Ok(()), Err),
            Err(stop) => Err(format!("the volume does not answer: {stop:?}")),
        }
    }

    /// Has clients work until they end, or until a crash after `steps` steps.
    fn work(&mut self, volume: &Arc<Volume>, operations: u32, steps: Option<u64>) -> Result<(), String> {
        let failures = Arc::new(Mutex::new((0, Vec::new())));
        for number in 0..CLIENTS {
            let (mut client, failures) = (self.client(volume, number), failures.clone());
            let run = async move {
                for _ in 0..operations {
                    client.act().await;
                    if client.failure.is_some() {
                        break;
                    }
                }
                let mut failures = failures.lock();
                failures.0 += 1;
                failures.1.extend(client.failure);
            };
            self.world.shared.executor.start("client", Box::pin(run));
        }
        self.world.shared.executor.crash_in(steps);
        let all = failures.clone();
        let stop = until(&self.world, move || all.lock().0 == CLIENTS);
        self.world.shared.executor.crash_in(None);
        if let Some(failure) = failures.lock().1.first() {
            return Err(failure.clone());
        }
        match stop {
            Stop::Done | Stop::Crashed => Ok(()),
            stop => Err(format!("the volume does not answer: {stop:?}")),
        }
    }
}

struct BlockClient {
    model: Arc<Mutex<Model>>,
    volume: Arc<Volume>,
    executor: crate::executor::Executor,
    rng: Rng,
    /// The sectors that no other client changes.
    own: Range<u64>,
    maps: bool,
    fails: bool,
    bad: Option<Arc<Bad>>,
    failure: Option<String>,
}

impl BlockClient {
    /// Carries out one operation on the client's part of the volume: a write, zeroes, a discard, a flush, a read, or
    /// a rest of up to 30 ms.
    async fn act(&mut self) {
        let range = self.range();
        let stability = self.rng.pick(&STABILITIES);
        match self.rng.below(12) {
            0..=4 => self.change(range, Change::Put, stability).await,
            5 => self.change(range, Change::Zero, stability).await,
            6 => self.change(range, Change::Discard, stability).await,
            7 | 8 => self.flush().await,
            10 | 11 if self.maps => self.map(range).await,
            9 | 10 => self.read(range).await,
            _ => {
                let rest = self.rng.time(Duration::ZERO, Duration::from_millis(30));
                self.executor.sleep(rest).await;
            }
        }
    }

    /// Returns a range of sectors in the client's part. Half of the ranges begin at a block's start.
    fn range(&mut self) -> Range<u64> {
        let longest = self.rng.pick(&[1, 3, 8, 9, 40, 200, 640]);
        let len = self.rng.within(1, longest).min(self.own.end - self.own.start);
        let start = self.rng.within(self.own.start, self.own.end - len);
        let start = if self.rng.chance(5000) { start / 8 * 8 } else { start };
        start.max(self.own.start)..(start + len).min(self.own.end)
    }

    /// Changes sectors and tells the model. A discard changes only the blocks that lie in the range as a whole.
    async fn change(&mut self, sectors: Range<u64>, change: Change, stability: Stability) {
        // A discard covers whole blocks only. The last block of the device is whole at the device's end.
        let changed = match change {
            Change::Discard => {
                let end = if sectors.end == SIZE / SECTOR as u64 { sectors.end } else { sectors.end / 8 * 8 };
                sectors.start.next_multiple_of(8)..end
            }
            _ => sectors.clone(),
        };
        let changed = changed.start..changed.end.max(changed.start);
        let number = self.model.lock().begin(changed.clone(), change);
        let (offset, len) = (sectors.start * SECTOR as u64, (sectors.end - sectors.start) * SECTOR as u64);
        let result = match change {
            Change::Put => {
                let mut data = vec![0; len as usize];
                for (sector, bytes) in sectors.clone().zip(data.chunks_exact_mut(SECTOR)) {
                    fill(bytes, value(number, sector));
                }
                self.volume.write(offset, &data, stability).await
            }
            Change::Zero => self.volume.write_zeroes(offset, len, false, stability).await,
            Change::Discard => self.volume.discard(offset, len, stability).await,
        };
        match result {
            Ok(()) => self.model.lock().end(number, changed, stability),
            Err(_) if self.is_bad(&sectors, What::Change) => self.model.lock().failed(number, changed),
            Err(error) => self.failed("a change", error),
        }
    }

    /// Flushes the volume. The changes that were answered before are durable after the flush.
    async fn flush(&mut self) {
        let answered = self.model.lock().answered();
        match self.volume.flush().await {
            Ok(()) => self.model.lock().durable(&answered),
            Err(error) => self.failed("a flush", error),
        }
    }

    /// Reads sectors, half of the time first without waiting, and checks the bytes against the model.
    async fn read(&mut self, sectors: Range<u64>) {
        let mut buffer = vec![0xee; (sectors.end - sectors.start) as usize * SECTOR];
        let offset = sectors.start * SECTOR as u64;
        let ready = self.rng.chance(5000) && self.volume.try_read(offset, &mut buffer) == Ok(true);
        if !ready && let Err(error) = self.volume.read(offset, &mut buffer).await {
            if !self.is_bad(&sectors, What::Read) {
                self.failed("a read", error);
            }
            return;
        }
        self.bad.iter().for_each(|bad| bad.was_read(&sectors));
        if let Err(failure) = self.model.lock().check(sectors.start, &buffer) {
            self.failure = Some(failure);
        }
    }

    /// Checks that zeros are where the volume says so.
    async fn map(&mut self, sectors: Range<u64>) {
        let (mut at, end) = (sectors.start * SECTOR as u64, sectors.end * SECTOR as u64);
        match self.volume.extents(at, end - at, 8).await {
            Err(_) if self.is_bad(&sectors, What::Read) => {}
            Err(error) => self.failed("a map", error),
            Ok(extents) if extents.is_empty() => self.failure = Some("a map is empty".into()),
            Ok(extents) => {
                for extent in extents {
                    // Parts of a sector have the sector's contents.
                    let checked = at / SECTOR as u64..(at + extent.len) / SECTOR as u64;
                    let zeros = vec![0; (checked.end - checked.start) as usize * SECTOR];
                    if extent.zero
                        && let Err(failure) = self.model.lock().check(checked.start, &zeros)
                    {
                        self.failure = Some(format!("a hole of the map is none: {failure}"));
                    }
                    at += extent.len;
                }
            }
        }
    }

    /// Returns true if a request for these sectors may fail because the device has a bad range.
    fn is_bad(&self, sectors: &Range<u64>, what: What) -> bool {
        self.bad.as_ref().is_some_and(|bad| bad.may_fail(sectors, what))
    }

    /// Takes an error as a failure of the world, unless the world's backing device fails.
    fn failed(&mut self, what: &str, error: DiskError) {
        if !self.fails {
            self.failure = Some(format!("{what} failed: {error}"));
        }
    }
}

/// Sessions with clients end by crashes. One of two cache devices is missing after the last one.
fn through_crashes(seed: u64, mode: Option<Mode>) -> Result<(), String> {
    let mut blocks = Blocks::new(seed, seed.is_multiple_of(2));
    for session in 0..4 {
        let volume = blocks.open(mode);
        blocks.check(&volume)?;
        let steps = blocks.world.rng.within(1, 3000);
        blocks.work(&volume, 60, Some(steps))?;
        drop(volume);
        let how = blocks.world.rng.pick(&[Crash::Kill, Crash::PowerCut, Crash::PowerCut]);
        blocks.world.crash(how);
        blocks.model.lock().crash(how);
        if session == 3 {
            blocks.world.disks[seed as usize % 2].vanish();
        }
    }
    let volume = blocks.open(mode);
    blocks.check(&volume)?;
    blocks.work(&volume, 20, None)?;
    let leaving = volume.clone();
    let destaged = blocks.world.shared.executor.block_on(LIMIT, async move { leaving.destage().await });
    assert_eq!((destaged, volume.dirty_bytes()), (Ok(Ok(())), 0));
    blocks.check(&volume)?;
    // The device has everything.
    let content = blocks.world.shared.store.durable(&blocks.device.file).unwrap();
    for block in 0..SIZE.div_ceil(BLOCK as u64) {
        let len = (SIZE - block * BLOCK as u64).min(BLOCK as u64) as usize;
        blocks.model.lock().check(block * 8, &content.page(block)[..len])?;
    }
    Ok(())
}

#[test]
pub(super) fn no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be() {
    for seed in 0..40 {
        assert_eq!(through_crashes(seed, None), Ok(()), "seed {seed}");
    }
}

#[test]
pub(super) fn a_volume_with_a_mode_of_its_own_keeps_what_was_flushed() {
    for (seed, mode) in (100..).zip([Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough].repeat(6)) {
        assert_eq!(through_crashes(seed, Some(mode)), Ok(()), "seed {seed}");
    }
}

#[test]
pub(super) fn a_logged_write_survives_a_kill_right_after_its_answer() {
    for seed in 0..20 {
        let mut blocks = Blocks::new(seed, true);
        let volume = blocks.open(None);
        let writing = volume.clone();
        let write = async move { writing.write(4096, &[5; 4096], Stability::Logged).await };
        let written = blocks.world.shared.executor.block_on(LIMIT, write);
        assert_eq!(written, Ok(Ok(())), "seed {seed}");
        drop(volume);
        blocks.world.crash(Crash::Kill);
        let volume = blocks.open(None);
        let read = async move {
            let mut buffer = vec![0; 4096];
            volume.read(4096, &mut buffer).await.map(|()| buffer)
        };
        let found = blocks.world.shared.executor.block_on(LIMIT, read);
        assert!(found == Ok(Ok(vec![5; 4096])), "seed {seed}: the write is lost");
    }
}

/// The device loses a write, so the block is a hole again. Flushes fail until the client has written the block again,
/// if only with zeros. A write of a part of the block, and a write that fails, do not count.
#[test]
fn zeros_in_a_hole_end_the_error_of_a_lost_write_and_a_part_of_it_does_not() {
    for seed in 0..6 {
        let mut blocks = Blocks::new(seed, true);
        let volume = blocks.open(Some(Mode::WriteAround));
        let (store, theirs) = (blocks.world.shared.store.clone(), volume.clone());
        let client = async move {
            theirs.write(4096, &[5; 4096], Stability::Unstable).await.unwrap();
            store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
            let mut flushed = vec![theirs.flush().await];
            store.set_rates(Rates { error: 10_000, ..Rates::default() });
            assert!(theirs.write(4096, &[6; 4096], Stability::Unstable).await.is_err(), "seed {seed}");
            store.set_rates(Rates::default());
            flushed.push(theirs.flush().await);
            theirs.write(4096, &[7; 4000], Stability::Unstable).await.unwrap();
            flushed.push(theirs.flush().await);
            assert_eq!(flushed, [Err(DiskError::Io); 3], "seed {seed}");
            theirs.write_zeroes(4096, 4096, false, Stability::Unstable).await.unwrap();
            assert_eq!(theirs.flush().await, Ok(()), "seed {seed}");
        };
        assert_eq!(blocks.world.shared.executor.block_on(LIMIT, client), Ok(()));
        drop(volume);
        blocks.world.crash(Crash::Kill);
        let volume = blocks.open(None);
        let (store, theirs) = (blocks.world.shared.store.clone(), volume.clone());
        let client = async move {
            theirs.write_zeroes(8192, ZEROS_PAST_THE_LOG, false, Stability::Unstable).await.unwrap();
            store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
            assert_eq!(theirs.flush().await, Err(DiskError::Io), "seed {seed}");
            store.set_rates(Rates::default());
            theirs.write(8192, &[8; 4096], Stability::Logged).await.unwrap();
            assert_eq!(theirs.flush().await, Err(DiskError::Io), "seed {seed}: the rest is lost");
            for block in 0..ZEROS_PAST_THE_LOG / 4096 {
                theirs.write_zeroes(8192 + block * 4096, 4096, false, Stability::Unstable).await.unwrap();
            }
            assert_eq!(theirs.flush().await, Ok(()), "seed {seed}: zeros in a hole");
        };
        assert_eq!(blocks.world.shared.executor.block_on(LIMIT, client), Ok(()));
    }
}

/// Returns the first byte of a block of a volume.
fn first_byte(world: &World, volume: &Arc<Volume>, block: u64) -> Result<u8, DiskError> {
    let volume = volume.clone();
    let read = async move {
        let mut buffer = [0; 4096];
        volume.read(block * 4096, &mut buffer).await.map(|()| buffer[0])
    };
    world.shared.executor.block_on(LIMIT, read).unwrap()
}

#[test]
fn a_block_without_a_readable_copy_stays_unreadable_after_a_discard_and_is_mended_by_zeros_past_the_log() {
    let mut blocks = Blocks::new(1, false);
    let volume = blocks.open(None);
    let theirs = volume.clone();
    let writes = async move {
        for block in 0..40 {
            theirs.write(u64::from(block) * 4096, &[block; 4096], Stability::Durable).await.unwrap();
        }
    };
    let executor = blocks.world.shared.executor.clone();
    assert_eq!(executor.block_on(LIMIT, writes), Ok(()));
    for disk in &blocks.world.disks {
        for at in disk.written() {
            let (found, _) = executor.block_on(LIMIT, disk.read(at * 4096, Buffer::zeroed(1))).unwrap();
            if found.iter().all(|byte| *byte == 5) {
                disk.rot_at(at * 4096);
            }
        }
    }
    assert_eq!(first_byte(&blocks.world, &volume, 5), Err(DiskError::Io));
    let theirs = volume.clone();
    let discard = async move { theirs.discard(5 * 4096, 4096, Stability::Durable).await };
    assert_eq!(executor.block_on(LIMIT, discard), Ok(Ok(())));
    assert_eq!(first_byte(&blocks.world, &volume, 5), Err(DiskError::Io), "the device has older contents");
    let theirs = volume.clone();
    let zeros = async move { theirs.write_zeroes(0, ZEROS_PAST_THE_LOG, false, Stability::Durable).await };
    assert_eq!(executor.block_on(LIMIT, zeros), Ok(Ok(())));
    assert_eq!(first_byte(&blocks.world, &volume, 5), Ok(0));
}

#[test]
fn a_failing_backing_device_loses_nothing_that_was_flushed_and_heals() {
    for seed in 0..20 {
        let mut blocks = Blocks::new(seed, true);
        blocks.fails = true;
        blocks.model.lock().lossy = true;
        let volume = blocks.open(None);
        let rates = Rates { error: 1500, sync_error: 1500, ..Rates::default() };
        blocks.world.shared.store.set_rates(rates);
        let worked = blocks.work(&volume, 80, None);
        blocks.world.shared.store.set_rates(Rates::default());
        assert_eq!(worked, Ok(()), "seed {seed}");
    }
}
