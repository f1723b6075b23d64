//! Tests that cut the power at every single write of every change, with the write torn in several ways.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::buffer::Slice;
use crate::io::Durability;
use crate::pool::geometry::Copy;
use ram::Power;

/// Bytes of the torn write that get through: none, part of a sector, whole sectors, all.
const TORN: [usize; 5] = [0, 20, 512, 2048, BLOCK];

/// Runs `change` with the power cut at its first write, then at its second, and so on, until it succeeds. Calls
/// `check` after each restart, with true if the change succeeded. `prepare` makes the devices.
fn at_every_write<const N: usize>(
    prepare: impl Fn() -> [Arc<Ram>; N],
    change: impl Fn(&[Arc<Ram>; N]) -> bool,
    check: impl Fn(&[Arc<Ram>; N], bool),
) {
    for torn in TORN {
        let mut writes = 0;
        loop {
            let rams = prepare();
            let power = Power::cut_after(writes, torn);
            rams.iter().for_each(|ram| ram.plug_into(&power));
            let done = change(&rams);
            let cut = power.is_cut();
            assert!(done || cut, "it only fails when the power does");
            rams.iter().for_each(|ram| ram.restart());
            check(&rams, done);
            if !cut {
                break;
            }
            writes += 1;
        }
        assert!(writes >= 4, "{writes} writes are too few to be right");
    }
}

/// Checks that all members are present, and that the pool can continue.
fn assert_whole(rams: &[Arc<Ram>], names: &[&str]) {
    let mut pool = open(rams).unwrap();
    assert_eq!(pool.notices, []);
    assert_eq!(present(&pool), names);
    let highest = rams.iter().map(|ram| superblock(ram).epoch).max().unwrap();
    assert_eq!(block_on(pool.open_epoch()), Ok(vec![]));
    assert!(pool.epoch > highest, "an epoch is never used twice");
    assert_eq!(present(&open(rams).unwrap()), names);
}

#[test]
fn opening_costs_no_member() {
    let change = |rams: &[Arc<Ram>; 3]| block_on(open(rams).unwrap().open_epoch()) == Ok(vec![]);
    at_every_write(used::<3>, change, |rams, done| {
        assert!(!done || rams.iter().all(|ram| superblock(ram).epoch == 2));
        assert_whole(rams, &["a", "b", "c"]);
    });
}

/// A server that is killed leaves its writes in the device's cache. A superblock found there must be durable before
/// the other copy is overwritten.
#[test]
fn what_is_found_is_durable() {
    let rams = used::<1>();
    let [ram] = &rams;
    let found = Superblock { generation: superblock(ram).generation + 1, ..superblock(ram) };
    block_on(ram.write(Copy::A.offset(ram.size()), Slice::from(found.encode()), Durability::Later)).unwrap();
    open(&rams).unwrap();
    ram.restart();
    assert_eq!(superblock(ram), found);
}

/// The pool continues without the device, as without an unreadable one.
#[test]
fn a_device_that_does_not_flush_is_not_used() {
    let rams = used::<2>();
    rams[1].unflushable.store(true, Relaxed);
    let pool = open(&rams).unwrap();
    assert_eq!(present(&pool), ["a"]);
    assert!(matches!(&pool.notices[0], Notice::Unreadable { device, .. } if device == "b"));
}

#[test]
fn opening_with_one_bad_copy_costs_no_member() {
    for bad in [0, 64 * MIB - BLOCK as u64] {
        let prepare = || {
            let rams = used::<2>();
            rams.iter().for_each(|ram| ram.poke(bad, &[0xff; BLOCK]));
            rams
        };
        let change = |rams: &[Arc<Ram>; 2]| block_on(open(rams).unwrap().open_epoch()) == Ok(vec![]);
        at_every_write(prepare, change, |rams, _| assert_whole(rams, &["a", "b"]));
    }
}

#[test]
fn two_interrupted_openings_cost_no_member() {
    for first in 0..8 {
        let prepare = || {
            let rams = used::<2>();
            let mut pool = open(&rams).unwrap();
            let power = Power::cut_after(first, 20);
            rams.iter().for_each(|ram| ram.plug_into(&power));
            block_on(pool.open_epoch()).unwrap_err();
            rams.iter().for_each(|ram| ram.restart());
            rams
        };
        let change = |rams: &[Arc<Ram>; 2]| block_on(open(rams).unwrap().open_epoch()) == Ok(vec![]);
        at_every_write(prepare, change, |rams, _| assert_whole(rams, &["a", "b"]));
    }
}

#[test]
fn a_loss_is_recorded_or_did_not_happen() {
    let change = |rams: &[Arc<Ram>; 3]| block_on(open(rams).unwrap().lose(1)) == Ok(vec![]);
    at_every_write(used::<3>, change, |rams, done| {
        let [a, b, c] = rams;
        let with_all = open(rams).unwrap();
        assert!(["a", "c"].iter().all(|name| present(&with_all).contains(name)), "the others stay");
        let lost = !present(&with_all).contains(&"b");
        assert!(lost || !done, "what was recorded stays recorded");
        for survivor in [a, c] {
            // With one survivor more members are missing than may be, unless the survivor knows of the loss.
            let lost = open(&[survivor.clone(), b.clone()]).is_ok_and(|pool| !present(&pool).contains(&"b"));
            assert!(lost || !done, "on every one of the others");
        }
    });
}

#[test]
fn an_added_member_is_there_or_not() {
    let change = |rams: &[Arc<Ram>; 3]| {
        let [a, b, c] = rams;
        let mut pool = open(&[a.clone(), b.clone()]).unwrap();
        block_on(pool.add(c.clone(), false)).is_ok_and(|(_, also_lost)| also_lost.is_empty())
    };
    let prepare = || {
        let [a, b] = used();
        [a, b, Ram::new("c", 64 * MIB)]
    };
    at_every_write(prepare, change, |rams, done| {
        let [a, b, c] = rams;
        let old = [a.clone(), b.clone()];
        assert_eq!(present(&open(&old).unwrap()), ["a", "b"]);
        match contents(c) {
            Contents::Pool(_) => assert_whole(rams, &["a", "b", "c"]),
            // No other device knows of the newcomer.
            Contents::Blank | Contents::Unfinished if !done => assert_whole(&old, &["a", "b"]),
            other => panic!("{other}"),
        }
    });
}

/// The device was lost and is added again. It has superblocks whose sectors are all in use, so a part of one would not
/// be zeros.
#[test]
fn a_device_whose_adding_a_power_cut_ended_is_left_out_and_added_again() {
    let survivals: [fn(usize) -> bool; 6] = [
        |_| false,
        |_| true,
        |sector| sector == 0,
        |sector| sector > 0,
        |sector| sector % 2 == 0,
        |sector| sector % 2 == 1,
    ];
    for (survives, torn) in survivals.into_iter().flat_map(|some| TORN.map(|torn| (some, torn))) {
        for writes in 0.. {
            let rams @ [a, b, c] = &used();
            let mut pool = open(rams).unwrap();
            pool.set_owner(vec![0xee; OWNER_MAX]);
            block_on(pool.open_epoch()).unwrap();
            block_on(pool.lose(2)).unwrap();
            let power = Power::cut_after(writes, torn);
            c.plug_into(&power);
            let added = block_on(pool.add(c.clone(), false));
            if !power.is_cut() {
                assert_eq!(added, Ok((2, AlsoLost::new())));
                break;
            }
            c.restart_with(survives);
            let found = contents(c);
            assert!(matches!(found, Contents::Pool(_) | Contents::Unfinished), "{writes} writes: {found}");
            let mut pool = open(rams).unwrap();
            assert_eq!(present(&pool), ["a", "b"], "{writes} writes");
            let notice = &pool.notices[0];
            assert!(notice.to_string().contains("add it again with `forebay pool add`"), "{notice}");
            block_on(pool.open_epoch()).unwrap();
            // A superblock that says that the device is in use may be that of a device with data.
            let in_use = |found: &Superblock| found.in_use >= found.members[2].since_epoch;
            let force = matches!(&found, Contents::Pool(found) if found.members.len() > 2 && in_use(found));
            assert!(block_on(pool.add(c.clone(), force)).is_ok(), "{writes} writes, {found}: force {force}");
            assert_whole(&[a.clone(), b.clone(), c.clone()], &["a", "b", "c"]);
        }
    }
}

#[test]
fn a_removed_member_is_there_or_not() {
    let change = |rams: &[Arc<Ram>; 3]| block_on(open(rams).unwrap().remove(1)) == Ok(vec![]);
    at_every_write(used::<3>, change, |rams, done| {
        let [a, b, c] = rams;
        let others = [a.clone(), c.clone()];
        assert_eq!(present(&open(&others).unwrap()), ["a", "c"]);
        match open(rams) {
            Ok(pool) => {
                assert!(["a", "c"].iter().all(|name| present(&pool).contains(name)));
                assert!(!done || !present(&pool).contains(&"b"));
            }
            Err(PoolError::Blank(name)) => {
                assert_eq!(name, b.name());
                assert_whole(&others, &["a", "c"]);
            }
            Err(error) => panic!("{error}"),
        }
    });
}

#[test]
fn a_member_stays_if_the_only_other_one_dies_while_it_is_told_of_the_removal() {
    for torn in TORN {
        for writes in 0..4 {
            let rams @ [a, b] = &used();
            let mut pool = open(rams).unwrap();
            b.plug_into(&Power::cut_after(writes, torn));
            assert_eq!(block_on(pool.remove(0)), Err(PoolError::LastMember("a".to_owned())));
            assert_eq!((states(&pool), present(&pool)), (vec![State::Active, State::Lost], vec!["a"]));
            assert_whole(std::slice::from_ref(a), &["a"]);
            b.restart();
            assert_eq!(present(&open(rams).unwrap()), ["a"], "whatever the other one was told");
        }
    }
}

#[test]
fn a_newcomer_does_not_say_that_those_which_all_die_meanwhile_are_out_of_date() {
    for torn in TORN {
        for writes in 0.. {
            let rams @ [a, b] = &used();
            let c = Ram::new("c", 64 * MIB);
            let mut pool = open(rams).unwrap();
            let power = Power::cut_after(writes, torn);
            rams.iter().for_each(|ram| ram.plug_into(&power));
            let added = block_on(pool.add(c.clone(), false));
            if !power.is_cut() {
                assert_eq!(added, Ok((2, AlsoLost::new())));
                break;
            }
            assert_eq!(added, Err(PoolError::NoMemberLeft));
            assert!(present(&pool).is_empty(), "nor is it told later");
            rams.iter().for_each(|ram| ram.restart());
            for found in [&[a.clone(), b.clone()][..], &[a.clone(), b.clone(), c.clone()]] {
                let pool = open(found).unwrap();
                assert!(present(&pool).starts_with(&["a", "b"]), "{writes} writes: {:?}", present(&pool));
            }
        }
    }
}

#[test]
fn a_pool_goes_on_with_the_newcomer_if_the_only_other_one_dies_meanwhile_and_the_rest_was_removed() {
    for torn in TORN {
        for writes in 0.. {
            let rams @ [a, _] = &used();
            let mut pool = open(rams).unwrap();
            block_on(pool.remove(1)).unwrap();
            let c = Ram::new("c", 64 * MIB);
            let power = Power::cut_after(writes, torn);
            a.plug_into(&power);
            let (_, also_lost) = block_on(pool.add(c.clone(), false)).unwrap();
            if !power.is_cut() {
                assert!(also_lost.is_empty());
                break;
            }
            assert_eq!(also_lost.to_vec(), [0]);
            assert_whole(&[c], &["c"]);
        }
    }
}

#[test]
fn formatting_can_be_done_again() {
    let change = |rams: &[Arc<Ram>; 3]| block_on(Pool::format(devices(rams), &mut random(1), false)).is_ok();
    at_every_write(blank::<3>, change, |rams, done| {
        let torn = rams.iter().any(|ram| contents(ram) == Contents::Damaged);
        match open(rams) {
            Ok(_) => return assert_whole(rams, &["a", "b", "c"]),
            Err(PoolError::NoPool | PoolError::Unfinished(_)) => assert!(!done),
            Err(PoolError::Damaged(_)) => assert!(torn),
            Err(error) => panic!("{error}"),
        }
        block_on(Pool::format(devices(rams), &mut random(100), torn)).expect("once more");
        assert_whole(rams, &["a", "b", "c"]);
    });
}
