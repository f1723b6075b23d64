use std::sync::LazyLock;

use rustix::fs::{Mode, OFlags};

use crate::attr::{Attr, Time};
use crate::caches::budget::Budget;
use crate::caches::dir_cache::*;
use crate::caches::versions::Versions;
use crate::handle::HandleKey;
use crate::sys::KERNEL_HANDLE_MAX;

fn kernel(n: u32) -> KernelHandle {
    let mut kernel = KernelHandle { kind: 1, len: 4, bytes: [0; KERNEL_HANDLE_MAX] };
    kernel.bytes[..4].copy_from_slice(&n.to_le_bytes());
    kernel
}

fn versions() -> &'static Versions {
    static ALL: LazyLock<Versions> = LazyLock::new(|| Versions::new(Budget::new(1, 0).known().clone(), 0));
    &ALL
}

fn directory(n: u32, budget: &Budget) -> Arc<DirCache> {
    Arc::new(DirCache::new(kernel(n), budget.listings().clone()))
}

fn state(changes: u64) -> State {
    State { stamp: Stamp { ctime: Time { sec: 1, nsec: 2 }, changes }, export: 1 }
}

fn seen(n: u32) -> Seen {
    let fd = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
    let attr = Attr { ino: n.into(), ..Attr::from(&rustix::fs::fstat(fd).unwrap()) };
    let version = versions().of(&kernel(n)).unwrap();
    Seen { attr, handle: HandleKey::new(&[1; 16]).seal(1, &kernel(n)), version, until: 5 }
}

fn run(cookies: impl IntoIterator<Item = u64>) -> Run {
    let mut run = Run::default();
    for cookie in cookies {
        let seen = cookie.is_multiple_of(2).then(|| seen(cookie as u32));
        run.push(cookie, cookie + 1000, format!("name {cookie}").as_bytes(), seen);
    }
    run
}

/// Returns the cookies of the cached entries from a place on.
fn cookies(kept: &mut Listing, state: State, cookie: u64) -> Option<Vec<u64>> {
    kept.check();
    let from = kept.find(state, cookie)?;
    let entries = (from..).map_while(|at| kept.get(at));
    Some(
        entries
            .map(|entry| {
                assert_eq!(entry.name, format!("name {}", entry.cookie).as_bytes());
                assert_eq!(entry.ino, entry.cookie + 1000);
                let handle = entry.seen.map(|seen| seen.handle.as_slice().to_vec());
                let expected = entry.cookie.is_multiple_of(2).then(|| seen(entry.cookie as u32));
                assert_eq!(handle, expected.map(|seen| seen.handle.as_slice().to_vec()));
                entry.cookie
            })
            .collect(),
    )
}

#[test]
fn a_listing_goes_on_where_it_ended_in_the_same_state_only() {
    let budget = Budget::new(10, 1 << 20);
    let dir = directory(1, &budget);
    let mut kept = dir.lock();
    kept.extend(&dir, state(0), 5, &run([6, 7]), false);
    assert_eq!(cookies(&mut kept, state(0), 0), None, "nobody knows what comes before");
    kept.extend(&dir, state(0), 0, &run([3, 4, 9]), false);
    kept.extend(&dir, state(0), 4, &run([9, 10]), true);
    kept.extend(&dir, state(0), 10, &run([11]), true);
    assert_eq!(cookies(&mut kept, state(0), 0), Some(vec![3, 4, 9]));
    assert!(!kept.ends());
    kept.extend(&dir, state(0), 9, &run([12, 20, 21]), true);
    assert_eq!(cookies(&mut kept, state(0), 0), Some(vec![3, 4, 9, 12, 20, 21]));
    assert_eq!(cookies(&mut kept, state(0), 12), Some(vec![20, 21]));
    assert_eq!(cookies(&mut kept, state(0), 21), Some(vec![]));
    assert_eq!(cookies(&mut kept, state(0), 13), None, "no entry ends there");
    assert_eq!(cookies(&mut kept, State { export: 2, ..state(0) }, 0), None, "other handles");
    assert!(kept.ends());
    assert_eq!(cookies(&mut kept, state(1), 0), None);
    kept.extend(&dir, state(1), 0, &run([8]), false);
    assert_eq!(cookies(&mut kept, state(1), 0), Some(vec![8]));
    assert!(!kept.ends());
    assert_eq!(budget.listings().entries(), 1);
    kept.clear();
    assert_eq!((budget.listings().entries(), budget.listings().bytes()), (0, 0));
}

#[test]
fn cookies_that_do_not_grow_are_not_kept() {
    let budget = Budget::new(10, 1 << 20);
    let dir = directory(1, &budget);
    for disorder in [vec![0, 1], vec![1, 3, 2], vec![1, 1]] {
        dir.lock().extend(&dir, state(0), 0, &run(disorder), true);
        assert_eq!(cookies(&mut dir.lock(), state(0), 0), None);
    }
}

#[test]
fn what_is_looked_at_again_is_the_same_object_or_not_remembered() {
    let budget = Budget::new(10, 1 << 20);
    let dir = directory(1, &budget);
    let mut kept = dir.lock();
    kept.extend(&dir, state(0), 0, &run([2, 4]), true);
    let later = |n| Some(Seen { until: 77, ..seen(n) });
    kept.look_again(state(1), 0, later(2));
    assert_eq!(kept.get(0).unwrap().seen.unwrap().until, 5, "of another state");
    kept.look_again(state(0), 0, later(2));
    assert_eq!(kept.get(0).unwrap().seen.unwrap().until, 77);
    kept.look_again(state(0), 1, later(2));
    assert!(kept.get(1).unwrap().seen.is_none(), "the handle is another's");
}

/// Directories of a hundred entries, with memory for about 40 of them.
const LISTING: u64 = 100;

fn list(dir: &Arc<DirCache>) -> bool {
    let known = cookies(&mut dir.lock(), state(0), 0).is_some();
    if !known {
        dir.lock().extend(dir, state(0), 0, &run(1..=LISTING), true);
    }
    known
}

#[test]
fn a_walk_over_everything_takes_the_place_of_nothing_that_is_used() {
    let limit = 40 * LISTING as usize * (size_of::<Entry>() + 40);
    let budget = Budget::new(10, 4 * limit);
    let used: Vec<_> = (0..20).map(|n| directory(n, &budget)).collect();
    for round in 0..3 {
        for dir in &used {
            assert_eq!(list(dir), round > 0);
        }
    }
    let others: Vec<_> = (100..1100).map(|n| directory(n, &budget)).collect();
    for dir in &others {
        list(dir);
        assert!(budget.listings().bytes() <= limit, "{} of {limit}", budget.listings().bytes());
    }
    assert!(used.iter().all(list), "the walk has displaced what is used");
    // A listing that comes back soon after it had to leave counts as used.
    let back = &others[others.len() - 100..];
    for _ in 0..3 {
        back.iter().take(5).for_each(|dir| {
            list(dir);
        });
    }
    assert!(back.iter().take(5).all(list));
    drop((used, others));
    assert_eq!((budget.listings().entries(), budget.listings().bytes()), (0, 0), "of what is gone");
}

#[test]
fn a_listing_without_room_is_kept_as_far_as_there_is() {
    let budget = Budget::new(10, 1 << 20);
    let dir = directory(1, &budget);
    for page in 0..200 {
        let from = page * LISTING;
        dir.lock().extend(&dir, state(0), from, &run(from + 1..=from + LISTING), page == 199);
    }
    let kept = cookies(&mut dir.lock(), state(0), 0).unwrap();
    assert!(!kept.is_empty() && kept.len() < 2000 && !dir.lock().ends());
    assert!(budget.listings().bytes() <= 1 << 20);
    let tiny = Budget::new(10, 0);
    let dir = directory(1, &tiny);
    assert!(!list(&dir) && !list(&dir));
    assert_eq!(tiny.listings().bytes(), 0);
}
