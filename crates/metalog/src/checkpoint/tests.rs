use std::sync::atomic::Ordering::Relaxed;

use forebay_common::lock::Mutex;

use super::*;
use crate::change::DurableBy;
use crate::service::make_durable;
use crate::tests::{Bench, Disk, Refused, at_once, identity, touching};

/// Carries out a logged change of one object.
fn change(bench: &Bench, object: u8) {
    let pending = bench.volume.changed(DurableBy::Log, touching(object));
    at_once(make_durable(&bench.disk, pending, "it", b"reply", Box::new(drop)));
    bench.asked();
}

fn last(bench: &Bench) -> Option<Record> {
    bench.log.decoded().pop()
}

fn of_touched(bench: &Bench, object: u8) -> Result<bool, Refused> {
    at_once(bench.checkpoints.make_of_touched(&bench.volume, &bench.disk, &identity(object)))
}

#[test]
fn a_checkpoint_commits_once_and_says_how_far() {
    let bench = Bench::new();
    at_once(bench.checkpoints.make());
    assert!(bench.asked().is_empty(), "nothing was changed");
    change(&bench, 1);
    change(&bench, 2);
    assert_eq!((bench.volume.is_touched(&identity(2)), of_touched(&bench, 3)), (true, Ok(false)));
    assert!(bench.asked().is_empty(), "no record has that object");
    assert_eq!(of_touched(&bench, 2), Ok(true));
    assert_eq!((bench.asked(), bench.volume.checkpoint()), (vec!["commit".to_owned()], 12));
    assert_eq!(last(&bench), Some(Record::Checkpoint { filesystem: 3, upto: 12 }));
    assert!(!bench.volume.is_touched(&identity(2)));
    at_once(bench.checkpoints.make_of(&bench.volume, &bench.disk)).unwrap();
    assert!(bench.asked().is_empty() && bench.news.lock().is_empty());
}

#[test]
fn a_late_commit_is_not_waited_for_again_and_covers_what_was_done_before_it() {
    let bench = Bench::new();
    change(&bench, 1);
    bench.disk.hangs.store(true, Relaxed);
    let made = || at_once(bench.checkpoints.make_of(&bench.volume, &bench.disk));
    assert_eq!((made(), made()), (Err(Refused::Busy), Err(Refused::Busy)));
    assert_eq!(bench.asked(), ["commit"], "no other commit begins");
    assert_eq!((bench.volume.refusal(), bench.volume.way(true)), (Some(Refused::Busy), DurableBy::Journal));
    assert_eq!(bench.news.lock().len(), 1);
    assert!(bench.volume.needs(11) && bench.volume.checkpoint() == 0);
    at_once(bench.checkpoints.answer());
    assert_eq!(*bench.log.released.lock(), ["asks", "up to 7 but 1", "asks"], "the record is kept");
}

/// The record of an earlier checkpoint waited for room, and covers the last change only now.
#[test]
fn a_journal_that_answers_again_is_found_though_a_checkpoint_covers_all_changes() {
    let bench = Bench::new();
    change(&bench, 1);
    bench.disk.hangs.store(true, Relaxed);
    at_once(bench.checkpoints.make());
    assert_eq!(bench.volume.refusal(), Some(Refused::Busy));
    bench.volume.reached(11);
    bench.disk.hangs.store(false, Relaxed);
    at_once(bench.checkpoints.make());
    assert_eq!(bench.volume.refusal(), None);
}

#[test]
fn nothing_is_changed_or_released_after_a_commit_that_failed() {
    let bench = Bench::new();
    change(&bench, 1);
    bench.disk.failed.store(true, Relaxed);
    assert!(!at_once(bench.checkpoints.make_last()));
    assert_eq!((bench.asked(), bench.volume.refusal()), (vec!["commit".to_owned()], Some(Refused::Failed)));
    at_once(bench.checkpoints.make());
    assert!(bench.asked().is_empty(), "the commit is not tried again");
    assert!(bench.log.released.lock().is_empty() && bench.volume.checkpoint() == 0);
}

#[test]
fn records_are_released_before_the_checkpoint_is_logged() {
    let bench = Bench::new();
    change(&bench, 1);
    assert!(at_once(bench.checkpoints.make_last()));
    assert_eq!(bench.log.released.lock().len(), 2, "and the checkpoint's own record");
}

/// The log filled while the commit took long, and the release has not freed enough of it.
#[test]
fn the_task_that_releases_records_waits_for_no_room() {
    let bench = Bench::new();
    change(&bench, 1);
    bench.log.full.store(true, Relaxed);
    at_once(bench.checkpoints.answer());
    assert_eq!(bench.log.released.lock().len(), 3, "it goes on to the next release");
    bench.log.full.store(false, Relaxed);
    at_once(bench.checkpoints.make());
    assert_eq!(last(&bench), Some(Record::Checkpoint { filesystem: 3, upto: 11 }));
}

#[test]
fn a_release_keeps_what_the_start_found_until_the_server_describes_its_clients() {
    let replies = |bench: &Bench| -> Vec<u8> {
        let reply = |record: Record| match record {
            Record::State { bytes, .. } => bytes.first().copied(),
            _ => None,
        };
        bench.log.decoded().into_iter().filter_map(reply).collect()
    };
    let bench = Bench::new();
    bench.checkpoints.keep_recovered(vec![(4, vec![1]), (9, vec![2])]);
    at_once(bench.checkpoints.answer());
    assert_eq!((replies(&bench), bench.log.released.lock().len()), (vec![1, 2], 3));
    let bench = Bench::new();
    bench.checkpoints.keep_recovered(vec![(4, vec![1])]);
    bench.checkpoints.keep_state(Box::new(|number, _| vec![(number(), vec![3])]));
    at_once(bench.checkpoints.answer());
    assert_eq!(replies(&bench), [3]);
}

#[test]
fn a_snapshot_hears_which_changes_need_no_record() {
    let bench = Bench::new();
    change(&bench, 1);
    let (_, rename) = bench.sequence.begin_ahead();
    let heard = Arc::new(Mutex::new(0));
    let hears = heard.clone();
    bench.checkpoints.keep_state(Box::new(move |_, durable| {
        *hears.lock() = durable;
        Vec::new()
    }));
    at_once(bench.checkpoints.answer());
    assert_eq!(*heard.lock(), rename - 1, "the RENAME is not carried out");
}

/// Returns the bytes of the records of clients' state.
fn states(bench: &Bench) -> Vec<Vec<u8>> {
    let state = |record| match record {
        Record::State { bytes, .. } => Some(bytes.to_vec()),
        _ => None,
    };
    bench.log.decoded().into_iter().filter_map(state).collect()
}

/// Keeps the replies to all changes as the server does. The result is the number up to which the last snapshot was told
/// that all changes are durable.
fn keep_replies(bench: &Bench) -> Arc<Mutex<u64>> {
    let heard = Arc::new(Mutex::new(0));
    let hears = heard.clone();
    bench.checkpoints.keep_state(Box::new(move |number, durable| {
        *hears.lock() = durable;
        vec![(number(), b"replies".to_vec())]
    }));
    heard
}

#[test]
fn the_replies_of_a_file_system_that_does_not_fail_outlive_its_records() {
    let other = Arc::new(Disk::default());
    let bench = Bench::beside(&other);
    let heard = keep_replies(&bench);
    let beside = bench.checkpoints.volume(4).unwrap().clone();
    let change_beside = |object| {
        let pending = beside.changed(DurableBy::Log, touching(object));
        at_once(make_durable(&other, pending, "it", b"reply", Box::new(drop)));
    };
    change_beside(1);
    at_once(bench.checkpoints.make());
    change(&bench, 2);
    change_beside(3);
    bench.disk.failed.store(true, Relaxed);
    at_once(bench.checkpoints.answer());
    // Change 11 is in a checkpoint. The reply to change 13 may be on the way, until the next checkpoint covers it.
    assert_eq!(*bench.log.released.lock(), ["asks", "up to 4 but 2", "asks"]);
    assert_eq!((states(&bench), beside.checkpoint()), (vec![b"replies".to_vec()], 13));
    assert!(*heard.lock() < 12, "change 12 is not durable");
}

#[test]
fn the_replies_to_changes_before_a_failure_outlive_their_records() {
    let bench = Bench::new();
    let heard = keep_replies(&bench);
    change(&bench, 1);
    at_once(bench.checkpoints.make());
    change(&bench, 2);
    bench.disk.failed.store(true, Relaxed);
    at_once(bench.checkpoints.answer());
    assert_eq!((states(&bench), *heard.lock()), (vec![b"replies".to_vec()], 11));
    assert!(bench.volume.needs(12));
}

#[test]
fn a_record_that_a_checkpoint_of_an_earlier_run_covers_is_not_carried() {
    let bench = Bench::new();
    change(&bench, 1);
    // As at a start: the checkpoint is in the log, and no commit has proven anything yet.
    bench.volume.reached(11);
    change(&bench, 2);
    bench.disk.failed.store(true, Relaxed);
    at_once(bench.checkpoints.answer());
    // The record of the checkpoint is not carried. A record before it would be carried out again.
    assert_eq!(*bench.log.released.lock(), ["asks", "up to 7 but 1", "asks"]);
}

#[test]
fn a_checkpoint_ends_before_a_rename_that_is_not_carried_out() {
    let bench = Bench::new();
    let (_, rename) = bench.sequence.begin_ahead();
    let _later = bench.volume.changed(DurableBy::Log, touching(1));
    at_once(bench.checkpoints.make());
    assert_eq!(last(&bench), Some(Record::Checkpoint { filesystem: 3, upto: rename - 1 }));
    bench.sequence.end_ahead(rename);
    at_once(bench.checkpoints.make_of(&bench.volume, &bench.disk)).unwrap();
    assert_eq!(bench.volume.checkpoint(), rename + 1);
}

#[cfg(feature = "plant")]
#[test]
fn planted_bugs_of_checkpoints_are_found() {
    use crate::planted_bugs::IN_UNIT_TESTS;
    let finders: [(&str, fn()); 1] = [(
        "a checkpoint covers a RENAME that is not carried out",
        a_checkpoint_ends_before_a_rename_that_is_not_carried_out,
    )];
    assert!(IN_UNIT_TESTS.iter().all(|bug| finders.iter().any(|(found, _)| found == bug)));
    for (bug, finder) in finders {
        forebay_common::planted_bugs::plant(Some(bug));
        let failed = std::panic::catch_unwind(finder).is_err();
        forebay_common::planted_bugs::plant(None);
        assert!(failed, "MISSED: {bug}");
    }
}
