//! A backing device on another host, whose connection is lost now and then.

use forebay_common::lock::atomic::{AtomicBool, AtomicU32};
use forebay_engine::io::BackingError;

use super::*;

/// The error of a sync after a loss.
pub(super) const LOST: BackingError = BackingError::Io(107);

/// The connection to a device. A new one follows at once. The device forgets changes that were not synced.
pub(super) struct Link {
    rng: Mutex<Rng>,
    executor: crate::executor::Executor,
    /// The chances of an operation that it finds the connection lost, in 10,000.
    chances: AtomicU32,
    losses: Arc<AtomicU64>,
    /// True if no sync has failed since the loss.
    doubtful: AtomicBool,
    /// False for a client that takes the next sync for a proof, in spite of the loss.
    tells: bool,
}

impl Link {
    /// Makes a link that is lost in 3 % of the operations. If it `tells`, the first sync after a loss fails.
    pub(super) fn new(world: &mut World, tells: bool) -> Self {
        Link {
            rng: Mutex::new(world.rng.fork()),
            executor: world.shared.executor.clone(),
            chances: AtomicU32::new(300),
            losses: Arc::default(),
            doubtful: AtomicBool::new(false),
            tells,
        }
    }

    /// Returns the result of a change some time after the device has carried it out. The connection may be lost
    /// meanwhile.
    pub(super) fn answer(&self, change: Io<BackingResult<()>>) -> Io<BackingResult<()>> {
        let late = self.rng.lock().time(Duration::ZERO, Duration::from_millis(3));
        let executor = self.executor.clone();
        Box::pin(async move {
            let result = change.await;
            executor.sleep(late).await;
            result
        })
    }

    /// Returns true if the connection ends now.
    pub(super) fn may_end(&self) -> bool {
        let ends = self.rng.lock().chance(self.chances.load(Ordering::Relaxed));
        if ends {
            self.losses.fetch_add(1, Ordering::Relaxed);
            self.doubtful.store(true, Ordering::Relaxed);
        }
        ends
    }

    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// Returns a function that tells if the connection was lost since this call.
    pub(super) fn lost_since(&self) -> impl Fn() -> bool + Send + use<> {
        let (losses, before) = (self.losses.clone(), self.losses());
        move || losses.load(Ordering::Relaxed) != before
    }

    /// Returns true if a sync that begins now has to fail for a loss.
    pub(super) fn tells_the_sync(&self) -> bool {
        self.doubtful.swap(false, Ordering::Relaxed) && self.tells
    }
}

/// Clients work while the connection is lost again and again, up to a power cut. Returns the number of losses.
fn through_losses(seed: u64, mode: Option<Mode>, tells: bool) -> Result<u64, String> {
    let mut blocks = Blocks::with_link(seed, seed.is_multiple_of(2), |world| Some(Link::new(world, tells)));
    blocks.fails = true;
    blocks.model.lock().lossy = true;
    let volume = blocks.open(mode);
    blocks.work(&volume, 80, None)?;
    let device = blocks.device.clone();
    let link = device.link.as_ref().unwrap();
    let losses = link.losses();
    link.chances.store(0, Ordering::Relaxed);
    // The first attempt may report a loss. A lost discard fails each attempt; the rest is destaged in the background.
    for _ in 0..4 {
        let leaving = volume.clone();
        let destaged = blocks.world.shared.executor.block_on(LIMIT, async move { leaving.destage().await });
        assert!(destaged.is_ok(), "seed {seed}: the volume does not answer");
    }
    let left = volume.clone();
    let stop = until(&blocks.world, move || left.dirty_bytes() == 0);
    assert!(matches!(stop, Stop::Done), "seed {seed}: {} bytes stay dirty: {stop:?}", volume.dirty_bytes());
    blocks.check(&volume)?;
    drop(volume);
    blocks.world.crash(Crash::PowerCut);
    blocks.model.lock().crash(Crash::PowerCut);
    let volume = blocks.open(mode);
    blocks.check(&volume).map(|()| losses)
}

/// Seeds behind the first ones that once found bugs.
const SEEDS: [u64; 1] = [36];

/// Returns the number of seeds that the environment variable `FOREBAY_SEEDS` asks for; 24 without it.
fn seeds() -> u64 {
    std::env::var("FOREBAY_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(24)
}

#[test]
fn a_lost_connection_takes_nothing_that_was_flushed() {
    let (mut worlds, mut with_losses) = (0, 0);
    for seed in (0..seeds()).chain(SEEDS) {
        let mode = [None, Some(Mode::WriteThrough), Some(Mode::WriteAround)][seed as usize % 3];
        let losses = through_losses(seed, mode, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        worlds += 1;
        with_losses += u32::from(losses > 0);
    }
    assert!(with_losses > worlds / 2, "in {with_losses} of {worlds} worlds a connection was lost");
}

#[test]
fn a_loss_that_is_not_told_to_the_next_sync_loses_data() {
    let fails = |seed| through_losses(seed, None, false).is_err();
    assert!((0..24).any(fails), "the scenario does not find it");
}
