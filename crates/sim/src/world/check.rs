//! Checks all contents of a world.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;
use forebay_engine::{Engine, Error};

use super::{LIMIT, World};
use crate::client::{Client, Shared};
use crate::executor::Stop;

impl World {
    /// Checks all sizes, and often the contents.
    pub(super) fn look(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        if self.rng.chance(6000) { self.look_at_all(engine) } else { Ok(()) }
    }

    /// Reads all contents, and checks the state that a crash left.
    pub(crate) fn look_at_all(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let mut client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
        let chunk = self.rng.pick(&[4096, 64 << 10, 1 << 20]);
        // Larger pieces keep the reads of a slow store, and of the model of a large file, from taking hours.
        let large = self.plan.habits.extent > 4 << 20;
        let chunk = if self.plan.habits.slow_store > 1 || large { 1 << 20 } else { chunk };
        let shared = self.shared.clone();
        self.shared.executor.block_on(LIMIT, async move {
            let numbers = shared.objects.lock().numbers();
            for number in numbers {
                let Some(object) = shared.objects.lock().object(number) else { continue };
                let size = object.size();
                if let Err(error) = shared.model.lock().observe_size(number, size) {
                    shared.fail(error);
                }
                for offset in (0..size + 1).step_by(chunk) {
                    client.read(number, offset, chunk).await;
                }
            }
        })?;
        let checked = self.shared.model.lock().check_prefix();
        if let (Err(error), true) = (checked, self.plan.logged()) {
            self.shared.fail(error);
        }
        Ok(())
    }

    /// Destages everything.
    pub(crate) fn drain(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let mut client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
        self.shared.executor.block_on(LIMIT, async move {
            // The first flush may report an earlier failure.
            let mut first = client.engine.flush().await;
            // An earlier request may take a minute.
            while first == Err(Error::Late) {
                client.shared.executor.sleep(Duration::from_secs(1)).await;
                first = client.engine.flush().await;
            }
            client.shared.tell(|| format!("flush: {first:?}"));
            client.allowed.late = false;
            client.flush().await;
        })?;
        let dirty = engine.scan().dirty_blocks;
        if dirty > 0 && !self.plan.is_lenient() {
            self.shared.fail(format!("{dirty} blocks are dirty after a flush"));
        }
        self.damaged = dirty > 0;
        if self.damaged {
            return Ok(());
        }
        self.check_objects(|shared, key| shared.store.current(key));
        Ok(())
    }

    /// Checks that the engine's counters of blocks and objects agree with a full scan of its index (P20).
    pub(super) fn check_usage(&self, engine: &Engine) -> Result<(), String> {
        let (usage, scan) = (engine.usage(), engine.scan());
        let same = usage.ssd_blocks == scan.ssd_blocks
            && usage.dirty_blocks == scan.dirty_blocks
            && usage.ram_blocks == scan.ram_blocks
            && usage.pinned_blocks == scan.pinned_blocks
            && usage.high_blocks == scan.high_blocks
            && usage.objects == scan.objects
            && engine.volumes().iter().map(|volume| volume.dirty_blocks).sum::<u64>() == scan.dirty_blocks;
        if same { Ok(()) } else { Err(format!("counters say {usage:?}, a scan {scan:?} (P20)")) }
    }

    /// Compares the backing contents of every object with the model, as `content` returns them. Compares times only
    /// if no fault can lose them.
    fn check_objects(
        &self,
        content: impl Fn(&Shared, &forebay_engine::io::Key) -> Option<crate::content::Content>,
    ) {
        let objects = self.shared.objects.lock();
        for number in objects.numbers() {
            let Some(key) = objects.key(number) else { continue };
            let content = content(&self.shared, &key);
            let times = self.plan.logged() && !self.plan.backing_fails() && !self.plan.victim_fails();
            if let Err(error) = self.shared.model.lock().check_backing(number, content.as_ref(), times) {
                self.shared.fail(error);
            }
        }
    }

    /// Compares the durable contents of the backing store with the model, unless faults have destroyed every copy of
    /// some block. Returns the first failure of the world.
    pub(crate) fn check_backing(&self) -> Result<(), String> {
        if !self.damaged {
            self.check_objects(|shared, key| shared.store.durable(key));
        }
        match self.shared.failure.lock().clone() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}
