//! Tests of volumes whose backing device refuses to make its data durable.

use crate::nbd_client::{FAILING, Rig};
use crate::volumes::{FLUSH, FUA, TRIM, WRITE, WRITE_ZEROES};

const BLOCK: usize = 4096;
const EIO: u32 = 5;

#[test]
fn a_flush_that_fails_is_told_to_every_client_until_the_data_is_written_again() {
    for mode in ["write-through", "write-around", "pass-through"] {
        let mut rig = Rig::new(FAILING);
        rig.server.ask(&["volume", "mode", "far", mode]);
        let (mut nbd, mut other) = (rig.open(), rig.open());
        rig.write(&mut nbd, FUA, 0, 1, BLOCK);
        rig.export.fail_flushes(true);
        for kind in [WRITE, TRIM, WRITE_ZEROES] {
            let data = if kind == WRITE { &[2; BLOCK][..] } else { &[] };
            assert_eq!(nbd.call(kind, FUA, 0, BLOCK, data).0, EIO, "{mode}: request {kind}");
        }
        assert_eq!(nbd.call(FLUSH, 0, 0, 0, &[]).0, EIO, "{mode}");
        rig.export.fail_flushes(false);
        // The failed flush may have lost the change for good.
        for client in [&mut nbd, &mut other] {
            assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).0, EIO, "{mode}");
        }
        rig.write(&mut nbd, FUA, 0, 3, BLOCK);
        other.flush();
        other.holds(&rig.expected);
        rig.check_image();
    }
}

#[test]
fn a_flush_needs_no_device_for_what_the_log_has_and_destaging_goes_on_after_a_failed_one() {
    let mut rig = Rig::new(FAILING);
    let mut nbd = rig.open();
    rig.export.fail_flushes(true);
    rig.write(&mut nbd, FUA, 0, 1, BLOCK);
    rig.write(&mut nbd, 0, 5000, 2, BLOCK);
    nbd.flush();
    let refused = rig.server.try_ask(&["volume", "flush", "far"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("volume far could not be destaged"));
    rig.server.kill();
    rig.server.start();
    // The server does not use the device before a flush has succeeded.
    assert!(rig.open().read(0, 3 * BLOCK) == rig.expected[..3 * BLOCK]);
    rig.export.fail_flushes(false);
    crate::harness::wait_for(|| rig.server.try_ask(&["volume", "flush", "far"]).status.success());
    rig.check_image();
}
