//! Tests of layered contents: against the list of all contents, and their number.

use std::collections::BTreeSet;

use super::*;
use crate::register::Register;
use crate::rng::Rng;
use crate::stamp::{Generation, Place, fill};

const PLACE: Place = Place { object: 1, block: 2 };

fn stamp(generation: Generation) -> Stamp {
    Stamp::new(generation, PLACE)
}

/// Returns every one of the contents.
fn all(contents: &Layered) -> BTreeSet<Runs> {
    let mut all = BTreeSet::from([contents.runs.clone()]);
    for layer in &contents.layers {
        let with = |runs: &Runs| {
            let mut runs = runs.clone();
            layer.ranges.iter().for_each(|part| runs.apply(part, layer.stamp));
            runs
        };
        all.extend(all.iter().map(with).collect::<Vec<_>>());
    }
    all
}

fn all_of(many: &[Layered]) -> BTreeSet<Runs> {
    many.iter().flat_map(all).collect()
}

/// Returns a range within `end` bytes, in steps of half a word, so that ranges often have bytes or ends in common.
fn range(rng: &mut Rng, end: usize) -> Range<usize> {
    let (one, other) = (rng.index(end / 4 + 1) * 4, rng.index(end / 4 + 1) * 4);
    one.min(other)..one.max(other)
}

fn bytes_of(runs: &Runs) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    for (run, stamp) in runs.iter() {
        let run = run.start.min(64)..run.end.min(64);
        fill(&mut bytes[run.clone()], run.start, stamp.generation(), PLACE);
    }
    bytes
}

#[test]
fn layered_contents_are_the_list_of_all_contents() {
    let mut rng = Rng::new(5);
    for _ in 0..3000 {
        let mut contents = Layered::from(Runs::default());
        let mut list = BTreeSet::from([Runs::default()]);
        for generation in 1..rng.within(2, 9) as u32 {
            let generation = if rng.chance(3000) { 0 } else { generation };
            let range = range(&mut rng, 64);
            let with: Vec<Runs> = list
                .iter()
                .cloned()
                .map(|mut runs| {
                    runs.apply(&range, stamp(generation));
                    runs
                })
                .collect();
            if rng.chance(3000) {
                contents.apply(&range, stamp(generation));
                list.clear();
            } else {
                contents.attempt(&range, stamp(generation));
            }
            list.extend(with);
        }
        assert_eq!(all(&contents), list, "{contents:?}");
        // A read of what is possible, or of one byte less.
        let one = rng.index(list.len());
        let mut bytes = list.iter().nth(one).map(bytes_of).unwrap_or_default();
        if rng.chance(2000) {
            bytes[rng.index(64)] ^= 1;
        }
        let seen = range(&mut rng, 64);
        let bytes = &bytes[seen.clone()];
        list.retain(|runs| runs.matches(bytes, seen.start));
        assert_eq!(contents.matches(bytes, seen.start), !list.is_empty(), "{contents:?} {seen:?}");
        let same = |runs: &Runs| (bytes_of(runs), runs.clone());
        let narrowed: BTreeSet<Vec<u8>> =
            all_of(&contents.narrow(bytes, seen.start)).iter().map(|runs| same(runs).0).collect();
        let expected: BTreeSet<Vec<u8>> = list.iter().map(|runs| same(runs).0).collect();
        assert_eq!(narrowed, expected, "{contents:?} {seen:?}");
    }
}

/// Folds failed and durable operations that ran side by side, once as sets and once as a list of values.
#[test]
fn failed_operations_fold_into_the_contents_that_their_orders_may_leave() {
    let mut rng = Rng::new(6);
    let mut side_by_side = 0;
    for _ in 0..3000 {
        let mut register: Register<Layered, Overwrite> = Register::new(Runs::default().into());
        let mut running: Vec<u32> = Vec::new();
        let mut next = 1;
        while next < 6 || !running.is_empty() {
            if next < 6 && (running.is_empty() || rng.chance(5000)) {
                side_by_side += usize::from(!running.is_empty());
                register.begin(next, Overwrite::Bytes(range(&mut rng, 32), stamp(next)));
                running.push(next);
                next += 1;
            } else {
                let id = running.swap_remove(rng.index(running.len()));
                let durable = rng.chance(4000);
                register.acknowledge(id, durable, durable, durable);
            }
        }
        let (sets, list) = register.both_folds();
        assert_eq!(all_of(&sets.unwrap_or_default()), all_of(&list), "{register:?}");
    }
    assert!(side_by_side > 1000);
}

#[test]
fn failed_writes_under_failing_syncs_take_space_in_proportion_to_their_number() {
    let mut register: Register<Layered, Overwrite> = Register::new(Runs::default().into());
    for id in 1..=300 {
        let start = (id as usize * 37) % 4000;
        register.begin(id, Overwrite::Bytes(start..start + 96, stamp(id)));
        register.acknowledge(id, false, false, false);
        register.fold(false, true);
        let values = register.folded().unwrap_or_default();
        assert_eq!(values.len(), 1, "after write {id}");
        assert!(values[0].layers.len() <= id as usize);
    }
    // Each of them may still be there, under a later one, or not.
    let mut bytes = vec![0; 4096];
    fill(&mut bytes[3700..3796], 3700, 100, PLACE);
    assert!(register.observe(0, |contents| contents.matches(&bytes, 0)));
    bytes[3796..3804].fill(7);
    assert!(!register.observe(0, |contents| contents.matches(&bytes, 0)));
    // A durable write of the whole block leaves one possibility.
    register.begin(301, Overwrite::Bytes(0..4096, stamp(301)));
    register.acknowledge(301, true, true, true);
    register.fold(false, true);
    assert!(register.is_one());
}

#[test]
fn ends_that_many_crashes_may_leave_take_space_in_proportion_to_their_number() {
    let mut register: Register<Layered, Overwrite> = Register::new(Runs::default().into());
    register.begin(1, Overwrite::Bytes(0..4096, stamp(1)));
    register.acknowledge(1, false, false, false);
    register.fold(false, true);
    for _ in 0..50 {
        (0..40).for_each(|end| register.attempt(&Overwrite::Bytes(end * 100..4096, Stamp::ZEROS)));
    }
    assert_eq!(register.folded().map(|values| (values.len(), values[0].layers.len())), Some((1, 41)));
}
