//! Tests of the registers.

use super::*;

fn time(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}

#[test]
fn concurrent_operations_may_come_in_either_order_and_an_observation_decides() {
    let mut register: Register<Time, Time> = Register::new(time(0));
    register.begin(1, time(1));
    register.begin(2, time(2));
    assert_eq!(register.possible(register.visible()).len(), 3);
    register.acknowledge(1, true, true, true);
    register.acknowledge(2, true, true, true);
    assert_eq!(register.possible(register.visible()).len(), 2, "not the old one any more");
    register.fold(true, false);
    assert!(register.observe(0, |value| *value == time(1)));
    assert!(!register.observe(0, |value| *value == time(2)), "no going back");
}

#[test]
fn a_crash_takes_back_only_what_was_not_durable_and_skips_nothing() {
    let mut register: Register<u64, Resize> = Register::new(0);
    for (id, durable) in [(1, true), (2, false), (3, false)] {
        register.begin(id, Resize::Set(u64::from(id)));
        register.acknowledge(id, true, true, durable);
    }
    assert_eq!(register.possible(register.visible()), [3]);
    register.crash(true, true);
    assert_eq!(register.folded(), Some(&[1, 2, 3][..]));
    assert!(register.observe(0, |size| *size == 2));
    assert_eq!(register.verdict(), (vec![1, 2], vec![3]));
}

#[test]
fn what_was_seen_stays_seen_and_what_failed_stays_possible() {
    let mut register: Register<u64, Resize> = Register::new(0);
    register.begin(1, Resize::Set(1));
    assert!(register.observe(0, |size| *size == 1));
    assert!(!register.observe(register.visible(), |size| *size == 0));
    register.begin(2, Resize::Set(2));
    register.acknowledge(1, true, true, true);
    register.acknowledge(2, false, false, false);
    register.fold(true, false);
    assert_eq!(register.folded(), Some(&[1, 2][..]));
}

#[test]
fn what_was_seen_of_a_failed_operation_stays_until_the_power_goes() {
    let mut register: Register<u64, Resize> = Register::new(0);
    register.begin(1, Resize::Set(1));
    register.acknowledge(1, false, false, false);
    register.fold(false, false);
    let mut failing = register.clone();
    assert!(register.observe(0, |size| *size == 1));
    assert!(!register.observe(0, |size| *size == 0), "no going back (P5)");
    register.crash(true, false);
    assert_eq!(register.folded(), Some(&[1][..]), "the page cache outlives the process");
    register.crash(true, true);
    assert!(register.observe(0, |size| *size == 0), "but not the power");
    assert!(!register.observe(0, |size| *size == 1), "and it does not come back");
    // If syncs fail, a page may be dropped at any time.
    failing.begin(2, Resize::Set(2));
    failing.acknowledge(2, false, false, false);
    failing.fold(false, true);
    assert!(failing.observe(0, |size| *size == 2) && failing.observe(0, |size| *size == 0));
}
