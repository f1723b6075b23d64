//! Worlds: several clients and NLM hosts, a server that crashes at any record, lost requests and replies, clients that
//! never come back. One seed makes one world. `SEEDS=1000..2000 cargo test -p forebay-clientstate --test worlds` runs
//! others.
//!
//! The model of a world is the belief of each client, made of the replies that it got:
//!
//! - a change that was answered has happened once, and no change happens twice;
//! - a live client holds exactly the locks that it believes in, also over crashes;
//! - the beliefs of two live clients never conflict, nor the invariants of [`State::check`];
//! - a client that waits for a copy, and keeps its state, is told of the end;
//! - a removed file stays as long as a live client has it open, and goes with its last open;
//! - while a file is being changed, no other client has a delegation of it;
//! - no request is refused that RFC 8881 allows;
//! - nothing is left when everything is unlocked and closed, and the dead are expired.

// A panic is the assertion.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod client;
mod copies;
mod host;
mod rng;
mod server;

use std::collections::BTreeMap;

use forebay_clientstate::*;

use client::{BYTES, Client, FILES, LEASE};
use copies::Copies;
use host::Host;
use rng::Rng;
use server::{EVENTS, Server, file_key};

const STEPS: u64 = 600;

struct World {
    rng: Rng,
    now: Now,
    server: Server,
    clients: Vec<Client>,
    hosts: Vec<Host>,
    copies: Copies,
}

/// Runs the world of a seed, and returns its events. A violation panics.
fn run(seed: u64) -> BTreeMap<&'static str, u64> {
    let mut rng = Rng::new(seed);
    let clients = 2 + rng.below(3) as usize;
    let hosts = rng.below(3) as usize;
    let mut world = World {
        rng,
        now: 1_000_000 * SECOND,
        server: Server::new(),
        clients: (0..clients).map(Client::new).collect(),
        hosts: (0..hosts).map(Host::new).collect(),
        copies: Copies::default(),
    };
    for _ in 0..STEPS {
        world.step();
        world.check();
    }
    world.end();
    world.server.hits
}

impl World {
    fn step(&mut self) {
        let World { rng, now, server, clients, hosts, copies } = self;
        match rng.below(1000) {
            0..10 => server.crash(rng, *now),
            10..16 => server.compact(rng),
            16..60 => server.finish_one(rng, *now),
            60..120 => {
                *now += rng.below(20 * SECOND);
                let at = *now;
                server.call(rng, at, |state, fx| state.tick(at, fx));
            }
            120..124 => *now += (1 + rng.below(30)) * 60 * SECOND,
            124 => {
                *now += 25 * 3600 * SECOND;
                let at = *now;
                server.call(rng, at, |state, fx| state.tick(at, fx));
            }
            125..128 => {
                let index = rng.below(clients.len() as u64) as usize;
                clients[index].restart();
            }
            128..130 => {
                // At least one client stays alive.
                let index = 1 + rng.below(clients.len() as u64 - 1) as usize;
                clients[index].is_dead = true;
            }
            130..150 => {
                let file = rng.below(FILES.into()) as u8;
                server.remove(file, *now);
            }
            150..300 if !hosts.is_empty() => {
                let index = rng.below(hosts.len() as u64) as usize;
                hosts[index].step(server, rng, *now);
            }
            300..330 => server.change(rng.below(FILES.into()) as u8, rng, *now),
            330..350 => copies.step(clients, server, rng, *now),
            _ => {
                *now += SECOND / 10;
                let index = rng.below(clients.len() as u64) as usize;
                clients[index].step(server, rng, *now);
            }
        }
        self.act();
    }

    /// Carries out the actions of the server. Call-backs may be lost; those of NLM are repeated by polling hosts.
    fn act(&mut self) {
        let World { rng, now, server, clients, hosts, copies } = self;
        for action in std::mem::take(&mut server.actions) {
            if let Action::Recall { client, stateid, .. } = &action {
                for client in clients.iter_mut().filter(|known| known.id == *client) {
                    client.recalled.entry(stateid.other).or_insert(*now);
                }
            }
            if let Action::TellCopy { client, stateid, progress, .. } = &action {
                copies.called(*client, *stateid, progress);
            }
            if let Action::FileUnused(file) = &action {
                let number = (0..FILES).find(|number| file_key(*number) == *file).unwrap();
                let holder = clients.iter().find(|client| client.holds(number, server.crashes, *now));
                assert!(holder.is_none(), "file {number} is removed although a client has it open");
                assert!(server.kept.remove(&number), "file {number} has its name");
                server.state.end_removal(file);
            }
            if let Action::Granted(granted) = &action
                && !rng.chance(20)
            {
                hosts.iter_mut().for_each(|host| host.granted(granted, server, rng, *now));
            }
        }
        copies.deliver(server, rng);
    }

    fn check(&self) {
        let World { now, server, .. } = self;
        let mut changes = server.changes.clone();
        changes.sort_unstable();
        assert!(changes.windows(2).all(|pair| pair[0] != pair[1]), "a change was carried out twice");
        for client in &self.clients {
            let lost = client.acknowledged.iter().find(|token| changes.binary_search(token).is_err());
            assert_eq!(lost, None, "an acknowledged change is lost");
        }
        for file in 0..FILES {
            let live =
                self.clients.iter().filter(|client| client.is_certain(*now) && client.is_settled(file));
            let v4 = live.map(|client| (client.owner(), client.files.get(&file).map(|belief| belief.bytes)));
            let settled =
                self.hosts.iter().filter(|host| host.outstanding.is_none_or(|wish| wish.file != file));
            let v3 = settled.map(|host| (host.owner(), host.files.get(&file).copied()));
            let believed: Vec<_> =
                v4.chain(v3).map(|(owner, bytes)| (owner, bytes.unwrap_or_default())).collect();
            for byte in 0..BYTES {
                let held = believed.iter().map(|(_, bytes)| bytes[byte as usize]);
                let (writers, all) =
                    (held.clone().filter(|kind| *kind == 2).count(), held.filter(|kind| *kind > 0).count());
                assert!(
                    writers == 0 || all == 1,
                    "byte {byte} of file {file} is locked by {writers} of {all} writers"
                );
                let range = Range { first: byte, last: byte };
                for (owner, bytes) in &believed {
                    let holds = |kind| server.state.holds(owner, &file_key(file), range, kind);
                    let found = u8::from(holds(LockKind::Read)) + u8::from(holds(LockKind::Write));
                    assert_eq!(found, bytes[byte as usize], "byte {byte} of file {file} and {owner:?}");
                }
            }
            self.check_delegations(file);
            let is_leaked = server.kept.contains(&file) && !server.has_state(file);
            assert!(!is_leaked, "file {file} is kept for nobody");
        }
    }

    fn check_delegations(&self, file: u8) {
        let live = self.clients.iter().filter(|client| client.is_certain(self.now));
        let held = live.filter_map(|client| client.files.get(&file)?.delegation);
        let held: Vec<_> = held.collect();
        let writers = held.iter().filter(|held| held.write).count();
        // A delegation that is being returned, or was revoked, is the server's business: State::check.
        let known = |held: &Delegated| {
            self.clients.iter().any(|client| self.server.state.test_stateid(client.id, held.stateid).is_ok())
        };
        let known = held.iter().filter(|held| known(held)).count();
        assert!(writers == 0 || known <= 1, "file {file} has {writers} write delegations of {known}");
        let is_changing = self.server.changing.iter().any(|(changing, _)| *changing == file);
        assert!(known == 0 || !is_changing, "file {file} has {known} delegations while it is being changed");
    }

    /// Lets everybody finish and leave.
    fn end(&mut self) {
        for _ in 0..200 {
            let World { rng, now, server, clients, .. } = self;
            for client in clients.iter_mut().filter(|client| !client.is_dead) {
                client.drain(server, rng, *now);
            }
            server.finish_one(rng, *now);
        }
        while self.server.is_running() {
            self.server.finish_one(&mut self.rng, self.now);
        }
        self.act();
        self.check();
        let World { rng, now, server, copies, .. } = self;
        copies.end(server, rng, *now);
        self.act();
        self.server.changing.clear();
        self.now += 25 * 3600 * SECOND;
        for _ in 0..50 {
            for index in 0..self.clients.len() {
                let World { rng, now, server, clients, .. } = self;
                let client = &mut clients[index];
                if !client.is_dead && !client.is_certain(*now) {
                    client.step(server, rng, *now);
                    client.drain(server, rng, *now);
                }
                // Before another client renews its lease.
                self.act();
            }
            self.server.finish_one(&mut self.rng, self.now);
            self.act();
        }
        // Delegations and denials of one client may be in another one's way at first. A crash after the long pause
        // gives the dead a new lease. A dead client returns no delegation, which is revoked a lease time after its
        // recall.
        for _ in 0..5 {
            self.server.tick(self.now);
            self.act();
            let World { now, server, clients, .. } = self;
            for client in clients.iter_mut().filter(|client| client.is_certain(*now)) {
                client.leave(server, *now);
            }
            self.act();
            self.now += LEASE / 2;
        }
        let World { now, server, clients, hosts, .. } = self;
        // An unlock may grant the lock of another host.
        for _ in 0..10 {
            hosts.iter_mut().for_each(|host| host.leave(server, *now));
        }
        assert_eq!(server.state.check(), Ok(()));
        for client in clients.iter().filter(|client| client.is_certain(*now)) {
            let records = server.state.snapshot_of(client.id, 0);
            let left = records
                .iter()
                .find(|record| matches!(record, Record::Open { .. } | Record::Delegation { .. }));
            assert_eq!(left, None, "something is left");
        }
        let hosts = server.state.snapshot_hosts();
        assert!(
            hosts.iter().all(|record| matches!(record, Record::Host(..))),
            "something is left: {hosts:?}"
        );
        self.now += 25 * 3600 * SECOND;
        self.server.tick(self.now);
        self.act();
        let server = &self.server;
        assert_eq!(server.state.check(), Ok(()));
        assert!(server.kept.is_empty(), "files are kept for nobody: {:?}", server.kept);
        let left = Counts { hosts: 0, ..server.state.counts() };
        assert_eq!(left, Counts::default(), "something is left");
    }
}

/// Returns the seeds to run.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("SEEDS").unwrap_or_else(|_| "0..150".into());
    let (from, to) = text.split_once("..").expect("SEEDS=FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn worlds_hold_their_promises() {
    let mut hits: BTreeMap<&str, u64> = BTreeMap::new();
    let seeds = seeds();
    for seed in seeds.clone() {
        let Ok(found) = std::panic::catch_unwind(|| run(seed)) else {
            panic!("the world of seed {seed} broke a promise: SEEDS={seed}..{} repeats it", seed + 1);
        };
        found.into_iter().for_each(|(event, count)| *hits.entry(event).or_default() += count);
    }
    println!("{hits:?}");
    let never: Vec<_> = EVENTS.iter().filter(|event| !hits.contains_key(*event)).collect();
    assert!(never.is_empty() || seeds.end - seeds.start < 100, "no world had {never:?}");
}

#[cfg(feature = "plant")]
mod plants {
    use forebay_common::planted_bugs::plant;

    /// Each planted bug breaks a world of the first 300 seeds.
    #[test]
    fn each_planted_bug_is_found() {
        let mut missed = Vec::new();
        for bug in forebay_clientstate::planted_bugs::PLANTS {
            plant(Some(bug));
            let found = (0..300).find(|seed| std::panic::catch_unwind(|| super::run(*seed)).is_err());
            plant(None);
            match found {
                Some(seed) => println!("{bug}: found by world {seed}"),
                None => missed.push(bug),
            }
        }
        assert!(missed.is_empty(), "no world finds {missed:?}");
    }
}
