//! Tests of the rows about frames.

use super::*;

/// Makes a log of one segment with frames 1 and 2 on both devices. Frame 2 has blocks 4 and 5 of the file.
fn two_frames() -> Rig {
    let rig = Rig::new(2);
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(1, 1).with(0, &[1]), &[0, 1]);
    rig.frame(1, &frame_at(2, 3).with(4, &[4, 5]), &[0, 1]);
    rig
}

#[test]
fn r5_a_frame_before_another_one_counts_whatever_became_of_its_data() {
    let rig = two_frames();
    [0, 1].iter().for_each(|device| rig.rot(*device, 1, 2));
    let opened = rig.open().unwrap();
    assert_eq!(opened.notes(), [1, 2]);
    assert_eq!(opened.read(&rig, 0), Err(forebay_engine::Error::Damaged));
    assert_eq!(opened.read(&rig, 4), Ok(4));
}

#[test]
fn r6_the_last_frame_counts_if_each_block_is_good_on_some_leg_and_is_made_good_on_all() {
    let rig = two_frames();
    rig.rot(0, 1, 4);
    rig.rot(1, 1, 5);
    let opened = rig.open().unwrap();
    assert_eq!(opened.notes(), [1, 2]);
    for slot in 3..6 {
        assert!(rig.block(0, 1, slot) == rig.block(1, 1, slot), "slot {slot}");
    }
    assert_eq!([4, 5].map(|block| opened.read(&rig, block)), [Ok(4), Ok(5)]);
}

#[test]
fn r6_a_last_frame_counts_with_a_block_of_which_the_log_says_that_it_is_damaged() {
    let rig = two_frames();
    let frame = frame_at(3, 6).with(8, &[0]);
    let mut body = rig.body(1, &frame);
    let data = body.records.iter_mut().find_map(|record| match record {
        Record::Data { checksums, .. } => Some(checksums),
        _ => None,
    });
    data.unwrap()[0] ^= 1;
    rig.frame_of(1, 1, &frame, &body, &[0, 1]);
    let opened = rig.open().unwrap();
    assert_eq!((opened.notes(), opened.recovered.frames), (vec![1, 2, 3], 3));
    assert_eq!(opened.read(&rig, 8), Err(forebay_engine::Error::Damaged));
}

#[test]
fn r7_the_last_frame_is_torn_if_a_block_is_good_on_no_leg() {
    let rig = two_frames();
    [0, 1].iter().for_each(|device| rig.rot(*device, 1, 5));
    let opened = rig.open().unwrap();
    assert_eq!((opened.notes(), opened.recovered.torn), (vec![1], true));
    assert_eq!([0, 4, 5].map(|block| opened.read(&rig, block)), [Ok(1), Ok(BACKING), Ok(BACKING)]);
}

#[test]
fn r8_a_frame_of_which_a_block_can_be_read_on_no_leg_is_a_hole() {
    for slot in [3, 5] {
        let rig = two_frames();
        rig.disks.iter().for_each(|disk| disk.spoil(Rig::place(1, slot)));
        assert_eq!(rig.hole(), 2, "slot {slot}");
    }
    // The records of this frame take two more blocks.
    let long = Record::UserRecord { bytes: [7; 4000].into() };
    for slot in [6, 8] {
        let rig = two_frames();
        let frame = Frame { records: vec![long.clone(); 3], ..frame_at(3, 6) };
        rig.frame(1, &frame, &[0, 1]);
        rig.disks.iter().for_each(|disk| disk.spoil(Rig::place(1, slot)));
        assert_eq!(rig.hole(), 3, "slot {slot}");
    }
    let rig = two_frames();
    rig.disks[0].spoil(Rig::place(1, 5));
    assert_eq!(rig.open().unwrap().notes(), [1, 2], "the other leg can be read");
}

#[test]
fn r9_the_log_ends_where_no_good_frame_is_behind() {
    let rig = two_frames();
    [0, 1].iter().for_each(|device| rig.rot(*device, 1, 3));
    let opened = rig.open().unwrap();
    assert_eq!((opened.notes(), opened.recovered.torn), (vec![1], false));
}

#[test]
fn r10_a_bad_frame_before_a_good_one_is_a_hole() {
    let rig = two_frames();
    rig.frame(1, &frame_at(3, 6), &[0, 1]);
    [0, 1].iter().for_each(|device| rig.rot(*device, 1, 3));
    assert_eq!(rig.hole(), 2);
}

#[test]
fn r11_a_frame_missing_before_the_next_segment_is_a_hole() {
    let rig = two_frames();
    rig.header(segment(2, 3), &[0, 1]);
    rig.frame(2, &frame_at(3, 1), &[0, 1]);
    assert_eq!(rig.open().unwrap().notes(), [1, 2, 3]);
    let rig = two_frames();
    rig.header(segment(2, 4), &[0, 1]);
    rig.frame(2, &frame_at(4, 1), &[0, 1]);
    assert_eq!(rig.hole(), 3);
}

#[test]
pub(crate) fn r12_a_frame_of_another_epoch_does_not_count() {
    for (epoch, counts) in [(EPOCH - 1, false), (EPOCH, true), (EPOCH + 1, false)] {
        let rig = two_frames();
        rig.frame(1, &Frame { epoch, ..frame_at(3, 6) }, &[0, 1]);
        assert_eq!(rig.open().unwrap().notes().contains(&3), counts, "epoch {epoch}");
    }
}

#[test]
pub(crate) fn r13_a_frame_that_the_next_segment_has_again_does_not_count() {
    let rig = two_frames();
    // Frame 3 was torn when the segment was given up; both its legs are good by chance.
    rig.frame(1, &frame_at(3, 6).with(8, &[8]), &[0, 1]);
    rig.header(segment(2, 3), &[0, 1]);
    rig.frame(2, &frame_at(3, 1), &[0, 1]);
    let opened = rig.open().unwrap();
    assert_eq!((opened.notes(), opened.read(&rig, 8)), (vec![1, 2, 3], Ok(BACKING)));
}

#[test]
pub(crate) fn r18_a_log_without_a_frame_that_is_known_to_be_durable_is_a_hole() {
    let rig = two_frames();
    rig.superblocks(|superblock| superblock.durable = 2);
    assert_eq!(rig.open().unwrap().notes(), [1, 2]);
    let rig = two_frames();
    rig.superblocks(|superblock| superblock.durable = 3);
    assert_eq!(rig.hole(), 3);
}

#[test]
pub(crate) fn r19_a_leg_that_lacks_a_frame_before_the_last_one_does_not_count() {
    for data in [false, true] {
        let rig = two_frames();
        rig.frame(1, &frame_at(3, 6), &[0, 1]);
        rig.rot(1, 1, if data { 4 } else { 3 });
        let opened = rig.open().unwrap();
        assert_eq!((opened.notes(), opened.read(&rig, 4)), (vec![1, 2, 3], Ok(4)));
        assert!(!opened.engine.is_mirrored(), "the first leg is alone");
    }
    let rig = two_frames();
    rig.rot(1, 1, 4);
    assert!(rig.open().unwrap().engine.is_mirrored(), "the last frame is made good");
}

#[test]
fn it_is_told_once_when_everything_is_on_two_devices_again() {
    let rig = two_frames();
    rig.frame(1, &frame_at(3, 6), &[0, 1]);
    rig.rot(1, 1, 3);
    let opened = rig.open().unwrap();
    assert!(!opened.engine.is_mirrored());
    // Only dirty blocks are in its way now.
    opened.engine.release_user_records(opened.recovered.notes[2].id);
    let (engine, clock) = (opened.engine.clone(), rig.executor.clone());
    rig.run(async move {
        while !engine.is_mirrored() {
            forebay_engine::io::Clock::sleep(&clock, Duration::from_millis(1)).await;
        }
    });
    let events = rig.events.lock().clone();
    let is_told = |event: &&Event| matches!(event, Event::Degraded { .. } | Event::Restored);
    let told: Vec<_> = events.iter().filter(is_told).collect();
    assert!(matches!(told[..], [Event::Degraded { .. }, Event::Restored]), "{told:?}");
}

#[test]
pub(crate) fn r20_the_last_frame_says_where_the_log_begins() {
    let rig = two_frames();
    rig.header(segment(2, 3), &[0, 1]);
    rig.frame(2, &Frame { tail: 2, ..frame_at(3, 1) }, &[0, 1]);
    assert_eq!(rig.open().unwrap().notes(), [3]);
}
