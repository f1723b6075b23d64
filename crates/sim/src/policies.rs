//! The task that changes the policies of objects, and the shares that they are in, while clients work.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;
use forebay_engine::{Engine, Keep, Policy, Priority, Streams};

use crate::client::Shared;
use crate::hits::Fault;
use crate::rng::Rng;

/// The state of the task.
pub struct Policies {
    /// The world.
    pub shared: Arc<Shared>,
    /// The engine of this session.
    pub engine: Arc<Engine>,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Policies {
    /// Runs for ever.
    pub async fn run(mut self) {
        let longest = self.rng.pick(&[1, 30, 1000]) * Duration::from_millis(1);
        let numbers = self.shared.objects.lock().numbers();
        for number in numbers {
            self.change(number);
        }
        loop {
            let rest = self.rng.time(Duration::ZERO, longest);
            self.shared.executor.sleep(rest + Duration::from_micros(10)).await;
            let numbers = self.shared.objects.lock().numbers();
            if !numbers.is_empty() {
                let number = self.rng.pick(&numbers);
                self.change(number);
            }
            if self.rng.chance(1000) {
                self.limit();
            }
        }
    }

    /// Gives an object a policy. The mode stays: with another one, the model could not tell what is in the log.
    fn change(&mut self, number: u8) {
        let policy = Policy {
            keep: self.rng.pick(&[Keep::Normal, Keep::Normal, Keep::Normal, Keep::Pin, Keep::Never]),
            priority: self.rng.pick(&[Priority::Low, Priority::Normal, Priority::High, Priority::High]),
            streams: self.rng.pick(&[Streams::Past, Streams::Cache]),
            share: self.rng.below(3) as u16,
            dirty_seconds: self.rng.pick(&[0, 0, 1, 60]),
            ..Policy::default()
        };
        let Some(object) = self.shared.objects.lock().object(number) else { return };
        self.shared.tell(|| format!("policy of {number}: {policy:?}"));
        self.engine.set_policy(&object, policy);
        self.shared.hits.hit(Fault::PolicyChanged);
    }

    /// Sets the limits of a share.
    fn limit(&mut self) {
        let (share, mib) = (self.rng.within(1, 2) as u16, 1 << 20);
        let (min, max) =
            self.rng.pick(&[(0, None), (8 * mib, None), (0, Some(4 * mib)), (mib, Some(16 * mib))]);
        self.shared.tell(|| format!("share {share}: {min} to {max:?}"));
        self.engine.set_share(share, min, max);
    }
}
