//! The profile against models that count everything.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::operation::mixed;
use crate::shard::EXACT;
use crate::{Counters, FileId, Kind, Moved, Operation, Profile, Subject};

fn client(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
}

fn operation(subject: Subject, kind: Kind, file: u64, moved: Option<Moved>) -> Operation {
    Operation { subject, kind, failed: false, file, moved }
}

fn id_of(file: u64) -> FileId {
    FileId::new(&file.to_le_bytes())
}

fn total(counters: &[(impl Copy, Counters)], others: &Counters) -> u64 {
    counters.iter().map(|(_, counters)| counters.total()).sum::<u64>() + others.total()
}

#[test]
fn few_keys_are_counted_exactly() {
    let profile = Profile::new(true);
    let (mut clients, mut exports, mut users, mut files) =
        (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
    let mut writers: HashMap<u64, HashSet<IpAddr>> = HashMap::new();
    let mut random = 7_u64;
    let mut below = |bound: u64| {
        random = mixed(random + 1);
        random % bound
    };
    for step in 0..20_000_u64 {
        let (client, export, user) = (client(below(40) as u32), below(5) as u32, 1000 + below(9) as u32);
        let file = mixed(1 + below(60));
        let kind = Kind::ALL[below(Kind::COUNT as u64) as usize];
        let moves = matches!(kind, Kind::Read | Kind::Write);
        let stable = below(2) == 0;
        let moved = moves.then(|| Moved { offset: below(1 << 30), len: 1 + below(1 << 20) as u32, stable });
        let failed = below(10) == 0;
        // An offset that is random in a large file continues no stream.
        let sequential = false;
        let one = Operation { failed, ..operation(Subject::new(client, export, user), kind, file, moved) };
        profile.count(&one, Duration::from_millis(step), || id_of(file));
        let mut counters = Counters::default();
        counters.count(kind, failed, moved.map(|moved| (moved, sequential)), 1);
        clients.entry(client).or_insert_with(Counters::default).add(&counters);
        exports.entry(export).or_insert_with(Counters::default).add(&counters);
        users.entry(user).or_insert_with(Counters::default).add(&counters);
        files.entry(file).or_insert_with(Counters::default).add(&counters);
        if kind == Kind::Write && !failed {
            writers.entry(file).or_default().insert(client);
        }
    }
    let snapshot = profile.snapshot(100, Duration::from_secs(20));
    // A few requests may look sequential by chance; the model does not follow streams.
    let plain =
        |counters: &Counters| Counters { sequential_reads: 0, sequential_writes: 0, ..counters.clone() };
    let as_map = |most: &[(u32, Counters)]| -> HashMap<u32, Counters> {
        most.iter().map(|(key, counters)| (*key, plain(counters))).collect()
    };
    let by_address: HashMap<_, _> =
        snapshot.clients.most.iter().map(|(key, counters)| (*key, plain(counters))).collect();
    assert_eq!(by_address, clients);
    assert_eq!(as_map(&snapshot.exports.most), exports);
    assert_eq!(as_map(&snapshot.users.most), users);
    let by_file: HashMap<_, _> =
        snapshot.files.iter().map(|file| (file.key, plain(&file.counters))).collect();
    assert_eq!(by_file, files);
    for file in &snapshot.files {
        assert_eq!(file.id, Some(id_of(file.key)));
        let several = writers.get(&file.key).is_some_and(|writers| writers.len() > 1);
        assert_eq!(file.is_shared, several, "{file:?}");
    }
    assert_eq!(snapshot.total.total(), 20_000);
    assert!(snapshot.clients.others.is_empty() && snapshot.other_files.is_empty());
    let again = profile.snapshot(100, Duration::from_secs(20));
    assert_eq!(again.total, snapshot.total, "a snapshot changes nothing");
}

#[test]
fn a_hundred_thousand_clients_take_no_more_memory_than_a_thousand() {
    let profile = Profile::new(true);
    let busy = Subject::new(client(0xff_ffff), 1, 1);
    for number in 0..100_000_u32 {
        let at = Duration::from_micros(u64::from(number) * 10);
        let file = mixed(u64::from(number) + 1);
        let one = operation(Subject::new(client(number), number, number), Kind::Getattr, file, None);
        profile.count(&one, at, || id_of(file));
        if number % 4 == 0 {
            profile.count(&operation(busy, Kind::Getattr, 5, None), at, || id_of(5));
        }
    }
    let snapshot = profile.snapshot(10, Duration::from_secs(1));
    let [clients, exports, users, files] = profile.table_sizes();
    assert!(clients <= 1024 && exports <= 256 && users <= 1024 && files <= 2048);
    assert_eq!(snapshot.clients.most.len(), 10);
    assert_eq!(snapshot.clients.most[0].0, client(0xff_ffff));
    assert_eq!(snapshot.clients.most[0].1.total(), 25_000, "the busiest client is exact");
    for (most, others) in
        [(&snapshot.exports.most, &snapshot.exports.others), (&snapshot.users.most, &snapshot.users.others)]
    {
        assert_eq!(total(most, others), 125_000, "the sum is exact");
    }
    assert_eq!(total(&snapshot.clients.most, &snapshot.clients.others), 125_000);
    assert_eq!(snapshot.total.total(), 125_000);
    assert_eq!(snapshot.files[0].key, 5);
}

#[test]
fn a_busy_second_is_sampled_without_bias() {
    let profile = Profile::new(true);
    let subject = Subject::new(client(1), 1, 1);
    let (rounds, at) = (400_000_u64, Duration::from_secs(1));
    for number in 0..rounds {
        // A file gets three of four operations, and another one the rest.
        let file = if number % 4 == 0 { 2 } else { 1 };
        profile.count(&operation(subject, Kind::Read, file, None), at, || id_of(file));
    }
    let snapshot = profile.snapshot(10, at);
    assert_eq!(snapshot.total.total(), rounds, "clients are never sampled");
    let counted: Vec<_> = snapshot.files.iter().map(|file| (file.key, file.counters.total())).collect();
    for (key, wanted) in [(1, rounds * 3 / 4), (2, rounds / 4)] {
        let (_, found) = *counted.iter().find(|(file, _)| *file == key).unwrap();
        assert!((found as f64 / wanted as f64 - 1.0).abs() < 0.05, "{found} for {wanted}");
    }
    assert!(counted.iter().map(|(_, count)| count).sum::<u64>() >= u64::from(EXACT));
}

#[test]
fn all_threads_count_and_none_waits_for_another_shard() {
    let profile = Profile::new(true);
    let (threads, each) = (40_u32, 500_u32);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let profile = &profile;
            scope.spawn(move || {
                let subject = Subject::new(client(thread), 1, 1);
                for _ in 0..each {
                    profile.count(&operation(subject, Kind::Write, 9, None), Duration::ZERO, || id_of(9));
                }
            });
        }
        for _ in 0..20 {
            profile.snapshot(5, Duration::ZERO);
        }
    });
    let snapshot = profile.snapshot(100, Duration::ZERO);
    assert_eq!(snapshot.total.of(Kind::Write), u64::from(threads * each));
    assert!(snapshot.clients.most.iter().all(|(_, counters)| counters.total() == u64::from(each)));
    assert!(snapshot.files[0].is_shared);
}

#[test]
fn streams_of_two_clients_in_one_file_are_sequential() {
    let profile = Profile::new(true);
    for block in 0..100_u64 {
        for (number, base) in [(1, 0), (2, 1 << 40)] {
            let moved = Moved { offset: base + block * 65536, len: 65536, stable: false };
            let subject = Subject::new(client(number), 1, 1);
            profile.count(&operation(subject, Kind::Read, 3, Some(moved)), Duration::ZERO, || id_of(3));
            let scattered = Moved { offset: mixed(block) >> 20, len: 4096, stable: true };
            let write = operation(subject, Kind::Write, 3, Some(scattered));
            profile.count(&write, Duration::ZERO, || id_of(3));
        }
    }
    let counted = profile.snapshot(1, Duration::ZERO).total;
    // The second stream begins in the middle of the file.
    assert_eq!((counted.of(Kind::Read), counted.sequential_reads), (200, 199));
    assert!(counted.sequential_writes < 5 && counted.stable_writes == 200, "{counted:?}");
}

#[test]
fn a_profile_that_is_off_counts_nothing_and_a_reset_forgets() {
    let profile = Profile::new(false);
    let subject = Subject::new(client(1), 1, 1);
    let moved = Some(Moved { offset: 0, len: 4096, stable: true });
    let count = || {
        profile.count(&operation(subject, Kind::Write, 3, moved), Duration::ZERO, || id_of(3));
        profile.count_made(3, Duration::ZERO);
    };
    count();
    assert!(profile.snapshot(1, Duration::ZERO).total.is_empty());
    profile.set_enabled(true);
    count();
    let snapshot = profile.snapshot(1, Duration::ZERO);
    assert_eq!((snapshot.total.bytes_written, snapshot.new_files.made), (4096, 1));
    assert_eq!(snapshot.working_sets[0].bytes, 4096);
    profile.reset(Duration::from_secs(7));
    let snapshot = profile.snapshot(1, Duration::from_secs(8));
    assert!(snapshot.total.is_empty() && snapshot.files.is_empty(), "{snapshot:?}");
    assert_eq!((snapshot.since, snapshot.new_files.made), (Duration::from_secs(7), 0));
    assert_eq!(snapshot.working_sets.iter().map(|hour| hour.bytes).sum::<u64>(), 0);
}
