use super::*;
use crate::content::Content;
use crate::stamp::{Place, fill};

const NOW: Time = Time { sec: 1, nsec: 0 };

fn read(model: &mut Model, generation: Generation, range: Range<usize>) -> Result<(), String> {
    let reading = model.begin_read(1, range.start as u64, range.len());
    let mut bytes = vec![0; range.len()];
    for (at, byte) in range.clone().zip(&mut bytes) {
        let place = Place { object: 1, block: (at / BLOCK) as u64 };
        fill(std::slice::from_mut(byte), at % BLOCK, generation, place);
    }
    model.end_read(&reading, Some(&bytes))
}

#[test]
fn an_acknowledged_write_is_seen_and_an_unstable_one_may_be_lost_in_a_crash() {
    let mut model = Model { logged: true, ..Model::default() };
    model.create(1, 10_000, 0, NOW);
    let stable = model.begin_write(1, 100, 9000, NOW);
    read(&mut model, 0, 0..10_000).unwrap();
    model.durable(stable);
    assert!(read(&mut model, 0, 200..300).is_err());
    read(&mut model, stable, 100..9100).unwrap();
    let unstable = model.begin_write(1, 100, 9000, NOW);
    model.accepted(unstable, 7);
    assert!(read(&mut model, stable, 5000..6000).is_err());
    model.crash(true);
    read(&mut model, stable, 5000..6000).unwrap();
    read(&mut model, unstable, 100..4096).unwrap();
    assert!(read(&mut model, unstable, 5000..6000).is_err(), "it was lost, as seen before");
}

#[test]
fn what_survives_a_crash_is_a_prefix() {
    let mut model = Model { logged: true, ..Model::default() };
    model.create(1, 3 * 4096, 0, NOW);
    let writes: Vec<u32> = (0..2).map(|block| model.begin_write(1, block * 4096, 4096, NOW)).collect();
    model.accepted(writes[0], 1);
    model.accepted(writes[1], 2);
    model.crash(true);
    read(&mut model, 0, 0..4096).unwrap();
    read(&mut model, writes[1], 4096..8192).unwrap();
    assert!(model.check_prefix().is_err());
}

#[test]
fn a_direct_write_may_be_cut_short_where_the_backing_file_ends_though_the_log_has_more() {
    let mut model = Model::default();
    model.create(1, 49, 0, NOW);
    let failed = model.begin_write(1, 0, 8192, NOW);
    model.failed(failed);
    let logged = model.begin_write(1, 4 * 4096, 4096, NOW);
    model.durable(logged);
    model.crash(true);
    let mut first_block = |end: usize| {
        let mut bytes = vec![0; BLOCK];
        fill(&mut bytes[..end], 0, failed, Place { object: 1, block: 0 });
        let reading = model.begin_read(1, 0, BLOCK);
        model.end_read(&reading, Some(&bytes))
    };
    first_block(49).unwrap();
    assert!(first_block(100).is_err(), "the file never ended there");
    assert!(read(&mut model, 0, 4 * 4096..5 * 4096).is_err(), "what is durable stays");
}

#[test]
fn nothing_is_left_beyond_a_truncation() {
    let mut model = Model { logged: true, ..Model::default() };
    model.create(1, 0, 0, NOW);
    let write = model.begin_write(1, 0, 8192, NOW);
    model.durable(write);
    for size in [100, 8192] {
        let truncate = model.begin_truncate(1, size, NOW);
        model.durable(truncate);
    }
    read(&mut model, write, 0..100).unwrap();
    read(&mut model, 0, 100..8192).unwrap();
    assert!(read(&mut model, write, 0..101).is_err());
    assert!(model.observe_size(1, 100).is_err());
}

#[test]
fn what_was_accepted_may_go_with_the_log_and_what_came_later_stays() {
    for (log_lost, possible) in [(false, false), (true, true)] {
        let mut model = Model::default();
        model.create(1, 4096, 0, NOW);
        let unstable = model.begin_write(1, 8192, 4096, NOW);
        model.accepted(unstable, 1);
        if log_lost {
            model.log_lost();
        }
        let later = model.begin_write(1, 4096, 4096, NOW);
        model.durable(later);
        model.crash(false);
        assert!(model.observe_size(1, 4096).is_err(), "what is durable stays");
        assert_eq!(model.observe_size(1, 8192).is_ok(), possible);
    }
}

#[test]
fn what_is_older_than_acknowledged_is_wrong_unless_faults_destroyed_the_frames_it_needs() {
    let write = |model: &mut Model, frame| {
        let id = model.begin_write(1, 0, 8192, NOW);
        model.accepted(id, frame);
        model.durable_by(id, frame);
        id
    };
    let mut model = Model { lenient: true, ..Model::default() };
    model.create(1, 8192, 0, NOW);
    let (older, newer) = (write(&mut model, 4), write(&mut model, 7));
    model.crash(true);
    model.destroyed(8);
    assert!(read(&mut model, older, 0..8192).is_err(), "frame 7 was not destroyed");
    read(&mut model, newer, 0..8192).unwrap();
    model.destroyed(7);
    read(&mut model, older, 0..8192).unwrap();
    assert!(read(&mut model, 99, 0..8192).is_err(), "nobody ever wrote that");
    // Bytes that are written from then on are known again, one by one.
    let part = model.begin_write(1, 100, 4096, NOW);
    model.durable_by(part, 9);
    read(&mut model, older, 0..100).unwrap();
    assert!(read(&mut model, older, 100..4196).is_err());
}

#[test]
fn a_write_in_a_page_cache_is_durable_once_its_file_is_synced_not_once_the_log_is() {
    let mut model = Model::default();
    model.create(1, 8192, 0, NOW);
    let direct = model.begin_write(1, 0, 4096, NOW);
    model.accepted_unsynced(direct, None, 0);
    let both = model.begin_write(1, 4096, 4096, NOW);
    model.accepted_unsynced(both, Some(3), 0);
    assert_eq!(model.open(9), [], "the log says nothing of them");
    assert!(read(&mut model, 0, 0..4096).is_err());
    for (id, failures) in model.unsynced(1) {
        assert_eq!(failures, 0);
        model.synced(id);
    }
    assert_eq!(model.open(9), [both], "the other part of it is in the log");
    model.crash(true);
    assert!(read(&mut model, 0, 0..4096).is_err());
    read(&mut model, 0, 4096..8192).unwrap();
}

#[test]
fn a_size_from_a_log_that_was_lost_stays_until_a_crash_and_no_longer() {
    for (power, folds) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut model = Model::default();
        model.create(1, 100, 0, NOW);
        if !folds {
            let open = model.begin_write(1, 0, 50, NOW);
            model.accepted_unsynced(open, None, 0);
        }
        let lost = model.begin_write(1, 3 * 4096, 4096, NOW);
        model.accepted(lost, 7);
        model.log_lost();
        model.observe_size(1, 4 * 4096).unwrap();
        assert!(model.observe_size(1, 100).is_err(), "it does not go back before the crash");
        // A sync of the file does not make a size durable that the file does not have.
        let direct = model.begin_write(1, 4096, 4096, NOW);
        model.accepted_unsynced(direct, None, 0);
        model.synced(direct);
        model.observe_size(1, 4 * 4096).unwrap();
        model.crash(power);
        assert!(model.observe_size(1, 100).is_err(), "the later write is durable");
        model.observe_size(1, 2 * 4096).unwrap();
        model.crash(power);
        assert!(model.observe_size(1, 4 * 4096).is_err(), "it does not come back");
    }
}

#[test]
fn a_size_from_a_page_cache_stays_through_the_death_of_the_process() {
    let mut model = Model::default();
    model.create(1, 100, 0, NOW);
    let failed = model.begin_write(1, 3 * 4096, 4096, NOW);
    model.failed(failed);
    model.observe_size(1, 4 * 4096).unwrap();
    model.crash(false);
    assert!(model.observe_size(1, 100).is_err());
    model.crash(true);
    model.observe_size(1, 100).unwrap();
}

#[test]
fn a_hole_reads_as_zeros_once_it_is_answered_and_maybe_before() {
    let mut model = Model { holes: true, ..Model::default() };
    model.create(1, 3 * 4096, 0, NOW);
    let write = model.begin_write(1, 0, 3 * 4096, NOW);
    model.durable(write);
    let hole = model.begin_hole(1, 4096..8192, NOW);
    model.crash(true);
    read(&mut model, write, 4096..8192).unwrap();
    assert!(read(&mut model, hole, 4096..8192).is_err());
    let hole = model.begin_hole(1, 4096..8192, NOW);
    model.durable(hole);
    model.crash(true);
    assert!(read(&mut model, write, 4096..8192).is_err());
    read(&mut model, 0, 4096..8192).unwrap();
    let mut content = Content::default();
    content.resize(3 * 4096);
    for block in [0, 2] {
        let mut page = [0; BLOCK];
        fill(&mut page, 0, write, Place { object: 1, block });
        content.put(block, page.into());
    }
    model.check_backing(1, Some(&content), false).unwrap();
    content.put(1, [0; BLOCK].into());
    assert!(model.check_backing(1, Some(&content), false).is_err(), "the hole has space");
}

#[test]
fn a_clone_has_what_a_read_of_its_source_finds() {
    let mut model = Model::default();
    model.create(1, 8192, 0, NOW);
    model.create(2, 0, 0, NOW);
    let old = model.begin_write(1, 0, 8192, NOW);
    model.durable(old);
    let contents = |generation| {
        let mut bytes = vec![0; 8192];
        for (block, bytes) in bytes.chunks_mut(BLOCK).enumerate() {
            fill(bytes, 0, generation, Place { object: 1, block: block as u64 });
        }
        bytes
    };
    let new = model.begin_write(1, 0, 8192, NOW);
    model.durable(new);
    let cloning = model.begin_clone((1, 0), (2, 4096), 8192, NOW);
    assert!(model.cloned(&cloning, &contents(old)).is_err(), "older contents");
    model.cloned(&cloning, &contents(new)).unwrap();
    model.durable(cloning.id);
    model.end_clone(&cloning);
    let later = model.begin_write(1, 0, 8192, NOW);
    model.durable(later);
    model.crash(true);
    let mut found = |generation| {
        let reading = model.begin_read(2, 4096, 8192);
        model.end_read(&reading, Some(&contents(generation)))
    };
    assert!(found(later).is_err(), "the clone stays as it was");
    found(new).unwrap();
}
