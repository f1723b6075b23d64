//! Tests of the array's guarantees with random requests in virtual time.

// A panic in a test or its helpers is a failed assertion, so `unwrap` and `expect` are allowed here.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use forebay_array::model::{BLOCK, CacheKind, Model};
use forebay_array::sim::{Array, Nanos, Op, Output};
use std::collections::HashMap;

const SIZE: u64 = 256 << 20;

/// A small random generator. The seed determines every test step.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Default)]
struct Block {
    /// Number of the newest write submitted.
    newest: u64,
    /// Number of the newest write when the disks last began to write the block.
    started: u64,
    durable: u64,
}

struct World {
    array: Array,
    kind: CacheKind,
    dice: Dice,
    now: Nanos,
    next: u64,
    blocks: HashMap<u64, Block>,
    pending: HashMap<u64, Op>,
    acknowledged: HashMap<u64, u64>,
    /// For each flush, the writes that must be durable when it completes.
    flushes: HashMap<u64, Vec<(u64, u64)>>,
    streams: [u64; 4],
}

impl World {
    fn new(model: &str, kind: CacheKind, seed: u64) -> Self {
        let mut model = Model::load(model).unwrap();
        model.cache.kind = kind;
        model.cache.size_mib = 8;
        Self {
            array: Array::new(&model, SIZE),
            kind,
            dice: Dice(seed),
            now: 0,
            next: 0,
            blocks: HashMap::new(),
            pending: HashMap::new(),
            acknowledged: HashMap::new(),
            flushes: HashMap::new(),
            streams: [0, SIZE / 4, SIZE / 2, SIZE / 4 * 3],
        }
    }

    fn op(&mut self) -> Op {
        let blocks = self.array.size() / BLOCK;
        let length = match self.dice.below(4) {
            0 | 1 => 1,
            2 => 1 + self.dice.below(64),
            _ => 256,
        };
        let kind = self.dice.below(20);
        if kind == 0 {
            return Op::Flush;
        }
        let start = if self.dice.below(2) == 0 {
            let stream = &mut self.streams[self.dice.below(4) as usize];
            *stream = (*stream + length * BLOCK) % (self.array.size() - 512 * BLOCK);
            *stream / BLOCK
        } else if self.dice.below(2) == 0 {
            // A small region, so that requests overlap.
            self.dice.below(400)
        } else {
            self.dice.below(blocks - 256)
        };
        let (offset, length) = (start * BLOCK, length * BLOCK);
        if kind < 10 { Op::Read { offset, length } } else { Op::Write { offset, length } }
    }

    fn submit(&mut self) {
        let op = self.op();
        self.next += 1;
        let tag = self.next;
        match op {
            Op::Write { offset, length } => {
                for block in blocks(offset, length) {
                    self.blocks.entry(block).or_default().newest = tag;
                }
            }
            Op::Flush => {
                self.flushes.insert(tag, self.acknowledged.iter().map(|(b, w)| (*b, *w)).collect());
            }
            Op::Read { .. } => {}
        }
        self.pending.insert(tag, op);
        // The request arrives slightly in the past, as after a late wake-up.
        self.array.submit(self.now.saturating_sub(self.dice.below(100_000)), tag, op);
    }

    fn advance(&mut self, to: Nanos) {
        self.now = to;
        self.array.advance(to);
        while let Some(output) = self.array.output() {
            match output {
                Output::Done { tag, at } => self.done(tag, at),
                Output::Started { offset, length } => {
                    for block in blocks(offset, length) {
                        let b = self.blocks.get_mut(&block).expect("only what was written is destaged");
                        b.started = b.newest;
                    }
                }
                Output::Durable { offset, length } => {
                    for block in blocks(offset, length) {
                        let b = self.blocks.get_mut(&block).expect("only what was written is destaged");
                        b.durable = b.started;
                    }
                }
            }
        }
    }

    fn done(&mut self, tag: u64, at: Nanos) {
        assert!(at <= self.now);
        let op = self.pending.remove(&tag).expect("every request is answered once");
        match op {
            Op::Write { offset, length } => {
                for block in blocks(offset, length) {
                    let newest = self.acknowledged.entry(block).or_default();
                    *newest = tag.max(*newest);
                    if self.kind == CacheKind::None {
                        assert!(
                            self.blocks[&block].durable >= tag,
                            "acknowledged before it was on the platters"
                        );
                    }
                }
            }
            Op::Flush if self.kind == CacheKind::Volatile => {
                for (block, write) in self.flushes.remove(&tag).unwrap() {
                    assert!(self.blocks[&block].durable >= write, "flushed before it was on the platters");
                }
            }
            _ => {}
        }
    }
}

fn blocks(offset: u64, length: u64) -> std::ops::Range<u64> {
    offset / BLOCK..(offset + length) / BLOCK
}

#[test]
fn requests_are_answered_once_and_acknowledgements_hold() {
    for model in ["nl-sas-8", "nl-sas-48"] {
        for kind in [CacheKind::None, CacheKind::Battery, CacheKind::Volatile] {
            for seed in 1..=3 {
                let mut world = World::new(model, kind, seed);
                for _ in 0..600 {
                    let room = 128 - world.pending.len() as u64;
                    (0..world.dice.below(5).min(room)).for_each(|_| world.submit());
                    let step = world.dice.below(6_000_000);
                    world.advance(world.now + step);
                }
                while let Some(at) = world.array.next_event() {
                    world.advance(at);
                }
                assert!(world.pending.is_empty(), "{model} {kind:?} seed {seed}: {:?}", world.pending);
                let counters = world.array.counters();
                assert_eq!((counters.in_flight, counters.cache_used_bytes), (0, 0));
                assert!(world.blocks.values().all(|b| b.durable == b.newest), "all drains in the end");
            }
        }
    }
}
