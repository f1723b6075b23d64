//! Tests of the cache by itself: the key of a request, and the time when its reply is dropped.

use super::askers::MAX_ASKERS;
use super::key::{HASHED, hash};
use super::*;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 8));

fn cache() -> ReplyCache {
    ReplyCache::new(CacheLimits { entries: 1000, bytes: 1 << 20 })
}

fn key(xid: u32) -> RequestKey {
    RequestKey { xid, procedure: 8, user: None, hash: 7 }
}

impl ReplyCache {
    fn has(&self, client: IpAddr, xid: u32, now: Instant) -> bool {
        self.queue_of(&mut self.inner.lock(), client, now).entries.contains_key(&key(xid))
    }
}

#[test]
fn every_byte_of_a_call_counts_and_of_a_large_write_its_ends_and_its_length() {
    for len in [1, 600, HASHED] {
        let args = vec![7; len];
        let differs = |at: usize| {
            let mut other = args.clone();
            other[at] ^= 1;
            hash(&other, 1) != hash(&args, 1)
        };
        assert!([0, len / 2, len - 1].into_iter().all(differs), "{len}");
        assert_ne!(hash(&args, 1), hash(&args, 2));
    }
    let large = vec![7; HASHED * 4];
    for at in [0, HASHED / 2 - 1, HASHED * 4 - HASHED / 2, HASHED * 4 - 1] {
        let mut other = large.clone();
        other[at] ^= 1;
        assert_ne!(hash(&other, 1), hash(&large, 1), "{at}");
    }
    assert_ne!(hash(&large[1..], 1), hash(&large, 1));
}

#[test]
fn a_reply_is_kept_for_its_lifetime_and_no_longer() {
    let (cache, begun) = (cache(), Instant::now());
    let later = begun + LIFETIME / 2;
    cache.end(CLIENT, key(1), b"first", begun);
    cache.end(CLIENT, key(2), b"second", later);
    assert!(cache.has(CLIENT, 1, begun + LIFETIME));
    let expired = begun + LIFETIME + Duration::from_millis(1);
    assert_eq!([1, 2].map(|xid| cache.has(CLIENT, xid, expired)), [false, true]);
    assert_eq!(cache.usage.entries.load(Ordering::Relaxed), 1);
    assert_eq!(cache.usage.bytes.load(Ordering::Relaxed), b"second".len());
}

#[test]
fn replies_of_a_client_that_asks_for_nothing_expire_too() {
    let (cache, begun) = (cache(), Instant::now());
    cache.end(CLIENT, key(1), b"reply", begun);
    cache.end(OTHER, key(1), b"reply", begun + LIFETIME + SWEEP);
    assert_eq!(cache.usage.entries.load(Ordering::Relaxed), 1);
    assert_eq!(cache.inner.lock().clients.len(), 1);
}

#[test]
fn a_snapshot_has_the_newest_replies_and_those_of_durable_changes_on_their_way() {
    let (cache, now) = (cache(), Instant::now());
    let xids = |durable, at| {
        let mut xids: Vec<_> = cache.snapshot(durable, at).iter().map(|(_, key, _)| key.xid).collect();
        xids.sort_unstable();
        xids
    };
    for xid in 0..300 {
        cache.end(CLIENT, key(xid), b"reply", now);
    }
    cache.end(OTHER, key(1000), b"reply", now + Duration::from_secs(1));
    let write = RequestKey { procedure: Procedure::Write as u32, ..key(1001) };
    cache.end(OTHER, write, b"reply", now);
    let newest: Vec<_> = (44..300).chain([1000]).collect();
    assert_eq!(xids(u64::MAX, now), newest);
    assert_eq!(xids(u64::MAX, now + LIFETIME + Duration::from_secs(1)), [1000], "the others have expired");
    let running = Entry { askers: Askers::one(1), state: State::Running(None) };
    cache.inner.lock().clients.get_mut(&OTHER).unwrap().entries.insert(key(2000), running);
    cache.log(OTHER, key(2000), b"new", 7);
    assert_eq!(xids(6, now), newest, "its change may not be durable");
    assert_eq!(xids(7, now).last(), Some(&2000));
    cache.abandon(OTHER, key(2000));
    assert_eq!(xids(7, now), newest);
}

#[test]
fn many_clients_share_the_room_for_replies_in_the_log() {
    let (cache, now) = (ReplyCache::new(CacheLimits { entries: 20_000, bytes: 1 << 20 }), Instant::now());
    let clients = 2 * IN_LOG as u32 / PER_CLIENT_IN_LOG as u32;
    for client in 0..clients {
        for xid in 0..150 {
            cache.end(IpAddr::from(client.to_be_bytes()), key(xid), b"reply", now);
        }
    }
    assert_eq!(cache.snapshot(0, now).len(), IN_LOG);
}

#[test]
fn the_last_connection_that_asked_and_has_received_takes_the_reply_along() {
    let dropped = |askers: &[u64], gone: &[(u64, Replies)]| {
        let (cache, now) = (cache(), Instant::now());
        cache.end(CLIENT, key(1), b"reply", now);
        cache.end(CLIENT, key(2), b"another", now);
        let mut inner = cache.inner.lock();
        let queue = inner.clients.get_mut(&CLIENT).unwrap();
        for asker in askers {
            queue.note(*asker);
            queue.entries.get_mut(&key(1)).unwrap().askers.add(*asker);
        }
        drop(inner);
        gone.iter().for_each(|(connection, replies)| cache.gone(CLIENT, *connection, *replies));
        assert!(cache.has(CLIENT, 2, now), "nobody's reply");
        let there = cache.has(CLIENT, 1, now);
        let entries = 1 + usize::from(there);
        assert_eq!(cache.usage.entries.load(Ordering::Relaxed), entries);
        assert_eq!(cache.inner.lock().clients[&CLIENT].order.len(), entries);
        let bytes = if there { 12 } else { 7 };
        assert_eq!(cache.usage.bytes.load(Ordering::Relaxed), bytes);
        assert_eq!(cache.inner.lock().clients[&CLIENT].bytes, bytes);
        !there
    };
    let (received, unsure) = (Replies::Received, Replies::Unsure);
    assert!(dropped(&[1], &[(1, received)]));
    assert!(dropped(&[1, 1], &[(1, received)]));
    assert!(!dropped(&[1], &[(1, unsure)]));
    assert!(!dropped(&[1], &[(2, received)]));
    assert!(!dropped(&[1, 2], &[(1, received)]));
    assert!(!dropped(&[1, 2], &[(1, received), (2, unsure)]));
    // The client asked again on a second connection and has the reply from there.
    assert!(dropped(&[1, 2], &[(1, unsure), (2, received)]));
    assert!(!dropped(&[], &[(1, received)]), "recovered, and nobody asked");
    let many: Vec<u64> = (1..=MAX_ASKERS as u64 + 1).collect();
    let all: Vec<_> = many.iter().map(|asker| (*asker, received)).collect();
    assert!(!dropped(&many, &all), "more than are remembered");
}

#[test]
fn connections_without_requests_are_not_remembered_for_ever() {
    let (cache, now) = (cache(), Instant::now());
    cache.end(CLIENT, key(1), b"reply", now);
    let mut inner = cache.inner.lock();
    let queue = inner.clients.get_mut(&CLIENT).unwrap();
    (0..1000).for_each(|asker| queue.note(asker));
    assert!(queue.askers.len() < 20, "{}", queue.askers.len());
}

#[test]
fn an_entry_and_its_key_fit_a_line_of_the_processor_s_cache() {
    assert!(size_of::<(RequestKey, Entry)>() <= 64, "{}", size_of::<(RequestKey, Entry)>());
}

#[test]
fn more_connections_than_have_a_name_keep_the_reply_until_it_expires() {
    let mut askers = Askers::one(0);
    (1..MAX_ASKERS as u64).for_each(|connection| askers.add(connection));
    assert_eq!(askers.open().collect::<Vec<_>>(), [0, 1, 2, 3]);
    askers.add(2);
    assert!((0..3).all(|connection| !askers.remove(connection)));
    assert!(askers.remove(3), "the last one");
    assert!(!askers.remove(3), "it is gone already");
    (0..=MAX_ASKERS as u64).for_each(|connection| askers.add(connection));
    assert!((0..=MAX_ASKERS as u64).all(|connection| !askers.remove(connection)), "one has no name");
}
