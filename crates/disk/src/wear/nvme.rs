//! The SMART / Health Information log page of NVMe (NVM Express Base Specification 2.0, section 5.16.1.3).

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::Health;

const GET_LOG_PAGE: u8 = 0x02;
const SMART_LOG: u32 = 0x02;
const SMART_LEN: usize = 512;
const ALL_NAMESPACES: u32 = u32::MAX;

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

// SAFETY: NVME_IOCTL_ADMIN_CMD takes the struct, fills in its last field, and returns the status.
unsafe impl Ioctl for AdminCommand {
    type Output = i32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<AdminCommand>(b'N', 0x41)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(status: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(status)
    }
}

/// Asks an NVMe drive for its SMART log. Waits up to a second. Returns `None` if the drive or the kernel refuses.
pub(super) fn health(device: &OwnedFd) -> Option<Health> {
    let mut page = [0_u8; SMART_LEN];
    let command = AdminCommand {
        opcode: GET_LOG_PAGE,
        nsid: ALL_NAMESPACES,
        addr: page.as_mut_ptr().expose_provenance() as u64,
        data_len: SMART_LEN as u32,
        // Its length is counted in dwords, less one.
        cdw10: SMART_LOG | (SMART_LEN as u32 / 4 - 1) << 16,
        timeout_ms: 1000,
        ..AdminCommand::default()
    };
    // SAFETY: the page is as long as the command says, and outlives the call.
    let status = unsafe { ioctl(device, command) };
    (status == Ok(0)).then(|| parse(&page))
}

/// Returns the values of a SMART log (NVM Express Base Specification 2.0, figure 207).
fn parse(page: &[u8; SMART_LEN]) -> Health {
    let errors = page[160..176].iter().rev().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
    Health {
        life_used: Some(page[5]),
        spare: Some(page[3]),
        media_errors: Some(u64::try_from(errors).unwrap_or(u64::MAX)),
        warnings: Some(page[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_the_specification_lays_it_out() {
        let mut page = [0; SMART_LEN];
        page[..6].copy_from_slice(&[4, 0x2c, 0x01, 93, 10, 107]);
        page[160..162].copy_from_slice(&[0x01, 0x02]);
        page[176] = 9;
        let health =
            Health { life_used: Some(107), spare: Some(93), media_errors: Some(0x201), warnings: Some(4) };
        assert_eq!(parse(&page), health);
        page[170] = 1;
        assert_eq!(parse(&page).media_errors, Some(u64::MAX));
    }
}
