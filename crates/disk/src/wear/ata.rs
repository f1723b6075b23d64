//! The Device Statistics log of SATA SSDs (ACS-4, section 9.5), read through SCSI (SAT-4, ATA PASS-THROUGH (16)).

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Opcode, Updater, ioctl};

use super::Health;

const PAGE_LEN: usize = 512;
const GENERAL_ERRORS: u8 = 4;
const SOLID_STATE: u8 = 7;

const SG_IO: Opcode = 0x2285;
const FROM_DEVICE: i32 = -3;

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
struct ScsiCommand {
    interface_id: i32,
    direction: i32,
    command_len: u8,
    sense_max: u8,
    iovec_count: u16,
    data_len: u32,
    data: *mut u8,
    command: *const u8,
    sense: *mut u8,
    timeout_ms: u32,
    flags: u32,
    pack_id: i32,
    user: *mut c_void,
    status: u8,
    masked_status: u8,
    message_status: u8,
    sense_len: u8,
    host_status: u16,
    driver_status: u16,
    residual: i32,
    duration: u32,
    info: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<ScsiCommand>() == 88);

/// Returns `None` if the device has neither of the two values, like hard disks and devices that are not ATA.
pub(super) fn health(device: &OwnedFd) -> Option<Health> {
    let life_used = read_page(device, SOLID_STATE).and_then(|page| statistic(&page, SOLID_STATE));
    let media_errors = read_page(device, GENERAL_ERRORS).and_then(|page| statistic(&page, GENERAL_ERRORS));
    life_used.or(media_errors)?;
    Some(Health { life_used: life_used.map(|value| value as u8), media_errors, ..Health::default() })
}

/// Reads a page of the Device Statistics log with READ LOG EXT.
fn read_page(device: &OwnedFd, number: u8) -> Option<[u8; PAGE_LEN]> {
    let mut page = [0; PAGE_LEN];
    let mut sense = [0_u8; 32];
    let command: [u8; 16] = [
        0x85, // ATA PASS-THROUGH (16)
        0x09, // PIO in, 48-bit
        0x0e, // from the device, as many blocks as the count says
        0, 0, 0, 1, // one block
        0, 0x04, // the Device Statistics log
        0, number, 0, 0, 0, 0x2f, // READ LOG EXT
        0,
    ];
    let mut request = ScsiCommand {
        interface_id: i32::from(b'S'),
        direction: FROM_DEVICE,
        command_len: command.len() as u8,
        sense_max: sense.len() as u8,
        iovec_count: 0,
        data_len: PAGE_LEN as u32,
        data: page.as_mut_ptr(),
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout_ms: 1000,
        flags: 0,
        pack_id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        masked_status: 0,
        message_status: 0,
        sense_len: 0,
        host_status: 0,
        driver_status: 0,
        residual: 0,
        duration: 0,
        info: 0,
    };
    // SAFETY: SG_IO takes this struct. Its pointers lead to memory of the stated lengths, which outlives the call.
    unsafe { ioctl(device, Updater::<SG_IO, ScsiCommand>::new(&mut request)) }.ok()?;
    let done = request.status == 0 && request.host_status == 0 && request.residual == 0;
    done.then_some(page)
}

/// Returns the first statistic of a page, if it is the right page and the device keeps the value.
fn statistic(page: &[u8; PAGE_LEN], number: u8) -> Option<u64> {
    const SUPPORTED_AND_VALID: u8 = 0xc0;
    let value = &page[8..16];
    let kept = page[2] == number && value[7] & SUPPORTED_AND_VALID == SUPPORTED_AND_VALID;
    let len = if number == SOLID_STATE { 1 } else { 4 };
    kept.then(|| value[..len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u8, value: [u8; 8]) -> [u8; PAGE_LEN] {
        let mut page = [0; PAGE_LEN];
        page[..3].copy_from_slice(&[1, 0, number]);
        page[8..16].copy_from_slice(&value);
        page
    }

    #[test]
    fn a_statistic_counts_only_when_the_device_keeps_it() {
        let life = |flags| statistic(&page(SOLID_STATE, [12, 99, 0, 0, 0, 0, 0, flags]), SOLID_STATE);
        assert_eq!(life(0xc0), Some(12));
        assert_eq!(life(0x80), None, "supported, but not valid now");
        assert_eq!(life(0x00), None);
        let errors = page(GENERAL_ERRORS, [1, 2, 0, 0, 0, 0, 0, 0xe0]);
        assert_eq!(statistic(&errors, GENERAL_ERRORS), Some(0x201));
        assert_eq!(statistic(&errors, SOLID_STATE), None, "another page");
    }
}
