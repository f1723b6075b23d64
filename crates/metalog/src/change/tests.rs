use super::*;
use crate::tests::{Bench, at_once, identity};

#[test]
fn only_what_has_no_open_change_before_it_is_confirmed() {
    let bench = Bench::new();
    let begin = || bench.volume.changed(DurableBy::Each, ChangeEffects::default());
    let (first, mut second, third) = (begin(), begin(), begin());
    assert_eq!(bench.sequence.confirmed(), 10);
    drop(third);
    assert_eq!(bench.sequence.confirmed(), 10);
    drop(first);
    assert_eq!(bench.sequence.confirmed(), 11);
    second.failed = true;
    drop(second);
    assert_eq!(bench.sequence.confirmed(), 11, "nothing after a change that failed");
}

#[test]
fn a_rename_says_what_it_is_about_to_do_and_takes_it_back_if_it_fails() {
    let Bench { volume, sequence, disk, .. } = Bench::new();
    let slots = Arc::new(Slots::new(1));
    let dirs = [identity(1), identity(2)];
    let announce = || at_once(volume.announce(&disk, &slots, DurableBy::Log, dirs)).unwrap();
    let announced = announce();
    assert_eq!((announced.number(), sequence.carried_out(), slots.are_taken()), (11, 10, true));
    announced.say().unwrap();
    let intent = RenameIntent { log: 77, number: 11, filesystem: 3, dirs };
    assert_eq!(*disk.slot.0.lock(), Some(intent));
    drop(announced);
    assert_eq!((disk.slot.0.lock().is_some(), sequence.carried_out(), slots.are_taken()), (false, 11, false));
    let announced = announce();
    announced.say().unwrap();
    let pending = announced.carried_out(ChangeEffects::default());
    assert_eq!((pending.number(), sequence.carried_out(), slots.are_taken()), (12, 12, true));
    drop(pending);
    assert!(disk.slot.0.lock().is_some() && !slots.are_taken(), "an intent stays until the slot's next one");
}
