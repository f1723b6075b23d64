//! The write verifier, as the server has it. It changes in service once if the log is lost with the last devices. It
//! also changes at a start that follows no clean stop.
//!
//! Writes acknowledged under the verifier in force are not lost. Writes acknowledged under another verifier may be lost
//! (P4).

use crate::client::Shared;

impl Shared {
    /// Returns true if replies carry another verifier than at the start.
    pub fn verifier_changed(&self) -> bool {
        *self.verifier_changed.lock()
    }

    /// Notes that the engine reported the loss of the log, in an event or instead of an answer.
    pub fn log_broke(&self) {
        let (members, lost) = (self.members.lock().clone(), self.lost.lock().clone());
        // Two lost devices may have held both copies of something, even in a pool of more devices.
        if lost.len() < 2 && members.iter().any(|name| !lost.contains(name)) {
            self.fail(format!("the verifier changes, and no more than {lost:?} are lost (P4)"));
        }
        if !std::mem::replace(&mut *self.verifier_changed.lock(), true) {
            self.tell(|| "the verifier changes: what was accepted may be lost".to_owned());
            self.model.lock().log_lost();
        }
    }
}
