use std::sync::Arc;

use super::*;
use crate::buffer::BLOCK;
use crate::format::{Facts, Record, SegmentKind, content_hash};
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::io::{Key, Time};
use crate::log::user_records::UserRecords;
use crate::segments::Segments;

/// A log of two devices, in its first segment of `slots` blocks.
struct Bench {
    segments: Segments,
    notes: UserRecords,
    log: Log,
    object: CachedObject,
    facts: Facts,
}

fn bench(slots: usize) -> Bench {
    let free = || (0..8).rev().collect();
    let segments = Segments::new(1, vec![free(), free()], vec![8, 8]);
    let log = Log::new(1, 1, slots, 1);
    log.continue_in(segments.open(SegmentKind::Log, 2, 0).unwrap());
    let key = Key::new(b"object").unwrap();
    let facts = Facts { key: key.clone(), size: 1 << 20, mtime: Some(Time { sec: 1, nsec: 0 }) };
    Bench {
        segments,
        notes: UserRecords::default(),
        log,
        object: CachedObject::new(0, key, Default::default()),
        facts,
    }
}

fn page(byte: u8) -> (Page, u64) {
    let contents = vec![byte; BLOCK];
    (Page::from(contents.as_slice()), content_hash(&contents))
}

impl Bench {
    fn note(&self, len: usize) -> bool {
        let noted = self.log.append_note(AppendKind::New, &vec![1; len], &self.notes, &self.segments);
        noted.unwrap().is_some()
    }

    fn data(&self, block: u64, pages: &[(Page, u64)]) -> Option<Placed> {
        self.log.append_data(&self.object, &self.facts, block, pages, &self.segments).unwrap()
    }

    fn cut(&self, last: Option<&(Page, u64)>) -> bool {
        let Bench { log, object, facts, segments, .. } = self;
        log.append_cut(AppendKind::New, object, facts, 100, last, segments).unwrap().is_some()
    }

    fn close(&self) -> Option<Closed> {
        self.log.next_frame(|| self.segments.advance())
    }
}

#[test]
fn what_is_appended_leaves_room_for_the_footer() {
    const SLOTS: u16 = 8;
    let facts = |bench: &Bench| {
        let record = Some::<fn(u16, u64, u64) -> Record>(|object, block, count| Record::Invalidate {
            object,
            block,
            count,
        });
        bench.log.append(AppendKind::New, &bench.object, &bench.facts, record, 0, 1).unwrap().is_some()
    };
    let damaged = |bench: &Bench| {
        let Bench { log, object, facts, segments, .. } = bench;
        log.append_damaged(object, facts, 0, segments).unwrap().is_some()
    };
    type Append<'a> = &'a dyn Fn(&Bench) -> bool;
    let kinds: [(&str, Append<'_>); 6] = [
        ("a note", &|bench| bench.note(30)),
        ("data", &|bench| bench.data(0, &[page(1)]).is_some()),
        ("a damaged block", &damaged),
        ("a cut", &|bench| bench.cut(None)),
        ("a cut through a block", &|bench| bench.cut(Some(&page(1)))),
        ("facts and a record", &facts),
    ];
    for (kind, append) in kinds {
        let mut accepted = Vec::new();
        for len in 1..300 {
            let bench = bench(SLOTS.into());
            // These records almost fill the segment.
            assert!((0..3).all(|_| bench.note(4000)));
            if !bench.note(len) {
                continue;
            }
            accepted.push(append(&bench));
            let closed = bench.close().unwrap();
            let (_, footer) = bench.log.footer().unwrap();
            let footer = footer.encode(SLOTS).unwrap().len() / BLOCK;
            assert!(usize::from(closed.end) + footer <= SLOTS.into(), "{kind} behind {len} bytes");
        }
        assert!(accepted.contains(&true) && accepted.contains(&false), "{kind}");
    }
}

#[test]
fn blocks_are_where_the_log_says() {
    let bench = bench(64);
    let written = [page(1), page(2), page(3)];
    let first = bench.data(7, &written[..2]).unwrap();
    let second = bench.data(70, &written[2..]).unwrap();
    assert_eq!((first.slot, second.slot), (2, 4), "behind the header and the frame's head");
    let closed = bench.close().unwrap();
    assert_eq!((closed.start, closed.end), (1, 5));
    // The buffer begins with the frame's head, in slot 1.
    for (slot, (contents, _)) in (2..).zip(&written) {
        assert!(closed.buffer[(slot - 1) * BLOCK..][..BLOCK] == contents[..], "slot {slot}");
    }
    assert_eq!(bench.data(71, &written[..1]).unwrap().slot, 6, "in the next frame");
}

#[test]
fn a_segment_is_used_once_a_frame_of_it_is_closed() {
    let bench = bench(64);
    assert!(bench.close().is_none(), "nothing is to be written");
    assert!(bench.note(1));
    assert_eq!(bench.log.used_segment(), None);
    assert!(bench.close().is_some());
    assert_eq!(bench.log.used_segment(), bench.log.segment());
    assert!(bench.note(1) && bench.close().is_none(), "one frame is in flight at a time");
    bench.log.end_step();
    assert_eq!(bench.close().map(|closed| closed.seq), Some(2));
    bench.log.end_step();
    assert!(bench.note(1));
    bench.log.fail_all(Error::NoDevice);
    assert!(bench.close().is_none(), "nothing is written any more");
}

#[test]
fn the_memory_of_at_most_three_frames_is_kept_for_others() {
    let bench = bench(64);
    for seq in 1..10 {
        assert!(bench.note(1));
        let closed = bench.close().unwrap();
        let begun = bench.log.state.lock().spare.len();
        assert!(bench.log.wrote(seq, Some(closed.buffer)).is_empty());
        assert_eq!(bench.log.state.lock().spare.len(), begun + 1);
        bench.log.end_step();
    }
    (0..5).for_each(|_| _ = bench.log.wrote(9, Some(Buffer::zeroed(1))));
    assert_eq!(bench.log.state.lock().spare.len(), 3);
}

#[test]
fn whoever_waits_for_a_frame_is_told_once_it_is_durable() {
    let bench = bench(64);
    let told = Arc::new(Mutex::new(Vec::new()));
    let wait = |seq| {
        let told = told.clone();
        bench.log.when_durable(seq, Box::new(move |result| told.lock().push((seq, result))));
    };
    wait(1);
    wait(2);
    assert!(told.lock().is_empty());
    bench.log.wrote(1, None).into_iter().for_each(|done| done(Ok(())));
    assert_eq!(*told.lock(), [(1, Ok(()))]);
    wait(1);
    assert_eq!(told.lock().len(), 2, "at once");
    let error = Error::NoDevice;
    bench.log.fail_all(error).into_iter().for_each(|done| done(Err(error)));
    wait(3);
    wait(1);
    assert_eq!(told.lock()[2..], [(2, Err(error)), (3, Err(error)), (1, Ok(()))]);
}
