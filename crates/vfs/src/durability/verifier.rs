//! The write verifier (RFC 1813 section 3.3.7): tells clients whether unstable data may have been lost.
//!
//! It changes exactly when that may have happened:
//!
//! - after a failed sync, and when the log breaks or all copies of dirty data are lost;
//! - at a start that does not follow a clean stop, which makes all unstable data durable;
//! - at a start that may lack this durable data: with another pool, without one, or with another directory.
//!
//! The state directory has it as one line, "clean VERIFIER" or "serving VERIFIER".

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::state_file;

/// The verifier in force.
#[derive(Debug)]
pub struct Verifier {
    value: AtomicU64,
    after_crash: bool,
    path: PathBuf,
}

/// Returns a random number. Without the kernel's, the time and the process make one.
fn fresh() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            (now.tv_sec as u64) << 30 ^ now.tv_nsec as u64 ^ u64::from(std::process::id()) << 50
        }
    }
}

impl Verifier {
    /// Loads the verifier of `state_dir`: the last one after a clean stop, a new one otherwise.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join("verifier");
        let text = state_file::read(&path)?.unwrap_or_default();
        let value = text.trim().strip_prefix("clean ").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let after_crash = value.is_none();
        let verifier = Verifier { value: AtomicU64::new(value.unwrap_or_else(fresh)), after_crash, path };
        verifier.save("serving")?;
        Ok(verifier)
    }

    /// Returns true if the last server here did not stop cleanly, as far as the state directory tells.
    pub(crate) fn follows_a_crash(&self) -> bool {
        self.after_crash
    }

    /// Returns the eight bytes for a reply.
    pub fn get(&self) -> [u8; 8] {
        self.value.load(Ordering::Acquire).to_be_bytes()
    }

    /// Changes the verifier in every reply from now on, because unstable data may have been lost.
    pub fn lost(&self) {
        self.value.store(fresh(), Ordering::Release);
    }

    /// Records that nothing unstable remains, so that the next start keeps the verifier.
    pub fn stopped_clean(&self) -> io::Result<()> {
        self.save("clean")
    }

    /// Writes the verifier and the state of the server to the file, durably.
    fn save(&self, state: &str) -> io::Result<()> {
        let value = self.value.load(Ordering::Acquire);
        state_file::replace(&self.path, format!("{state} {value:016x}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_over_a_clean_stop_and_changes_after_a_crash_or_a_loss() {
        let dir = tempfile::tempdir().unwrap();
        let first = Verifier::open(dir.path()).unwrap();
        let value = first.get();
        first.stopped_clean().unwrap();
        let second = Verifier::open(dir.path()).unwrap();
        assert_eq!(second.get(), value);
        let third = Verifier::open(dir.path()).unwrap();
        assert_ne!(third.get(), value, "the second instance did not stop cleanly");
        let before = third.get();
        third.lost();
        assert_ne!(third.get(), before);
    }
}
