//! Tests of the pool: its limit, the shares of addresses, and the buffers that are kept.

use super::*;

/// Returns the only address of a pool, and the pool.
fn alone(largest: usize, limit: usize) -> (Arc<Account>, Arc<Pool>) {
    let pool = Pool::new(largest, limit);
    (Account::new(pool.clone()), pool)
}

#[test]
fn the_limit_holds_and_buffers_come_back() {
    let (account, pool) = alone(1 << 20, 4 << 20);
    let mut held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
    assert_eq!(held.len(), 4, "three quarters, and the one extra");
    held.pop();
    assert!(account.full());
    held.pop();
    assert!(account.lease(1 << 20).is_some());
    held.clear();
    assert_eq!(pool.used(), 0);
    assert!(pool.cached.load(Relaxed) <= 4 << 20);
}

#[test]
fn an_address_gets_its_share_whatever_another_holds() {
    let (greedy, pool) = alone(1 << 20, 16 << 20);
    let other = Account::new(pool.clone());
    pool.addresses.store(2, Relaxed);
    let mut held: Vec<_> = std::iter::from_fn(|| greedy.lease(1 << 20)).collect();
    held.extend(std::iter::from_fn(|| greedy.lease(SMALL)));
    assert!(greedy.full() && !other.full());
    // The sixteenth part of 16 MiB each, twice.
    let theirs: Vec<_> = (0..2).map(|_| other.lease(1 << 20).unwrap()).collect();
    assert!(other.full() && other.lease(1 << 20).is_none());
    drop(theirs);
    assert_eq!(other.lease_payload(1 << 20).unwrap().len(), 1 << 20);
    assert!(other.lease_pipe(1 << 20).is_some() && greedy.lease_pipe(1 << 20).is_none());
    drop(held);
    assert!(!greedy.full() && greedy.held() == 0);
}

#[test]
fn what_is_in_flight_gets_small_payloads_within_the_limit() {
    let (account, pool) = alone(1 << 20, 4 << 20);
    (0..64).for_each(|_| account.promise());
    let payloads: Vec<_> = (0..64).map(|_| account.lease_payload(1 << 20).unwrap()).collect();
    assert_eq!(payloads.iter().map(|payload| payload.len()).max(), Some(1 << 20));
    assert!(pool.used() <= 4 << 20 && account.full(), "{} bytes", pool.used());
    drop(payloads);
    assert!(account.lease_pipe(2 << 20).is_some() && account.lease_pipe(3 << 20).is_none());
    assert!(!account.full());
    (0..64).for_each(|_| account.fulfil());
    let held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
    assert_eq!(held.len(), 4, "and the one extra");
}

#[test]
fn what_is_refused_never_counts() {
    let (account, pool) = alone(1 << 20, 4 << 20);
    let held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
    let full = pool.used();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    assert!(account.lease(1 << 20).is_none());
                }
            });
        }
        let most = (0..1_000_000).map(|_| pool.used()).max();
        stop.store(true, Relaxed);
        assert_eq!(most, Some(full));
    });
    drop(held);
}

#[test]
fn a_payload_gets_less_when_memory_is_short() {
    let (account, _) = alone(1 << 20, ((1 << 20) + (70 << 10)) / 3 * 4);
    let first = account.lease_payload(1 << 20).unwrap();
    assert_eq!(first.len(), 1 << 20);
    let second = account.lease_payload(1 << 20).unwrap();
    assert_eq!(second.len(), 64 << 10);
    let third = account.lease_payload(1 << 20).unwrap();
    assert_eq!(third.len(), SMALL);
}

#[test]
fn cached_buffers_of_one_size_make_room_for_another() {
    let (account, pool) = alone(1 << 20, 4 << 20);
    drop((0..192).map(|_| account.lease(SMALL).unwrap()).collect::<Vec<_>>());
    assert_eq!(pool.cached.load(Relaxed), 3 << 20);
    let large: Vec<_> = (0..3).map(|_| account.lease_payload(1 << 20).unwrap()).collect();
    assert_eq!(pool.cached.load(Relaxed), 1 << 20);
    assert_eq!(pool.used(), large.iter().map(|buf| buf.len()).sum());
}

#[test]
fn what_is_not_needed_goes_back_to_the_system() {
    let (account, pool) = alone(1 << 20, 1 << 30);
    drop((0..4).map(|_| account.lease(1 << 20).unwrap()).collect::<Vec<_>>());
    pool.trim();
    assert_eq!(pool.cached.load(Relaxed), 4 << 20, "they were needed since the last time");
    drop((0..3).map(|_| account.lease(1 << 20).unwrap()).collect::<Vec<_>>());
    pool.trim();
    assert_eq!(pool.cached.load(Relaxed), 3 << 20);
    pool.trim();
    assert!(!pool.has_cached());
}

#[test]
fn nothing_beyond_the_largest_size() {
    assert!(alone(1 << 20, 1 << 30).0.lease((1 << 20) + 1).is_none());
}
