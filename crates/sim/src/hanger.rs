//! The task that makes a device hang: operations that have begun do not end. The task releases them in time, after the
//! device was lost, or never. An operation that ends late must do no harm.

use std::time::Duration;

use forebay_engine::io::{Clock as _, Device as _};

use crate::client::Client;
use crate::disk::{Disk, Operation};
use crate::hits::Fault;
use crate::rng::Rng;

/// The state of the task.
pub struct Hanger {
    /// A client of the engine and the world.
    pub client: Client,
    /// The device that hangs.
    pub victim: Disk,
    /// The time after which the engine gives up a device that does not answer.
    pub deadline: Duration,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Hanger {
    /// Runs until the device hangs for good.
    pub async fn run(mut self) {
        let longest = self.rng.pick(&[1, 20, 500, 5000]) * Duration::from_millis(1);
        loop {
            let rest = self.rng.time(Duration::ZERO, longest);
            self.rest(rest).await;
            self.victim.hold(self.rng.pick(&[anything, reads, writes, flushes, one_in_four]));
            match self.rng.below(4) {
                0 => return,
                1 => self.answer_in_time().await,
                _ => self.answer_late().await,
            }
        }
    }

    async fn rest(&self, time: Duration) {
        self.client.shared.executor.sleep(time).await;
    }

    fn is_lost(&self) -> bool {
        self.client.shared.lost.lock().iter().any(|name| name == self.victim.name())
    }

    /// Releases the held operations before the device deadline, so that the engine must keep the device.
    async fn answer_in_time(&mut self) {
        let rest = self.rng.time(Duration::ZERO, self.deadline * 3 / 4);
        self.rest(rest).await;
        if self.victim.holds() > 0 && !self.is_lost() {
            self.client.shared.hits.hit(Fault::AnsweredInTime);
        }
        self.victim.release();
    }

    /// Releases all operations some time after the device was given up, and may then add the device again.
    async fn answer_late(&mut self) {
        for _ in 0..40 {
            if self.is_lost() {
                break;
            }
            self.rest(self.deadline / 10).await;
        }
        let rest = self.rng.time(Duration::ZERO, self.deadline);
        self.rest(rest).await;
        if self.victim.holds() > 0 && self.is_lost() {
            self.client.shared.hits.hit(Fault::AnsweredLate);
        }
        self.victim.release();
        // The operations that ended have woken their waiters.
        let rest = self.rng.time(Duration::ZERO, Duration::from_secs(1));
        self.rest(rest).await;
        if self.is_lost() && self.rng.chance(7000) {
            self.client.add_again(&self.victim).await;
        }
    }
}

fn anything(_: Operation) -> bool {
    true
}

fn reads(operation: Operation) -> bool {
    matches!(operation, Operation::Read(_))
}

fn writes(operation: Operation) -> bool {
    matches!(operation, Operation::Write(_))
}

fn flushes(operation: Operation) -> bool {
    operation == Operation::Flush
}

/// Chooses a quarter of the operations, as if one of a device's queues were stuck.
fn one_in_four(operation: Operation) -> bool {
    match operation {
        Operation::Read(block) | Operation::Write(block) => block.is_multiple_of(4),
        Operation::Flush | Operation::Discard => false,
    }
}
