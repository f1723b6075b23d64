//! Tests of the rows about the effects of the log's records.

use forebay_engine::io::Backing as _;

use super::*;
use crate::backing::{Rates, Stuck};

/// Makes a log of two segments. The first has blocks 0 and 1 of the file; the second has a frame that `change`
/// modifies.
fn behind(change: impl FnOnce(Frame) -> Frame) -> Rig {
    let rig = Rig::new(2);
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame(1, &frame_at(1, 1).with(0, &[1, 2]), &[0, 1]);
    rig.header(segment(2, 2), &[0, 1]);
    rig.frame(2, &change(frame_at(2, 1)), &[0, 1]);
    rig
}

/// Returns the bytes that fill the first blocks of the file.
fn blocks(rig: &Rig, opened: &Opened) -> [u8; 2] {
    [0, 1].map(|block| opened.read(rig, block).unwrap())
}

#[test]
fn r23_of_two_copies_the_one_in_the_newer_segment_counts() {
    let rig = behind(|frame| frame.with(1, &[9]));
    let opened = rig.open().unwrap();
    assert_eq!(blocks(&rig, &opened), [1, 9]);
}

#[test]
pub(crate) fn r24_a_cut_is_carried_out_before_service_and_keeps_its_segment_until_then() {
    let cut =
        |frame: Frame| Frame { size: 4096, ..frame.recording(Record::Truncate { object: 0, size: 4096 }) };
    let rig = behind(cut);
    let opened = rig.open().unwrap();
    assert_eq!((opened.read(&rig, 0), rig.store.size_of(&file())), (Ok(1), 4096));
    // Only the truncation is left in the log, and the backing store does not carry it out before the next crash.
    let rig = behind(|frame| Frame { size: 0, ..frame.recording(Record::Truncate { object: 0, size: 0 }) });
    rig.store.set_rates(Rates { stuck: Some(Stuck::Truncate), ..Rates::default() });
    assert!(rig.open_within(Duration::from_secs(5)).is_err(), "service begins without the cut");
    rig.kill();
    rig.disks.iter().for_each(Disk::kill);
    rig.store.unstick();
    rig.open().unwrap();
    assert_eq!(rig.store.size_of(&file()), 0);
}

#[test]
fn r25_a_cut_that_was_carried_out_is_not_carried_out_again() {
    let rig = behind(|frame| {
        let cut = Record::Truncate { object: 0, size: 4096 };
        Frame { records: vec![cut, Record::Truncated { object: 0 }], size: 4096, ..frame }
    });
    let opened = rig.open().unwrap();
    assert_eq!(opened.read(&rig, 0), Ok(1));
    assert_eq!(rig.store.size_of(&file()), 16 * BLOCK as u64, "a direct write may have made it longer since");
}

#[test]
fn r26_copies_that_are_out_of_date_do_not_count() {
    let rig = behind(|frame| frame.recording(Record::Invalidate { object: 0, block: 1, count: 1 }));
    assert_eq!(blocks(&rig, &rig.open().unwrap()), [1, BACKING]);
}

#[test]
fn r27_of_an_object_that_was_removed_nothing_older_counts() {
    let rig = behind(|frame| {
        let cut = Record::Truncate { object: 0, size: 4096 };
        Frame { records: vec![cut, Record::Forget { object: 0 }], size: 0, ..frame }
    });
    let opened = rig.open().unwrap();
    assert_eq!(opened.recovered.dirty_blocks, 0);
    assert_eq!(rig.store.size_of(&file()), 16 * BLOCK as u64);
}

#[test]
fn r28_notes_are_handed_back_in_order() {
    let rig = behind(|frame| frame);
    assert_eq!(rig.open().unwrap().notes(), [1, 2]);
}

#[test]
fn r29_a_segment_without_a_footer_gets_one() {
    let rig = behind(|frame| frame);
    assert!(rig.block(0, 1, SLOTS - 1).iter().all(|byte| *byte == 0));
    rig.open().unwrap();
    for device in 0..2 {
        assert!(rig.block(device, 1, SLOTS - 1).starts_with(b"FBYFOOTR"), "device {device}");
    }
    rig.kill();
    assert_eq!(rig.open().unwrap().notes(), [1, 2], "by its footer");
}

/// Returns the bytes of the first blocks of the backing file, after all blocks are destaged that recovery takes for
/// dirty.
fn destaged_to(rig: &Rig) -> [u8; 2] {
    let engine = rig.open().unwrap().engine;
    let object = engine.object(&file(), 16 * BLOCK as u64);
    rig.run(async move { engine.destage_object(&object).await }).unwrap();
    let (buffer, read) = rig.run(rig.store.read(&file(), 0, Buffer::zeroed(2)));
    read.unwrap();
    [buffer[0], buffer[BLOCK]]
}

#[test]
fn r30_blocks_that_are_destaged_are_not_destaged_again() {
    let destaged = |block, count| Record::Destaged { object: 0, block, count };
    let rig = behind(|frame| frame.recording(destaged(0, 1)));
    assert_eq!(blocks(&rig, &rig.open().unwrap()), [1, 2], "the copy still counts");
    let rig = behind(|frame| frame.recording(destaged(0, 1)));
    assert_eq!(destaged_to(&rig), [BACKING, 2]);
    let rig = behind(|frame| frame.recording(destaged(1, u64::MAX)));
    assert_eq!(destaged_to(&rig), [1, BACKING]);
    // The record stands before newer contents of its block, in one frame.
    let rig = behind(|frame| frame.recording(destaged(0, 1)).with(0, &[9]));
    assert_eq!(destaged_to(&rig), [9, 2]);
}

/// Returns the key of one of many files.
fn key(number: u8) -> Key {
    Key::new(&[b'f', number]).unwrap()
}

/// Makes a log of one frame with the first block of each of `count` files. The files were once longer than the backing
/// store has them.
fn shorter_than_logged(count: u8) -> Rig {
    let rig = Rig::new(2);
    let mut body = Body::default();
    for number in 0..count {
        let mut content = Content::default();
        content.resize(BLOCK as u64);
        rig.store.create(&key(number), content);
        body.objects.push(Facts { key: key(number), size: 2 * BLOCK as u64, mtime: None });
        let slot = 2 + u16::from(number);
        let checksum = bind(content_hash(&[1; BLOCK]), rig.pool, key_hash(&key(number)), 0, 1, slot);
        let (object, checksums) = (u16::from(number), vec![checksum].into());
        body.records.push(Record::Data { object, block: 0, slot, checksums });
    }
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame_of(1, 1, &frame_at(1, 1).with(0, &vec![1; usize::from(count)]), &body, &[0, 1]);
    rig
}

/// Service must not wait for a sync of each file.
#[test]
fn files_that_become_longer_before_service_are_synced_together() {
    let rig = shorter_than_logged(50);
    rig.open().unwrap();
    for number in 0..50 {
        assert_eq!(rig.store.size_of(&key(number)), 2 * BLOCK as u64);
    }
    assert!(rig.store.syncs() <= 2, "{} syncs", rig.store.syncs());
}

/// Makes a log of one frame with a truncation of each of `count` files to one block. The backing store has two blocks
/// of each, except the last file, which is missing.
fn cut_in_log(count: u8) -> Rig {
    let rig = Rig::new(2);
    let mut body = Body::default();
    for number in 0..count {
        let mut content = Content::default();
        content.resize(2 * BLOCK as u64);
        if number + 1 < count {
            rig.store.create(&key(number), content);
        }
        body.objects.push(Facts { key: key(number), size: BLOCK as u64, mtime: None });
        body.records.push(Record::Truncate { object: u16::from(number), size: BLOCK as u64 });
    }
    rig.header(segment(1, 1), &[0, 1]);
    rig.frame_of(1, 1, &frame_at(1, 1), &body, &[0, 1]);
    rig
}

/// Opens the pool of 50 truncations, which are then carried out. Returns the number of syncs that this took.
fn carry_out_50_cuts(rig: &Rig) -> u64 {
    let frames = rig.open().unwrap().engine.counters().frames;
    for number in 0..49 {
        assert_eq!(rig.store.size_of(&key(number)), BLOCK as u64, "file {number}");
    }
    // The writer task writes one frame at once and one with the rest. Each round of truncations that failed before adds
    // one.
    assert!(frames < 20, "{frames} frames say that 50 cuts are carried out");
    rig.store.syncs()
}

/// Service must not wait for a sync of each file.
#[test]
fn files_that_are_cut_before_service_are_synced_together() {
    let rig = cut_in_log(50);
    assert_eq!(carry_out_50_cuts(&rig), 1);
    // Each truncation is known to be carried out, so none is carried out twice.
    rig.kill();
    assert_eq!(carry_out_50_cuts(&rig), 1);
}

#[test]
fn cuts_of_which_the_sync_fails_are_carried_out_again_together() {
    let rig = cut_in_log(50);
    // Half of the files fail, each time.
    rig.store.set_rates(Rates { sync_error: 5000, ..Rates::default() });
    let syncs = carry_out_50_cuts(&rig);
    assert!((2..20).contains(&syncs), "{syncs} syncs");
    let told = rig.events.lock();
    assert!(told.iter().any(|event| matches!(event, Event::BackingFailed { .. })), "{told:?}");
    assert!(told.iter().any(|event| matches!(event, Event::BackingHealed { .. })), "{told:?}");
}
