//! Foreign devices in a member's place or beside it, and members under each other's names.

use std::sync::Arc;

use forebay_engine::io::Device;
use forebay_engine::pool::Pool;

use super::start::Refused;
use super::{LIMIT, World};
use crate::disk::Disk;
use crate::hits::Fault;

impl World {
    /// Makes a device of another pool, and a device with a file system.
    fn make_foreign(&mut self) -> Result<(), Refused> {
        let disk = |world: &mut World, name| {
            Disk::new(&world.shared.executor, name, 64 << 20, world.rng.fork(), &world.shared.hits)
        };
        let (pools, xfs) = (disk(self, "foreign"), disk(self, "xfs"));
        xfs.make_xfs();
        let mut random = self.rng.fork();
        let device: Arc<dyn Device> = Arc::new(pools.clone());
        let made = self.shared.executor.block_on(LIMIT, async move {
            let mut uuid = || u128::from(random.draw()) << 64 | u128::from(random.draw());
            let mut pool = Pool::format(vec![device], &mut uuid, false).await?;
            pool.open_epoch().await.map(drop)
        });
        made.map_err(Refused::Stopped)?.map_err(Refused::Pool)?;
        *self.shared.foreign.lock() = vec![pools, xfs];
        Ok(())
    }

    /// Offers devices that do not belong together, like an administrator. The pool must refuse them and write nothing.
    pub(super) fn offer_wrong_ones(&mut self) -> Result<(), Refused> {
        let victim = self.victim().name().to_owned();
        let here: Vec<Disk> = self.disks.iter().filter(|disk| !disk.is_gone()).cloned().collect();
        // Among the other devices, one certainly has a superblock.
        let sound = here.iter().find(|disk| disk.name() != victim);
        let Some(sound) = sound.filter(|_| self.rng.clone().chance(6000)).cloned() else { return Ok(()) };
        if self.shared.foreign.lock().is_empty() {
            self.make_foreign()?;
        }
        let foreign = self.shared.foreign.lock().clone();
        let mut given = match self.rng.below(4) {
            0 => {
                self.shared.hits.hit(Fault::Twice);
                [&here[..], &[sound.renamed("twin")]].concat()
            }
            1 => {
                self.shared.hits.hit(Fault::Foreign);
                vec![sound, self.rng.pick(&foreign)]
            }
            _ => {
                self.shared.hits.hit(Fault::Foreign);
                [&here[..], &[self.rng.pick(&foreign)]].concat()
            }
        };
        if self.rng.chance(5000) {
            given.reverse();
        }
        // The victim may rot during a read.
        let contents = |disks: &[Disk]| -> Vec<u64> {
            disks.iter().filter(|disk| disk.name() != victim).map(Disk::contents).collect()
        };
        let (names, before) = (given.iter().map(|disk| disk.name().to_owned()), contents(&given));
        let names: Vec<_> = names.collect();
        let devices = given.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>).collect();
        let opened = self.shared.executor.block_on(LIMIT, Pool::open(devices)).map_err(Refused::Stopped)?;
        self.shared.tell(|| format!("wrong devices {names:?}: {opened:?}"));
        if opened.is_ok() {
            self.shared.fail(format!("{names:?} do not belong together, and were opened (P22)"));
        } else if contents(&given) != before {
            self.shared.fail(format!("{names:?} were refused and written to (P22)"));
        }
        Ok(())
    }

    /// Swaps the names of two devices, like swapped cables. Each device must be recognised.
    pub(super) fn swap_names(&mut self) {
        let (one, other) = (self.rng.index(self.disks.len()), self.rng.index(self.disks.len()));
        let (first, second) = (self.disks[one].clone(), self.disks[other].clone());
        if one == other || first.size() != second.size() {
            return;
        }
        first.swap(&second);
        self.shared.hits.hit(Fault::PathsSwapped);
        match self.plan.victim {
            victim if victim == one => self.plan.victim = other,
            victim if victim == other => self.plan.victim = one,
            _ => {}
        }
        let names = [first.name(), second.name()];
        let rename = |list: &mut Vec<String>| {
            for name in list.iter_mut() {
                if let Some(at) = names.iter().position(|own| *own == name.as_str()) {
                    *name = names[1 - at].to_owned();
                }
            }
        };
        rename(&mut self.shared.outdated.lock());
        rename(&mut self.shared.left.lock());
        self.shared.epochs.rename(rename);
    }
}
