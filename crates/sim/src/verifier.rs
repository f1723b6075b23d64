//! The write verifier, as the server has it: it changes once in service if the log is lost with the last devices, and at a start
//! that follows no clean stop. What was answered with the verifier in force is not lost; what was answered with another one
//! may be (P4).

use crate::client::Shared;

impl Shared {
    /// Whether replies have another verifier than at the start.
    pub fn verifier_changed(&self) -> bool {
        *self.verifier_changed.lock()
    }

    /// The engine says that the log is lost, in an event or instead of an answer.
    pub fn log_broke(&self) {
        let (members, lost) = (self.members.lock().clone(), self.lost.lock().clone());
        // Two may be both copies of something, also where there are more.
        if lost.len() < 2 && members.iter().any(|name| !lost.contains(name)) {
            self.fail(format!("the verifier changes, and no more than {lost:?} are lost (P4)"));
        }
        if !std::mem::replace(&mut *self.verifier_changed.lock(), true) {
            self.tell(|| "the verifier changes: what was accepted may be lost".to_owned());
            self.model.lock().log_lost();
        }
    }
}
