//! Cache devices on direct I/O or NBD, backing devices on NBD, and the health that SSDs report. `forebay_runtime`
//! carries out the operations of local devices.

mod any;
mod barrier;
mod device;
mod discard;
mod nbd;
mod open;
mod traffic;
mod wear;
mod whereabouts;

pub use any::CacheDevice;
pub use device::FileDevice;
pub use nbd::{KnownExport, LinkError, NbdDevice, NbdLink};
pub use open::{MIN_SIZE, OpenError};
pub use traffic::Traffic;
pub use wear::{Health, ask as ask_health};
pub use whereabouts::{Whereabouts, whereabouts};
