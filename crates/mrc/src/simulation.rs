//! The miniature caches: one memory tier and one set of cache devices for each size, all fed by the same references.

use crate::blocks::Blocks;
use crate::counts::{Counts, Groups};
use crate::geometry::{Geometry, MEMORIES, MEMORY_MULTIPLES, MULTIPLES, Room, SIZES};
use crate::memory::{Examined, Memory};
use crate::sampler::{Kind, Reference};
use crate::ssd::Ssd;

/// The least length of the engine's ghost list, which has at least two marks for each block that memory holds.
const GHOSTS: u64 = 1024;

/// The bounds on the memory of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The highest number of tracked blocks.
    pub blocks: usize,
    /// The highest number of entries of all queues and ghost lists.
    pub entries: usize,
}

impl Limits {
    /// The bounds of a live simulation, which then takes less than 3 MiB.
    pub const LIVE: Limits = Limits { blocks: 32 << 10, entries: 128 << 10 };
    /// No bounds in practice, for a simulation of every request.
    pub const NONE: Limits = Limits { blocks: usize::MAX, entries: usize::MAX };
}

/// Miniature caches of all sizes.
#[derive(Debug)]
pub struct Simulation {
    geometry: Geometry,
    limits: Limits,
    /// Blocks with a hash below are simulated.
    threshold: u64,
    blocks: Blocks,
    memories: [Memory; MEMORIES],
    ssds: Vec<Ssd>,
    /// The age in milliseconds at which dirty blocks are destaged.
    destage_age: u32,
    pub(crate) counts: Groups,
    /// References simulated since the start.
    pub(crate) sampled: u64,
}

impl Simulation {
    /// Returns a simulation of the blocks whose hash is below `threshold`. The threshold is lowered as far as `limits`
    /// demand.
    pub fn new(geometry: Geometry, limits: Limits, threshold: u64) -> Self {
        let room = limits.blocks.min(32 << 10);
        let mut simulation = Simulation {
            geometry,
            limits,
            threshold,
            blocks: Blocks::new(MEMORIES + SIZES, room),
            memories: std::array::from_fn(Memory::new),
            ssds: Vec::new(),
            destage_age: 5000,
            counts: Groups::default(),
            sampled: 0,
        };
        while simulation.ghosts() * SIZES > limits.entries / 4 {
            simulation.threshold /= 2;
        }
        for (number, multiple) in MULTIPLES.iter().enumerate() {
            let ssd = Ssd::new(MEMORIES + number, simulation.room(*multiple), simulation.ghosts());
            simulation.ssds.push(ssd);
        }
        simulation.set_memory();
        simulation
    }

    /// Returns the part of all blocks that is simulated.
    pub fn rate(&self) -> f64 {
        self.threshold as f64 / 2.0_f64.powi(64)
    }

    /// Returns the hash below which blocks are simulated.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// Returns the geometry for which the caches are simulated.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Sets the age at which dirty blocks are destaged, in milliseconds.
    pub fn set_destage_age(&mut self, age: u32) {
        self.destage_age = age;
    }

    /// Sets the part of the log's share that is dirty now. Where it is large, the backing store is slower than the
    /// writers, and that part is dirty at any size.
    pub fn set_dirty_part(&mut self, part: f64) {
        self.ssds.iter_mut().for_each(|ssd| ssd.set_dirty_part(part));
    }

    /// Sets the number of pages of records in the log for each block that is written, from 0 to 1.
    pub fn set_record_pages(&mut self, pages: f64) {
        self.ssds.iter_mut().for_each(|ssd| ssd.record_pages = pages);
    }

    /// Returns the room of a cache of this multiple of the present size, scaled by the sampling rate.
    fn room(&self, multiple: f64) -> Room {
        let (room, rate) = (self.geometry.room(multiple), self.rate());
        Room {
            all: room.all * rate,
            usable: room.usable * rate,
            spare: room.spare * rate,
            share: room.share * rate,
            movable: room.movable * rate,
        }
    }

    fn ghosts(&self) -> usize {
        ((self.geometry.memory * 2).next_power_of_two().max(GHOSTS) as f64 * self.rate()) as usize
    }

    /// Scales the simulated memories by the sampling rate.
    fn set_memory(&mut self) {
        let rate = self.rate();
        for (memory, multiple) in self.memories.iter_mut().zip(MEMORY_MULTIPLES) {
            memory.set_room(self.geometry.memory as f64 * multiple * rate);
        }
    }

    /// Simulates a request for one block.
    pub fn replay(&mut self, reference: Reference) {
        if reference.hash >= self.threshold {
            return;
        }
        self.sampled += 1;
        let at = reference.at_ms;
        let Simulation { blocks, ssds, .. } = self;
        for ssd in ssds.iter_mut() {
            ssd.destage(blocks, at, self.destage_age);
        }
        let block = blocks.get(reference.hash);
        // The block stays tracked until the request is simulated.
        blocks.added(block);
        let mut seen = Counts::default();
        let weight = 1.0 / self.rate();
        match reference.kind() {
            Kind::Read => self.read(block, true, weight, &mut seen),
            Kind::Past => self.read(block, false, weight, &mut seen),
            Kind::Write => self.write(block, at, weight, &mut seen),
            Kind::Through => {
                self.ssds.iter_mut().for_each(|ssd| ssd.drop_block(&mut self.blocks, block));
                self.remember(block);
            }
            Kind::Around => {
                self.ssds.iter_mut().for_each(|ssd| ssd.drop_block(&mut self.blocks, block));
                self.memories.iter_mut().for_each(|memory| memory.drop_block(&mut self.blocks, block));
            }
        }
        self.counts.add(reference.group(), &seen);
        self.trim();
        self.blocks.removed(block);
        if self.blocks.len() >= self.limits.blocks || self.entries() > self.limits.entries {
            self.halve();
        }
    }

    /// Simulates a read. A read that `keeps` nothing went past the cache, since it was part of a stream or the kernel
    /// had the block in memory.
    fn read(&mut self, block: u32, keeps: bool, weight: f64, seen: &mut Counts) {
        seen.reads = weight;
        let blocks = &mut self.blocks;
        let in_memory = self.memories[0].has(blocks, block);
        for (memory, hits) in self.memories.iter().zip(&mut seen.memory) {
            if memory.use_block(blocks, block) {
                *hits = weight;
            }
        }
        for (ssd, hits) in self.ssds.iter_mut().zip(&mut seen.cached) {
            let on_ssd = ssd.has(blocks, block);
            if on_ssd || in_memory {
                *hits = weight;
            }
            if in_memory {
                continue;
            }
            if on_ssd {
                ssd.use_block(blocks, block);
            } else if !keeps && ssd.has_room() {
                // A cache with room takes every read. Only its effect on the devices is simulated: the present memory
                // does not get the block.
                ssd.admit(blocks, block);
            }
        }
        if keeps {
            self.remember(block);
        }
    }

    /// Simulates a write at all sizes. Counts the sizes at which the block was dirty already.
    fn write(&mut self, block: u32, at: u32, weight: f64, seen: &mut Counts) {
        seen.writes = weight;
        for (ssd, coalesced) in self.ssds.iter_mut().zip(&mut seen.coalesced) {
            if ssd.is_dirty(&self.blocks, block) {
                *coalesced = weight;
            }
            ssd.write(&mut self.blocks, block, at);
        }
        self.remember(block);
    }

    /// Puts a block into memory of every size.
    fn remember(&mut self, block: u32) {
        self.memories.iter_mut().for_each(|memory| memory.add(&mut self.blocks, block));
    }

    /// Removes the oldest blocks from memory until the rest fits. A block that leaves and is on no device is admitted
    /// if there is room, or if the ghost list has it.
    fn trim(&mut self) {
        let blocks = &mut self.blocks;
        let [memory, larger @ ..] = &mut self.memories;
        while let Some(examined) = memory.examine(blocks) {
            let (block, left) = match examined {
                Examined::Spared(block) => (block, false),
                Examined::Left(block) => (block, true),
            };
            let hash = blocks.hash(block);
            for ssd in &mut self.ssds {
                if !left {
                    ssd.ghosts.note(hash);
                } else if !ssd.has(blocks, block) {
                    let known = ssd.ghosts.knows(hash);
                    ssd.ghosts.note(hash);
                    if known || ssd.has_room() {
                        ssd.admit(blocks, block);
                    }
                }
            }
            if left {
                blocks.removed(block);
            }
        }
        for memory in larger {
            while let Some(examined) = memory.examine(blocks) {
                if let Examined::Left(block) = examined {
                    blocks.removed(block);
                }
            }
        }
    }

    /// Returns the memory that all miniature caches use, in entries of a queue.
    fn entries(&self) -> usize {
        let memories: usize = self.memories.iter().map(Memory::entries).sum();
        memories + self.ssds.iter().map(Ssd::entries).sum::<usize>() + 2 * SIZES * self.ghosts()
    }

    /// Halves the sample, and with it every miniature cache.
    pub fn halve(&mut self) {
        self.threshold /= 2;
        let (threshold, ghosts) = (self.threshold, self.ghosts());
        self.set_memory();
        for memory in &mut self.memories {
            memory.sweep(&mut self.blocks, |blocks, block| blocks.hash(block) < threshold);
        }
        for (number, multiple) in MULTIPLES.iter().enumerate() {
            let room = self.room(*multiple);
            self.ssds[number].resize(&mut self.blocks, room, ghosts, threshold);
        }
        self.trim();
    }

    /// Returns true for each size that had to evict: before that, its ratio may still rise.
    pub(crate) fn full(&self) -> impl Iterator<Item = bool> {
        self.ssds.iter().map(|ssd| ssd.full)
    }

    /// Returns the ratio of block reads that each size serves from memory or its devices, by the simulated requests
    /// alone.
    pub fn hit_ratios(&self) -> [f64; SIZES] {
        self.counts.all.hit_ratios()
    }

    /// Returns the number of block writes that become one destaged block, for each size, by the simulated requests
    /// alone.
    pub fn coalescing(&self) -> [f64; SIZES] {
        self.counts.all.coalescing()
    }

    /// Returns the bytes of memory that the simulation takes.
    pub fn bytes(&self) -> usize {
        let memories: usize = self.memories.iter().map(Memory::bytes).sum();
        size_of::<Self>() + self.blocks.bytes() + memories + self.ssds.iter().map(Ssd::bytes).sum::<usize>()
    }
}
