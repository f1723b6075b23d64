//! Tests of the rows about headers of segments, and about missing segments.

use super::*;

#[test]
pub(crate) fn r1_a_header_from_before_the_device_was_a_member_does_not_count() {
    let rig = Rig::new(2);
    let log = segment(1, 1);
    rig.header(log, &[0]);
    rig.frame(1, &frame_at(1, 1), &[0]);
    // The header is that of the last leg of an earlier log, which has one frame more.
    rig.header(Segment { epoch: SINCE - 1, ..segment(2, 2) }, &[1]);
    rig.frame(2, &Frame { epoch: SINCE - 1, ..frame_at(2, 1) }, &[1]);
    assert_eq!(rig.open().unwrap().notes(), [1]);
}

#[test]
pub(crate) fn r2_of_two_lives_of_a_number_the_later_one_counts() {
    // Either leg is met first.
    for (old, new) in [(1, 2), (2, 1)] {
        let rig = Rig::new(1);
        let log = segment(1, 1);
        rig.header_at(Segment { epoch: SINCE, ..log }, old, &[0]);
        rig.frame_at(1, old, &Frame { epoch: SINCE, ..frame_at(1, 1) }, &[0]);
        rig.frame_at(1, old, &Frame { epoch: SINCE, ..frame_at(2, 2) }, &[0]);
        rig.header_at(log, new, &[0]);
        rig.frame_at(1, new, &frame_at(1, 1), &[0]);
        assert_eq!(rig.open().unwrap().notes(), [1], "the old one is at {old}");
    }
}

#[test]
fn r3_headers_with_one_number_and_one_epoch_are_legs_of_one_segment() {
    let rig = Rig::new(2);
    rig.header(segment(1, 1), &[0, 1]);
    // Each leg has a frame that the other leg lacks.
    rig.frame(1, &frame_at(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(2, 2), &[0]);
    assert_eq!(rig.open().unwrap().notes(), [1, 2]);
    assert!(rig.block(1, 1, 2).starts_with(b"FBYFRAME"), "the second leg has the last frame now");
}

/// Returns how many blocks the index has on the devices once all that is out of the log is loaded.
fn clean_blocks(rig: &Rig, opened: &Opened) -> u64 {
    let engine = opened.engine.clone();
    let clock = rig.executor.clone();
    rig.run(async move {
        while engine.warming().is_some() {
            forebay_engine::io::Clock::sleep(&clock, Duration::from_millis(1)).await;
        }
    });
    opened.engine.usage().ssd_blocks
}

/// Segment `seq`, full, with frame `seq` that has a block of the file.
fn full_segment(rig: &Rig, seq: u64) {
    rig.header(segment(seq, seq), &[0]);
    let frame = frame_at(seq, 1).with(seq, &[7]);
    rig.frame(seq, &frame, &[0]);
    rig.footer(seq, &frame, &[0]);
}

#[test]
fn a_segment_that_was_let_go_does_not_count() {
    for (oldest, blocks) in [(0, 2), (1, 2), (2, 1), (3, 0)] {
        let rig = Rig::new(1);
        full_segment(&rig, 1);
        full_segment(&rig, 2);
        rig.header(segment(3, 3), &[0]);
        rig.frame(3, &Frame { tail: 3, oldest, ..frame_at(3, 1) }, &[0]);
        let opened = rig.open().unwrap();
        assert_eq!((opened.notes(), clean_blocks(&rig, &opened)), (vec![3], blocks), "oldest {oldest}");
    }
}

#[test]
fn what_a_missing_segment_may_have_said_is_out_of_date_does_not_count() {
    for (is_there, blocks) in [(true, 2), (false, 0)] {
        let rig = Rig::new(1);
        full_segment(&rig, 1);
        if is_there {
            full_segment(&rig, 2);
        }
        rig.header(segment(3, 3), &[0]);
        rig.frame(3, &Frame { tail: 3, ..frame_at(3, 1) }, &[0]);
        let opened = rig.open().unwrap();
        assert_eq!((opened.notes(), clean_blocks(&rig, &opened)), (vec![3], blocks), "there: {is_there}");
    }
}

#[test]
fn r4_where_a_header_cannot_be_read_no_segment_out_of_the_log_counts() {
    for unreadable in [false, true] {
        let rig = Rig::new(1);
        // The segment is out of the log, but in use.
        rig.header(segment(1, 1), &[0]);
        let frame = frame_at(1, 1).with(3, &[7]);
        rig.frame(1, &frame, &[0]);
        rig.footer(1, &frame, &[0]);
        rig.header(segment(2, 2), &[0]);
        rig.frame(2, &Frame { tail: 2, ..frame_at(2, 1) }, &[0]);
        if unreadable {
            rig.disks[0].spoil(Rig::place(9, 0));
        }
        let opened = rig.open().unwrap();
        assert_eq!(opened.notes(), [2]);
        assert_eq!(clean_blocks(&rig, &opened) > 0, !unreadable);
    }
}

#[test]
fn r14_a_segment_that_is_not_there_had_no_frame_where_the_one_before_it_has_all() {
    let rig = Rig::new(2);
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(2, 2), &[0, 1]);
    rig.header(segment(3, 3), &[0, 1]);
    rig.frame(3, &frame_at(3, 1), &[0, 1]);
    assert_eq!(rig.open().unwrap().notes(), [1, 2, 3]);
}

#[test]
fn r15_a_segment_that_is_not_there_is_a_hole_where_a_frame_is_missing() {
    let rig = Rig::new(2);
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(1, 1), &[0, 1]);
    rig.header(segment(3, 3), &[0, 1]);
    rig.frame(3, &frame_at(3, 1), &[0, 1]);
    assert_eq!(rig.hole(), 2);
}

#[test]
fn r16_a_log_without_its_tail_is_a_hole() {
    let rig = Rig::new(2);
    rig.header(segment(2, 3), &[0, 1]);
    rig.frame(2, &frame_at(3, 1), &[0, 1]);
    assert_eq!(rig.hole(), 2);
    // No frame says where the log begins. The superblocks do, whether or not they know of the newest segment.
    for newest in [1, 2] {
        let rig = Rig::new(2);
        rig.header(segment(2, 3), &[0, 1]);
        rig.superblocks(|superblock| (superblock.newest, superblock.durable) = (newest, 2));
        assert_eq!(rig.hole(), 2, "newest {newest}");
    }
}

#[test]
pub(crate) fn r17_a_log_without_the_newest_segment_that_is_known_is_a_hole() {
    for (newest, has_log) in [(1, true), (2, true), (2, false)] {
        let rig = Rig::new(2);
        if has_log {
            rig.header(segment(1, 1), &[0, 1]);
            rig.frame(1, &frame_at(1, 1), &[0, 1]);
        }
        rig.superblocks(|superblock| superblock.newest = newest);
        match (newest, has_log) {
            (1, _) => assert_eq!(rig.open().unwrap().notes(), [1]),
            (_, true) => assert_eq!(rig.hole(), 2),
            (_, false) => assert_eq!(rig.hole(), 1),
        }
    }
}

#[test]
fn r21_a_device_that_goes_during_recovery_is_named_and_nothing_is_given_up() {
    let rig = Rig::new(1);
    rig.header(segment(1, 1), &[0]);
    rig.frame(1, &frame_at(1, 1), &[0]);
    rig.superblocks(|superblock| superblock.newest = 1);
    // The device vanishes while headers are read.
    rig.disks[0].vanish_in(Some(30));
    let Err(OpenError::Pool(PoolError::Unreadable { device, .. })) = rig.open() else { panic!("it opens") };
    assert_eq!(device, "a");
    rig.kill();
    rig.disks[0].vanish_in(None);
    rig.disks[0].appear();
    assert_eq!(rig.open().unwrap().notes(), [1]);
}

#[test]
fn r22_a_pool_that_never_had_two_devices_drops_a_log_with_a_hole() {
    let rig = Rig::new(1);
    rig.header(segment(1, 1), &[0]);
    rig.frame(1, &frame_at(1, 1).with(0, &[1]), &[0]);
    rig.frame(1, &frame_at(3, 4), &[0]);
    let opened = rig.open().unwrap();
    assert_eq!((opened.notes(), opened.read(&rig, 0)), (vec![], Ok(BACKING)));
    assert!(rig.events.lock().contains(&Event::LogDropped));
    let engine = opened.engine.clone();
    let (frame, _) = rig.run(async move { engine.note(&[1; 8]).await }).unwrap();
    assert!(frame > 3, "frame {frame}: no number is used again");
}
