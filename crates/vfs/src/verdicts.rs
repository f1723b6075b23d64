//! What the kernel said about who may do what with an object, believed while its ctime stands.

use crate::attr::Time;
use crate::error::Result;
use crate::object::Object;
use crate::sys;

/// Permission bits of a verdict, as access(2) numbers them.
pub(crate) mod want {
    pub(crate) const READ: u8 = libc::R_OK as u8;
    pub(crate) const WRITE: u8 = libc::W_OK as u8;
    pub(crate) const EXECUTE: u8 = libc::X_OK as u8;
}

/// What the kernel said about who may do what, believed while `ctime` stands.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) ctime: Time,
    slots: [Verdict; 8],
    next: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verdict {
    cred: u64,
    asked: u8,
    pub(crate) granted: u8,
}

/// Changes younger than this may share their ctime with the next change on kernels with coarse
/// timestamps (one tick, at most 10 ms), so nothing learnt under so young a ctime is kept.
const SETTLED_NANOS: i64 = 20_000_000;

/// Whether a ctime is old enough that any later change shows a different one.
pub(crate) fn settled(ctime: Time) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = |sec: i64, nsec: i64| sec.saturating_mul(1_000_000_000).saturating_add(nsec);
    nanos(now.tv_sec, now.tv_nsec).saturating_sub(nanos(ctime.sec, ctime.nsec.into())) > SETTLED_NANOS
}

impl Verdicts {
    /// None yet, under this ctime.
    pub(crate) fn under(ctime: Time) -> Self {
        Verdicts { ctime, ..Verdicts::default() }
    }

    pub(crate) fn find(&self, cred: u64, want: u8) -> Option<&Verdict> {
        self.slots.iter().find(|slot| slot.cred == cred && slot.asked & want == want)
    }

    pub(crate) fn learn(&mut self, cred: u64, asked: u8, granted: u8) {
        let slot = match self.slots.iter_mut().find(|slot| slot.cred == cred) {
            Some(slot) => slot,
            None => {
                self.next = (self.next + 1) % self.slots.len();
                let slot = &mut self.slots[self.next];
                *slot = Verdict { cred, ..Verdict::default() };
                slot
            }
        };
        slot.granted = slot.granted & !asked | granted;
        slot.asked |= asked;
    }
}

/// Asks the kernel which of `want` the thread's present identity has on the object.
pub(crate) fn ask_kernel(object: &Object, want: u8) -> Result<u8> {
    let mut granted = 0;
    for bit in [want::READ, want::WRITE, want::EXECUTE] {
        if want & bit != 0 && sys::may_access(object.path(), i32::from(bit))? {
            granted |= bit;
        }
    }
    Ok(granted)
}
