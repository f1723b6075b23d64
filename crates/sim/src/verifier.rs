//! The write verifier, as the server has it: it changes at a start that follows no clean stop, and once the log is lost with
//! the last device. What was answered with the verifier in force is not lost; what was answered with another one may be (P4).

use crate::client::Shared;

/// The verifier in force.
#[derive(Debug, Default)]
pub struct Verifier {
    value: u64,
    /// It has changed because the log is lost; it cannot be lost twice.
    log_broke: bool,
}

impl Verifier {
    /// What replies say.
    pub fn get(&self) -> u64 {
        self.value
    }

    /// The server starts, after a crash or after a stop that was not clean.
    pub fn change(&mut self) {
        *self = Verifier { value: self.value + 1, log_broke: false };
    }
}

impl Shared {
    /// The engine says that the log is lost, in an event or instead of an answer.
    pub fn log_broke(&self) {
        let (members, lost) = (self.members.lock(), self.lost.lock());
        let kept = members.iter().any(|name| !lost.contains(name));
        // Two may be both copies of something, also where there are more.
        let (kept, lost) = (kept && lost.len() < 2, lost.clone());
        drop(members);
        if kept {
            self.fail(format!("the verifier changes, and no more than {lost:?} are lost (P4)"));
        }
        let mut verifier = self.verifier.lock();
        if verifier.log_broke {
            return;
        }
        verifier.change();
        verifier.log_broke = true;
        self.tell(|| format!("the verifier is {} now: what was accepted may be lost", verifier.get()));
        self.model.lock().log_lost();
    }
}
