//! Cache devices on direct I/O, and the health that SSDs report. `forebay_runtime` carries out a device's operations.

mod barrier;
mod device;
mod discard;
mod open;
mod traffic;
mod wear;
mod whereabouts;

pub use device::FileDevice;
pub use open::{MIN_SIZE, OpenError};
pub use traffic::Traffic;
pub use wear::{Health, ask as ask_health};
pub use whereabouts::{Whereabouts, whereabouts};
