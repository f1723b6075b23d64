//! Tests of the conditions that keep segments in the log, and of the segments that recovery may find.

use super::*;
use crate::segments::space::MOVABLE;

fn three_devices() -> Segments {
    let free = || (0..8).rev().collect();
    Segments::new(1, vec![free(), free(), free()], vec![8; 3])
}

#[test]
fn write_back_waits_until_it_is_durable_that_the_last_segment_with_one_leg_left_the_log() {
    let segments = three_devices();
    let [before, lone, head] = [2, 1, 2].map(|legs| segments.open(SegmentKind::Log, legs, 0).unwrap());
    segments.place(before.id, true);
    let first = reach_of(&segments);
    let keep = || [before.id, lone.id, head.id].map(|id| segments.keeps_lone(id));
    assert_eq!(keep(), [true, true, false], "what is in front of it has to go first");
    segments.seal(before.id);
    segments.clean(before.id);
    let second = reach_of(&segments);
    assert!(second.tail == lone.seq && !segments.lone_left(), "it is the log's oldest");
    assert!(segments.reached(second), "a leg is free");
    segments.seal(lone.id);
    let third = reach_of(&segments);
    assert!(segments.lone_left() && !segments.is_mirrored(Some(head.id)), "a crash would bring it back");
    assert!(!segments.reached(first) && segments.lone_left(), "an earlier frame says nothing of it");
    assert!(segments.reached(third) && segments.is_mirrored(Some(head.id)));
    assert!(!segments.lone_left() && keep() == [false; 3]);
    assert!(!segments.reached(third), "it was told of");
}

#[test]
fn dirty_blocks_are_written_again_up_to_the_last_segment_with_one_leg() {
    let segments = three_devices();
    let [before, lone, after, head] =
        [2, 1, 2, 2].map(|legs| segments.open(SegmentKind::Log, legs, 0).unwrap());
    let rewritten = || segments.to_rewrite(head.id).map(|(id, _)| id);
    for old in [&before, &lone, &after] {
        segments.place(old.id, true);
        assert!(rewritten() != Some(old.id), "it is still written");
        segments.seal(old.id);
    }
    for old in [&before, &lone] {
        assert_eq!(rewritten(), Some(old.id));
        assert!(segments.is_tail(old.id));
        assert!(segments.to_rewrite(lone.id).is_none(), "not to where only one leg is");
        segments.clean(old.id);
        segments.advance();
        assert!(!segments.is_tail(old.id));
    }
    assert_eq!(rewritten(), None, "of this one there are two");
}

#[test]
fn damaged_blocks_are_written_again_once_nothing_else_keeps_their_segment() {
    let segments = segments(4);
    let [old, head] = [(); 2].map(|()| segments.open(SegmentKind::Log, 2, 0).unwrap());
    segments.seal(old.id);
    let rewritten = || segments.to_rewrite(head.id).is_some();
    assert!(!rewritten(), "nothing keeps it");
    segments.place(old.id, true);
    segments.place(old.id, true);
    segments.damage(old.id, true);
    assert_eq!(segments.damaged(), 1);
    assert!(!rewritten(), "the other block is destaged");
    segments.clean(old.id);
    assert!(rewritten());
    segments.damage(old.id, false);
    assert_eq!(segments.damaged(), 0);
    assert!(!rewritten(), "it can be destaged");
}

#[test]
fn the_oldest_segment_is_compacted_when_the_log_is_long_and_a_sixth_of_it_is_not_dirty() {
    let segments = segments(10);
    // The log's share is 7 segments. With 9 segments the log is longer than 23 twentieths of it.
    let first = segments.open(SegmentKind::Log, 2, 0).unwrap();
    segments.seal(first.id);
    segments.place(first.id, true);
    let slots = 12;
    let compacted = || segments.worth_compacting(slots).map(|(id, _)| id);
    for _ in 1..8 {
        segments.open(SegmentKind::Log, 2, 0).unwrap();
    }
    assert_eq!((segments.log_use().share, compacted()), (7, None), "not so long");
    let head = segments.open(SegmentKind::Log, 2, 0).unwrap();
    assert_eq!(compacted(), Some(first.id));
    for _ in 1..9 * slots / 6 * 5 {
        segments.place(head.id, true);
    }
    assert_eq!(compacted(), Some(first.id), "a sixth is not dirty");
    segments.place(head.id, true);
    assert_eq!(compacted(), None);
}

#[test]
fn a_slot_that_is_durable_stays_so() {
    let segments = segments(4);
    let head = segments.open(SegmentKind::Log, 2, 0).unwrap();
    for (slot, durable) in [(5, 5), (9, 9), (7, 9)] {
        segments.durable(head.id, slot);
        assert_eq!(segments.get(head.id).unwrap().durable, durable);
    }
}

#[test]
fn nothing_is_wasteful_while_it_is_loaded_or_is_too_much_to_write_again() {
    let segments = Segments::new(1, vec![vec![0], vec![0]], vec![1000, 1000]);
    let clean = segments.open(SegmentKind::Clean, 1, 0).unwrap();
    assert!(segments.is_wasteful(1));
    segments.set_warming(true);
    assert!(!segments.is_wasteful(1), "what counts is not known");
    segments.set_warming(false);
    (1..MOVABLE).for_each(|_| _ = segments.place(clean.id, false));
    assert!(segments.is_wasteful(1));
    segments.place(clean.id, false);
    assert!(!segments.is_wasteful(1), "too much");
}

#[test]
fn of_two_cold_legs_one_goes_that_is_not_being_repaired() {
    let segments = Segments::new(1, vec![vec![], vec![]], vec![1, 1]);
    let legs = [0, 1].map(|device| Place { device, segment: 0 });
    let segment = Segment::new(1, 1, SegmentKind::Clean, legs.into());
    let cold = segments.restore(segment.found(Warmth::Cold), false);
    let both = legs.map(|place| segments.begin_repair(cold, place).unwrap());
    assert!(segments.doubled_cold(&[]).is_none() && segments.get(cold).unwrap().legs.len() == 2);
    let [first, second] = both;
    drop(second);
    let doubled = segments.doubled_cold(&[]).unwrap();
    assert!(segments.doubled_cold(&[doubled.id]).is_none());
    assert!(segments.free_cold_leg(&doubled));
    assert!(!segments.free_cold_leg(&doubled), "it is free");
    assert_eq!(segments.get(cold).unwrap().legs[..], legs[..1], "the other one is being repaired");
    assert_eq!(segments.unused(), [0, 1]);
    drop(first);
    assert!(segments.doubled_cold(&[]).is_none(), "the last one stays");
}
