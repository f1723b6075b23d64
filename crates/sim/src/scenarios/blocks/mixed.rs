//! Worlds in which more happens beside the requests to a volume: a range of its device fails, its mode and that of the
//! pool change while data is dirty, and clients use files of the same pool.

use forebay_common::lock::atomic::{AtomicBool, AtomicUsize};

use super::*;
use crate::backing::BadRange;
use crate::workload::{Habits, Kind, MODES};

/// The number of worlds, unless the environment variable `FOREBAY_SEEDS` has another one.
const WORLDS: u64 = 40;

/// A request that a bad range may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Change,
}

/// A range of the device that cannot be read or written now and then.
pub(super) struct Bad {
    /// The sectors: whole blocks.
    sectors: Range<u64>,
    /// True while the range fails.
    fails: AtomicBool,
    seen: Arc<Seen>,
}

/// The number of times that each event of these worlds happened. An event that no world has proves nothing.
#[derive(Debug, Default)]
struct Seen {
    failed_read: AtomicU64,
    failed_change: AtomicU64,
    cached_read: AtomicU64,
    refused_blocks: AtomicU64,
    mode_over_dirty: AtomicU64,
    pool_mode_over_dirty: AtomicU64,
    dirty_beside: AtomicU64,
    crash_with_both: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Bad {
    /// Returns true if a request for these sectors may fail. A request works on whole blocks.
    pub(super) fn may_fail(&self, sectors: &Range<u64>, what: What) -> bool {
        let blocks = sectors.start / 8 * 8..sectors.end.next_multiple_of(8);
        let may = blocks.start < self.sectors.end && self.sectors.start < blocks.end;
        if may {
            count(if what == What::Read { &self.seen.failed_read } else { &self.seen.failed_change });
        }
        may
    }

    /// Counts a read that succeeded though the device fails in its range.
    pub(super) fn was_read(&self, sectors: &Range<u64>) {
        let overlaps = sectors.start < self.sectors.end && self.sectors.start < sectors.end;
        if overlaps && self.fails.load(Ordering::Relaxed) {
            count(&self.seen.cached_read);
        }
    }
}

/// A world with a volume that has a bad range, beside two files.
struct Mixed {
    blocks: Blocks,
    bad: Arc<Bad>,
    seen: Arc<Seen>,
}

impl Mixed {
    fn new(seed: u64, seen: &Arc<Seen>) -> Self {
        let mut blocks = Blocks::with_plan(
            seed,
            seed.is_multiple_of(2),
            |_| None,
            |plan| {
                let mut rng = Rng::new(seed);
                plan.habits = Habits::new(&mut rng);
                // A flush of everything fails while the device of the volume does.
                [Kind::Flush, Kind::Add, Kind::Drain].into_iter().for_each(|kind| plan.habits.without(kind));
                (plan.habits.clients, plan.habits.operations) = (2, 60);
                (plan.habits.longest, plan.habits.extent) = (64 << 10, 1 << 20);
                plan.habits.rest = Duration::from_millis(5);
                plan.habits.modes = MODES.to_vec();
                (plan.objects, plan.destage_after) =
                    (2, Duration::from_millis([5, 50, 600_000][seed as usize % 3]));
            },
        );
        let first = blocks.world.rng.below(SIZE / BLOCK as u64 - 20) * 8;
        let len = blocks.world.rng.within(1, 20) * 8;
        let bad =
            Arc::new(Bad { sectors: first..first + len, fails: AtomicBool::new(false), seen: seen.clone() });
        blocks.bad = Some(bad.clone());
        Mixed { blocks, bad, seen: seen.clone() }
    }

    /// Returns a function that has the range fail or work.
    fn switch(&self) -> impl Fn(bool) + Send + use<> {
        let (bad, store) = (self.bad.clone(), self.blocks.world.shared.store.clone());
        let (object, blocks) = (self.blocks.device.file.clone(), bad.sectors.start / 8..bad.sectors.end / 8);
        move |fails| {
            let range =
                BadRange { object: object.clone(), blocks: blocks.clone(), in_sync: false, in_reads: true };
            store.set_bad(fails.then_some(range));
            bad.fails.store(fails, Ordering::Relaxed);
        }
    }

    /// Starts the task that has the range fail and work in turn.
    fn start_failing(&mut self) {
        let (switch, mut rng) = (self.switch(), self.blocks.world.rng.fork());
        let executor = self.blocks.world.shared.executor.clone();
        let run = async move {
            for turn in 0.. {
                switch(turn % 2 == 0);
                executor.sleep(rng.time(Duration::from_millis(1), Duration::from_millis(200))).await;
            }
        };
        self.blocks.world.shared.executor.start("failing", Box::pin(run));
    }

    /// Starts the task that changes the modes of the volume and of the pool.
    fn start_switching(&mut self, engine: &Arc<Engine>, volume: &Arc<Volume>) {
        let (engine, volume, mut rng) = (engine.clone(), volume.clone(), self.blocks.world.rng.fork());
        let (executor, seen) = (self.blocks.world.shared.executor.clone(), self.seen.clone());
        let run = async move {
            loop {
                executor.sleep(rng.time(Duration::ZERO, Duration::from_millis(40))).await;
                let own = volume.dirty_bytes();
                if own > 0 && engine.dirty_bytes() > own {
                    count(&seen.dirty_beside);
                }
                let counter = if rng.chance(7000) {
                    volume
                        .set_mode(rng.pick(&[None, Some(0), Some(1), Some(2), Some(3)]).map(|at| MODES[at]));
                    &seen.mode_over_dirty
                } else {
                    engine.set_mode(rng.pick(&[Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough]));
                    &seen.pool_mode_over_dirty
                };
                if own > 0 {
                    count(counter);
                }
            }
        };
        self.blocks.world.shared.executor.start("switching", Box::pin(run));
    }

    /// Starts the clients of files. Returns the number of clients that are not done.
    fn start_files(&mut self, engine: &Arc<Engine>) -> Arc<AtomicUsize> {
        let world = &mut self.blocks.world;
        let habits = world.plan.habits.clone();
        let left = Arc::new(AtomicUsize::new(habits.clients));
        for _ in 0..habits.clients {
            let client = Client::new(&world.shared, engine, Allowed::default(), world.rng.fork());
            let (operations, left) = (habits.operations / habits.clients as u32, left.clone());
            let run = async move {
                client.run(operations).await;
                left.fetch_sub(1, Ordering::Relaxed);
            };
            world.shared.executor.start("client of files", Box::pin(run));
        }
        left
    }

    fn open(&mut self) -> (Arc<Engine>, Arc<Volume>) {
        let engine = self.blocks.world.start_through(Vec::new()).unwrap();
        let volume = Volume::new(&engine, UUID, self.blocks.device.clone(), None, false);
        (engine, volume)
    }

    /// Checks the files and the volume.
    fn check(&mut self, engine: &Arc<Engine>, volume: &Arc<Volume>) -> Result<(), String> {
        self.blocks.check(volume)?;
        let looked = self.blocks.world.look_at_all(engine);
        assert_eq!(looked, Ok(()), "the files do not answer");
        self.blocks.world.shared.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// A session, which ends by a crash.
    fn session(&mut self) -> Result<(), String> {
        let (engine, volume) = self.open();
        self.check(&engine, &volume)?;
        self.start_failing();
        self.start_switching(&engine, &volume);
        self.start_files(&engine);
        let steps = self.blocks.world.rng.within(1, 4000);
        self.blocks.work(&volume, 60, Some(steps))?;
        let own = volume.dirty_bytes();
        if own > 0 && engine.dirty_bytes() > own {
            count(&self.seen.crash_with_both);
        }
        drop((engine, volume));
        let how = self.blocks.world.rng.pick(&[Crash::Kill, Crash::PowerCut]);
        self.blocks.world.crash(how);
        self.blocks.model.lock().crash(how);
        self.switch()(self.blocks.world.rng.chance(5000));
        self.blocks.world.shared.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// The last session. While the range fails, everything else is destaged. When the range works, the device and the
    /// files get the rest.
    fn last_session(&mut self) -> Result<(), String> {
        let (engine, volume) = self.open();
        self.switch()(true);
        let left = self.start_files(&engine);
        self.blocks.work(&volume, 60, None)?;
        let files = until(&self.blocks.world, move || left.load(Ordering::Relaxed) == 0);
        assert!(matches!(files, Stop::Done), "the files do not answer: {files:?}");
        let theirs = engine.clone();
        let flushing = async move {
            // A flush ends with the first refused block.
            for _ in 0..100 {
                _ = theirs.flush().await;
            }
        };
        self.blocks.world.shared.executor.block_on(LIMIT, flushing).unwrap();
        let (dirty, bad) =
            (engine.dirty_bytes(), (self.bad.sectors.end - self.bad.sectors.start) * SECTOR as u64);
        assert!(dirty <= bad, "a bad range of {bad} bytes holds up other blocks: {dirty} bytes");
        self.seen.refused_blocks.fetch_add(volume.dirty_bytes() / BLOCK as u64, Ordering::Relaxed);
        self.check(&engine, &volume)?;
        self.switch()(false);
        let drained = self.blocks.world.drain(&engine);
        assert_eq!((drained, engine.dirty_bytes()), (Ok(()), 0), "the range works again");
        let leaving = volume.clone();
        let synced =
            self.blocks.world.shared.executor.block_on(LIMIT, async move { leaving.destage().await });
        assert_eq!(synced, Ok(Ok(())), "what went past the log");
        self.check(&engine, &volume)?;
        let content = self.blocks.world.shared.store.durable(&self.blocks.device.file).unwrap();
        for block in 0..SIZE.div_ceil(BLOCK as u64) {
            let len = (SIZE - block * BLOCK as u64).min(BLOCK as u64) as usize;
            self.blocks.model.lock().check(block * 8, &content.page(block)[..len])?;
        }
        Ok(())
    }
}

/// Runs a world to its end.
fn run(seed: u64, seen: &Arc<Seen>) -> Result<(), String> {
    let mut mixed = Mixed::new(seed, seen);
    for _ in 0..3 {
        mixed.session()?;
    }
    mixed.last_session()
}

#[test]
pub(in crate::scenarios) fn bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed()
 {
    let seen = Arc::<Seen>::default();
    let worlds = std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(WORLDS);
    for seed in 0..worlds {
        run(seed, &seen).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let Seen { failed_read, failed_change, cached_read, refused_blocks, .. } = &*seen;
    let Seen { mode_over_dirty, pool_mode_over_dirty, dirty_beside, crash_with_both, .. } = &*seen;
    for counter in [
        failed_read,
        failed_change,
        cached_read,
        refused_blocks,
        mode_over_dirty,
        pool_mode_over_dirty,
        dirty_beside,
        crash_with_both,
    ] {
        assert!(counter.load(Ordering::Relaxed) > 0, "something never happens: {seen:?}");
    }
}
