//! Faults besides crashes: a journal that hangs or fails, and devices that come and go.

use std::time::Duration;

use forebay_engine::io::Clock as _;

use super::world::{Plan, World};
use crate::hits::Fault;

impl World {
    /// Lets the journal hang or fail after `rest`, by chance. If `crashes` and the journal hangs, the machine crashes
    /// soon after the journal answers again.
    pub(super) fn trouble(&mut self, rest: Duration, crashes: bool) {
        let Plan { hangs, fails, .. } = self.plan;
        let (hangs, fails) = (self.rng.chance(hangs), self.rng.chance(fails));
        if !hangs && !fails {
            return;
        }
        let time = self.rng.time(Duration::from_secs(1), Duration::from_secs(30));
        let soon = Some(self.rng.within(1, 40)).filter(|_| crashes && hangs);
        let shared = self.shared.clone();
        let trouble = async move {
            shared.executor.sleep(rest).await;
            if hangs {
                shared.store.hang(time);
                shared.hits.hit(Fault::JoinedHang);
            }
            if fails {
                shared.store.fail();
                shared.hits.hit(Fault::JoinedJournalFailed);
            }
            shared.tell(|| format!("the journal: hangs {hangs} for {time:?}, fails {fails}"));
            if soon.is_some() {
                shared.executor.sleep(time).await;
                shared.executor.crash_in(soon);
            }
        };
        self.shared.executor.start("journal", Box::pin(trouble));
    }

    /// Applies faults while the machine is off.
    pub(super) fn between(&mut self) {
        if !self.plan.loses {
            return;
        }
        let victim = &self.disks[0];
        if victim.is_gone() && self.rng.chance(5000) {
            victim.appear();
        } else if !victim.is_gone() && self.rng.chance(3000) {
            victim.vanish();
            self.shared.hits.hit(Fault::JoinedDeviceLost);
        }
    }
}
