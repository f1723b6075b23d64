//! Prints the memory of each kind of entry, from the resident set of this process: `cargo run --release -p
//! forebay-clientstate --example memory`.

// A panic ends the measurement.
#![allow(clippy::expect_used)]

use forebay_clientstate::*;

const CLIENTS: u64 = 10_000;
const ENTRIES: u64 = 1_000_000;

fn main() {
    let mut state = State::new(Limits::default(), Origin { epoch: 1, seed: 1 });
    let mut last = resident();
    let mut report = |kind: &str, count: u64| {
        let now = resident();
        eprintln!(
            "{kind}: {} bytes each, {count} of them, {} MiB in all",
            now.saturating_sub(last) / count,
            now >> 20
        );
        last = now;
    };
    let fx = &mut Effects::default();
    let clients: Vec<ClientId> = (0..CLIENTS).map(|index| client(&mut state, index, fx)).collect();
    *fx = Effects::default();
    report("clients with a session", CLIENTS);
    for client in &clients {
        use_slots(&state, *client, fx);
    }
    report("sessions that have used 8 slots", CLIENTS);
    let mut opens = Vec::with_capacity(ENTRIES as usize);
    for index in 0..ENTRIES {
        let client = clients[(index % CLIENTS) as usize];
        let args = OpenArgs {
            client,
            owner: bounded(b"open id:", index / CLIENTS % 10),
            file: file(index),
            share: Share { access: 3, deny: 0 },
            claim: Claim::New,
            want: Want::None,
            request: None,
        };
        opens.push(state.open(&args, 1, fx).expect("an open").stateid);
        *fx = Effects::default();
    }
    report("opens of a file each", ENTRIES);
    for (index, open) in opens.iter().enumerate() {
        let index = index as u64;
        let args = LockArgs {
            client: clients[(index % CLIENTS) as usize],
            locker: Locker::New(*open, bounded(b"lock id:", index / CLIENTS % 10)),
            file: file(index),
            range: Range { first: 0, last: 99 },
            kind: LockKind::Write,
            is_reclaim: false,
            waits: false,
        };
        state.lock(&args, 1, fx).expect("a lock");
        *fx = Effects::default();
    }
    report("locks, each with a lock state", ENTRIES);
    eprintln!("{:?}", state.counts());
    drop(opens);
    let records: usize = state.snapshot(0).map(|record| encode_all(&[record]).len()).sum();
    eprintln!("a snapshot has {} MiB", records >> 20);
}

fn client(state: &mut State, index: u64, fx: &mut Effects) -> ClientId {
    let principal = Principal::new(b"root@client").expect("short");
    let owner = bounded(b"Linux NFSv4.2 client-00000.example.org ", index);
    let args = ExchangeId { owner, verifier: [1; 8], principal: principal.clone(), flags: 0 };
    let client = state.exchange_id(&args, 1, fx).expect("a client").client;
    let channel =
        Channel { max_request: 1 << 20, max_response: 1 << 20, max_cached: 2048, operations: 8, slots: 64 };
    let create = CreateSession {
        client,
        sequence: 1,
        flags: PERSIST | CONN_BACK_CHAN,
        fore: channel,
        back: channel,
        callback_program: 1,
        callback_security: vec![1; 40],
        principal,
        connection: index,
        random: index.to_le_bytes(),
    };
    state.create_session(&create, 1, fx).expect("a session");
    state.reclaim_complete(client, false, 1, fx).expect("complete");
    client
}

/// Uses some slots as a client does that has mounted: with replies of 200 bytes.
fn use_slots(state: &State, client: ClientId, fx: &mut Effects) {
    let session = state.snapshot_of(client, 0).iter().find_map(|record| match record {
        Record::Session { id, .. } => state.session(*id),
        _ => None,
    });
    let session = session.expect("a session");
    for slot in 0..8 {
        let request = Request {
            slot,
            sequence: 1,
            highest: 8,
            cache_this: true,
            digest: 1,
            operations: 3,
            length: 200,
            connection: 1,
            waiter: None,
        };
        session.sequence(&request, 1).expect("a slot");
        session.complete(slot, &[0; 200], None, 1, fx);
    }
}

fn bounded(text: &[u8], number: u64) -> OwnerName {
    OwnerName::new(&[text, &number.to_be_bytes()].concat()).expect("short")
}

fn file(index: u64) -> FileKey {
    FileKey::of_handle(&[&[7; 28][..], &index.to_be_bytes()].concat()).expect("short")
}

/// Returns the resident set in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    pages * 4096
}
