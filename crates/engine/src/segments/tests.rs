use super::*;

mod tail;

/// Returns a table with two devices of `each` segments.
fn segments(each: u32) -> Segments {
    let free = || (0..each).rev().collect();
    Segments::new(1, vec![free(), free()], vec![each, each])
}

fn reach_of(segments: &Segments) -> Reach {
    segments.advance()
}

#[test]
fn a_second_leg_is_free_only_once_a_later_tail_is_durable() {
    let segments = segments(4);
    let old = segments.open(SegmentKind::Log, 2, 0).unwrap();
    segments.place(old.id, true);
    let before = reach_of(&segments);
    segments.seal(old.id);
    segments.open(SegmentKind::Log, 2, 0).unwrap();
    assert_eq!(reach_of(&segments), before, "it holds a dirty block");
    segments.clean(old.id);
    let after = reach_of(&segments);
    assert!(after.tail > before.tail);
    assert!(!segments.reached(before), "an earlier frame says nothing of it");
    assert!(segments.reached(after));
    assert_eq!(segments.get(old.id).unwrap().legs.len(), 1, "the first leg goes on as clean cache");
}

#[test]
fn segments_leave_the_log_oldest_first() {
    let segments = segments(8);
    let opened: Vec<_> = (0..3).map(|_| segments.open(SegmentKind::Log, 2, 0).unwrap()).collect();
    segments.place(opened[0].id, true);
    opened.iter().for_each(|opened| segments.seal(opened.id));
    assert_eq!(reach_of(&segments).tail, opened[0].seq, "clean ones wait for the oldest");
    segments.clean(opened[0].id);
    assert!(reach_of(&segments).tail > opened[2].seq);
}

#[test]
fn a_cut_not_carried_out_holds_its_segment() {
    let segments = segments(8);
    let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
    segments.hold(opened.id);
    segments.seal(opened.id);
    assert_eq!(reach_of(&segments).tail, opened.seq);
    segments.release(opened.id);
    assert!(reach_of(&segments).tail > opened.seq);
}

#[test]
fn clean_segments_are_let_go_before_the_log_segment_they_were_opened_beside() {
    let segments = segments(8);
    let log = segments.open(SegmentKind::Log, 2, 0).unwrap();
    let clean = segments.open(SegmentKind::Clean, 1, 0).unwrap();
    assert!(clean.seq > log.seq);
    assert_eq!(segments.first().unwrap().0, clean.id);
    segments.free_segment(clean.id);
    assert!(segments.first().is_none(), "the log is not let go");
    let reach = reach_of(&segments);
    assert!(segments.reached(reach), "no later record is needed to kill it");
}

#[test]
fn what_is_let_go_is_free_only_once_that_is_durable() {
    let segments = segments(1);
    let clean = segments.open(SegmentKind::Clean, 1, 0).unwrap();
    segments.seal(clean.id);
    segments.free_segment(clean.id);
    assert!(!segments.could_open(2, 0, false) && segments.could_open(2, 0, true));
    let reach = reach_of(&segments);
    segments.reached(reach);
    assert!(segments.could_open(2, 0, false));
}

#[test]
fn a_lost_device_takes_its_legs_with_it() {
    let segments = segments(4);
    let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
    segments.lose(opened.legs[0].device);
    assert_eq!(segments.get(opened.id).unwrap().legs.as_slice(), &opened.legs[1..]);
    assert!(segments.open(SegmentKind::Log, 2, 0).is_none());
    assert_eq!(segments.open(SegmentKind::Log, 1, 0).unwrap().legs[0].device, opened.legs[1].device);
}

#[test]
fn of_segments_found_on_two_devices_each_keeps_its_share() {
    let segments = segments(4);
    let opened: Vec<_> = (0..4).map(|_| segments.open(SegmentKind::Log, 2, 0).unwrap()).collect();
    let mut unused = segments.unused();
    let kept = opened.iter().map(|opened| segments.legs_to_load(opened.id, &mut unused)[0].device);
    assert_eq!(kept.filter(|device| *device == 0).count(), 2);
    assert_eq!(unused, [2, 2]);
}

#[test]
fn segments_of_little_that_counts_are_wasteful_once_they_take_half_of_the_devices() {
    let segments = segments(4);
    let log = segments.open(SegmentKind::Log, 2, 0).unwrap();
    let clean: Vec<_> = (0..4).map(|_| segments.open(SegmentKind::Clean, 1, 0).unwrap()).collect();
    assert!(!segments.is_wasteful(16), "that of the log cannot be had");
    segments.open(SegmentKind::Clean, 1, 0).unwrap();
    assert!(segments.is_wasteful(16));
    for _ in 0..20 {
        segments.place(clean[0].id, false);
    }
    assert!(!segments.is_wasteful(16), "a quarter counts");
    assert!(segments.get(log.id).is_some());
}

fn devices_of(opened: &Opened) -> Vec<u16> {
    let mut devices: Vec<_> = opened.legs.iter().map(|place| place.device).collect();
    devices.sort_unstable();
    devices
}

#[test]
fn a_device_that_is_being_removed_takes_the_log_only_while_fewer_than_two_others_are_there() {
    let free = || (0..4).rev().collect();
    let segments = Segments::new(1, vec![free(), free(), free()], vec![4; 3]);
    assert_eq!((segments.retire(0), segments.retire(1)), (None, Some(0)));
    assert_eq!((segments.staying(), segments.devices()), (2, 2));
    let head = segments.open(SegmentKind::Log, 2, 0).unwrap();
    assert_eq!(devices_of(&head), [1, 2]);
    assert!(segments.is_mirrored(Some(head.id)) && segments.may_go(0, None));
    segments.place(head.id, true);
    assert_eq!(segments.dirty_before_removal(), Some(0), "the log is on the other two");
    segments.lose(1);
    assert_eq!(segments.dirty_before_removal(), Some(1), "one device will be left");
    assert_eq!(segments.dirty_until_mirrored(), 1);
    assert_eq!((segments.staying(), segments.devices()), (1, 2));
    assert!(!segments.may_go(0, None), "it may be needed");
    assert_eq!(devices_of(&segments.open(SegmentKind::Log, 2, 0).unwrap()), [0, 2]);
    assert_eq!(devices_of(&segments.open(SegmentKind::Clean, 1, 0).unwrap()), [2]);
    segments.end_retiring();
    assert_eq!((segments.staying(), segments.dirty_before_removal()), (2, None));
}

#[test]
fn a_removal_waits_for_the_log_up_to_the_last_segment_on_the_device() {
    let free = || (0..4).rev().collect();
    let segments = Segments::new(1, vec![free(), free(), free()], vec![4; 3]);
    let opened: Vec<_> = (0..4).map(|_| segments.open(SegmentKind::Log, 2, 0).unwrap()).collect();
    for (number, opened) in opened.iter().enumerate() {
        for _ in 0..=number {
            segments.place(opened.id, true);
        }
    }
    assert_eq!(segments.dirty_until_mirrored(), 0);
    for device in 0..3 {
        let last = opened.iter().rposition(|opened| devices_of(opened).contains(&device)).unwrap();
        segments.retire(device);
        assert_eq!(segments.dirty_before_removal(), Some((1..=last as u64 + 1).sum()), "device {device}");
        segments.end_retiring();
    }
}

#[test]
fn one_of_two_devices_may_go_when_the_log_has_nothing_that_needs_both() {
    let segments = segments(4);
    let open = || segments.open(SegmentKind::Log, 2, 0).unwrap();
    let old = open();
    segments.place(old.id, true);
    assert!(segments.is_mirrored(Some(old.id)));
    segments.retire(0);
    assert!(!segments.is_mirrored(Some(old.id)), "one device will be left");
    let since = Some(segments.next_seq());
    assert!(!segments.may_go(0, since));
    segments.clean(old.id);
    assert!(!segments.may_go(0, since), "a note may be in it");
    segments.seal(old.id);
    let head = open();
    assert!(segments.may_go(0, since), "on both, and that does not matter");
    segments.gain(2, 4);
    assert!(!segments.is_mirrored(Some(head.id)), "it is about to go");
    segments.end_retiring();
    assert!(segments.is_mirrored(Some(head.id)));
}

#[test]
fn a_place_is_not_used_again_while_its_copy_is_being_repaired() {
    let segments = segments(2);
    let old = segments.open(SegmentKind::Log, 2, 0).unwrap();
    let places = old.legs.clone();
    let repairs: Vec<_> = places.iter().map(|place| segments.begin_repair(old.id, *place).unwrap()).collect();
    segments.seal(old.id);
    segments.open(SegmentKind::Log, 2, 0).unwrap();
    let reach = reach_of(&segments);
    assert!(!segments.reached(reach) && segments.unused_everywhere() == 0, "one leg was given up");
    assert!(segments.open(SegmentKind::Clean, 1, 0).is_none());
    drop(repairs);
    assert!(segments.reached(reach), "by any later frame");
    let reused = segments.open(SegmentKind::Clean, 1, 0).unwrap();
    let gone = reused.legs[0];
    assert!(places.contains(&gone));
    assert!(segments.begin_repair(old.id, gone).is_none(), "it is another segment's now");
}

#[test]
fn numbers_of_segments_come_again_only_when_they_are_not_in_use() {
    let segments = segments(8);
    let first = segments.open(SegmentKind::Log, 2, 0).unwrap();
    let second = segments.open(SegmentKind::Log, 2, 0).unwrap();
    segments.inner.lock().next_id = SegmentId::MAX - 1;
    let ids: Vec<_> = (0..3).map(|_| segments.open(SegmentKind::Log, 2, 0).unwrap().id).collect();
    assert_eq!(ids, [SegmentId::MAX - 1, second.id + 1, second.id + 2]);
    assert_eq!([first.id, second.id].map(|id| segments.get(id).unwrap().seq), [first.seq, second.seq]);
}

#[cfg(feature = "plant")]
#[test]
fn planted_bugs_of_segments_are_found() {
    use crate::planted_bugs::IN_UNIT_TESTS;
    let finders: [(&str, fn()); 1] = [(
        "legs are used again before it is durable that they are given up",
        a_second_leg_is_free_only_once_a_later_tail_is_durable,
    )];
    assert!(IN_UNIT_TESTS.iter().all(|bug| finders.iter().any(|(found, _)| found == bug)));
    for (bug, finder) in finders {
        forebay_common::planted_bugs::plant(Some(bug));
        let failed = std::panic::catch_unwind(finder).is_err();
        forebay_common::planted_bugs::plant(None);
        assert!(failed, "MISSED: {bug}");
    }
}
