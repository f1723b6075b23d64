//! Writes: collected into stripes, in the cache if there is one, and then written to the disks.

use super::Nanos;
use super::array::{Array, Event, Op, Output, Token};
use super::stripes::{Round, plan};
use crate::model::{BLOCK, CacheKind};

impl Array {
    /// Takes a write that has crossed the link. With a cache it waits for admission. Without one it waits for the
    /// rounds of its stripes.
    pub(super) fn write_arrived(&mut self, at: Nanos, request: usize, offset: u64, length: u64) {
        if self.cached() {
            self.admission.push_back(request);
            self.admit(at);
            return;
        }
        // Waiting pays only for a stream of large requests, because its next request fills the stripe.
        let stream = self.writers.observe(offset, length).is_some() && length >= self.geometry.chunk();
        let (first, last) = self.stripes_of(offset, length);
        if let Some(waiting) = self.requests[request].as_mut() {
            waiting.pending = (last - first + 1) as u32;
        }
        for id in first..=last {
            let (start, end) = self.blocks_in(id, offset, length);
            let open = stream && id == last && end < self.stripe_blocks();
            let hold = (self.model.controller.stripe_wait_ms * 1e6) as Nanos;
            let stripe = self.stripes.entry(id).or_default();
            stripe.dirty.insert(start, end);
            stripe.waiters.push(request);
            if open && hold > 0 {
                stripe.hold_until = at + hold;
                self.schedule(at + hold, Event::Stripe(id));
            }
            self.consider(at, id);
        }
    }

    /// Takes a flush. With a volatile cache it waits until all data that are dirty now are on the disks, unless
    /// flushes are ignored. With any other cache it is answered at once.
    pub(super) fn flush_arrived(&mut self, at: Nanos, request: usize) {
        self.flushing += 1;
        let mut pending = 0;
        if self.model.cache.kind == CacheKind::Volatile && !self.ignore_flushes {
            for stripe in self.stripes.values_mut() {
                if !stripe.dirty.is_empty() {
                    stripe.waiters.push(request);
                    pending += 1;
                }
                if let Some(round) = stripe.round.as_mut() {
                    round.waiters.push(request);
                    pending += 1;
                }
            }
        }
        match self.requests[request].as_mut() {
            Some(waiting) if pending > 0 => {
                waiting.pending = pending;
                self.destage(at);
            }
            _ => self.answer(at, request),
        }
    }

    /// Admits writes to the cache in order, while there is room.
    fn admit(&mut self, at: Nanos) {
        while let Some(request) = self.admission.front().copied() {
            let Some(Op::Write { offset, length }) = self.requests[request].as_ref().map(|r| r.op) else {
                self.admission.pop_front();
                continue;
            };
            let line = u64::from(self.model.cache.line_kib) * 1024;
            let lines = ((offset + length).div_ceil(line) - offset / line) as u32;
            if self.lines_used > 0 && self.lines_used + lines > self.cache_lines() {
                break;
            }
            self.admission.pop_front();
            let (first, last) = self.stripes_of(offset, length);
            for id in first..=last {
                self.cache(at, id, self.blocks_in(id, offset, length));
            }
            self.answer(at, request);
        }
        self.destage(at);
    }

    /// Marks blocks of a stripe as dirty in the write cache, and counts the cache lines that they newly use.
    fn cache(&mut self, at: Nanos, id: u64, (start, end): (u32, u32)) {
        let line = self.line_blocks();
        let stripe = self.stripes.entry(id).or_default();
        if stripe.dirty.is_empty() {
            stripe.since = at;
            self.order.push_back(id);
        }
        let before = stripe.dirty.groups(line);
        stripe.dirty.insert(start, end);
        self.lines_used += stripe.dirty.groups(line) - before;
        self.consider(at, id);
    }

    /// Starts a round of a stripe if it is due: if it is full, or, without a cache, if no further data is expected.
    pub(super) fn consider(&mut self, at: Nanos, id: u64) {
        let (blocks, cached) = (self.stripe_blocks(), self.cached());
        let Some(stripe) = self.stripes.get(&id) else { return };
        if stripe.round.is_some() || stripe.dirty.is_empty() {
            return;
        }
        if stripe.dirty.covers(0, blocks) || (!cached && stripe.hold_until <= at) {
            self.start_round(at, id);
        }
    }

    /// Starts rounds of the oldest stripes while the cache is over half full, a flush waits, or the stripes have
    /// reached their age limit.
    pub(super) fn destage(&mut self, at: Nanos) {
        if !self.cached() {
            return;
        }
        let age = (self.model.cache.destage_after_ms * 1e6) as Nanos;
        while self.rounds < self.model.cache.destage_stripes {
            let Some(id) = self.order.front().copied() else { return };
            let Some(stripe) = self.stripes.get(&id).filter(|s| s.round.is_none() && !s.dirty.is_empty())
            else {
                // The stripe is clean, or in a round whose end puts it back into the order.
                self.order.pop_front();
                continue;
            };
            let due = stripe.since + age;
            let pressed = self.lines_used > self.cache_lines() / 2 || self.flushing > 0;
            if !pressed && due > at {
                if self.age_timer.is_none() {
                    self.age_timer = Some(due);
                    self.schedule(due, Event::Age);
                }
                return;
            }
            self.order.pop_front();
            self.start_round(at, id);
        }
    }

    /// Starts to write a stripe. A full stripe is written at once. A partial stripe reads old data and parity first,
    /// which are the cost of small writes in RAID.
    fn start_round(&mut self, at: Nanos, id: u64) {
        let (cached, whole) = (self.cached(), self.stripe_blocks());
        let (chunk, line) = ((self.geometry.chunk() / BLOCK) as u32, self.line_blocks());
        let Some(stripe) = self.stripes.get_mut(&id) else { return };
        let blocks = if cached && !stripe.dirty.covers(0, whole) {
            stripe.dirty.take_rows(chunk, line)
        } else {
            std::mem::take(&mut stripe.dirty)
        };
        // A request that waits for the stripe waits for all of its blocks.
        let clean = stripe.dirty.is_empty();
        let waiters = if clean { std::mem::take(&mut stripe.waiters) } else { Vec::new() };
        let plan = plan(&self.geometry, id, &blocks);
        let base = id * self.geometry.stripe_bytes();
        for (start, end) in blocks.iter() {
            let (offset, length) = (base + u64::from(start) * BLOCK, u64::from(end - start) * BLOCK);
            self.outputs.push_back(Output::Started { offset, length });
        }
        let full = plan.reads.is_empty();
        let (commands, later) = if full { (plan.writes, None) } else { (plan.reads, Some(plan.writes)) };
        stripe.round = Some(Round {
            blocks,
            waiters,
            outstanding: commands.len() as u32,
            writes: later,
            partial: !full,
        });
        stripe.hold_until = 0;
        self.rounds += u32::from(!full);
        self.command(at, &commands, full, Token::Stripe(id));
    }

    /// Counts a finished disk command of a stripe's round. After the last read the writes begin; after the last write
    /// the round ends.
    pub(super) fn stripe_command_done(&mut self, at: Nanos, id: u64) {
        let Some(round) = self.stripes.get_mut(&id).and_then(|s| s.round.as_mut()) else { return };
        round.outstanding -= 1;
        if round.outstanding > 0 {
            return;
        }
        if let Some(writes) = round.writes.take() {
            round.outstanding = writes.len() as u32;
            self.command(at, &writes, true, Token::Stripe(id));
            return;
        }
        self.round_done(at, id);
    }

    /// Ends the round of a stripe: its blocks are on the disks, its waiters have one part less to wait for, and
    /// waiting writes may enter the cache.
    fn round_done(&mut self, at: Nanos, id: u64) {
        let line = self.line_blocks();
        let Some(stripe) = self.stripes.get_mut(&id) else { return };
        let Some(round) = stripe.round.take() else { return };
        let dirty = !stripe.dirty.is_empty();
        if !dirty {
            self.stripes.remove(&id);
        }
        if round.partial {
            self.counters.partial_stripes += 1;
        } else {
            self.counters.full_stripes += 1;
        }
        let base = id * self.geometry.stripe_bytes();
        for (start, end) in round.blocks.iter() {
            let (offset, length) = (base + u64::from(start) * BLOCK, u64::from(end - start) * BLOCK);
            self.outputs.push_back(Output::Durable { offset, length });
        }
        self.rounds -= u32::from(round.partial);
        for request in round.waiters {
            self.part_done(at, request);
        }
        if self.cached() {
            self.lines_used -= round.blocks.groups(line);
            if dirty {
                self.order.push_front(id);
            }
        }
        self.consider(at, id);
        if self.cached() {
            self.admit(at);
        }
    }

    /// Returns the first and the last stripe that a range touches.
    fn stripes_of(&self, offset: u64, length: u64) -> (u64, u64) {
        let size = self.geometry.stripe_bytes();
        (offset / size, (offset + length - 1) / size)
    }

    /// Returns the blocks of a range that are in a stripe, numbered within the stripe.
    fn blocks_in(&self, id: u64, offset: u64, length: u64) -> (u32, u32) {
        let size = self.geometry.stripe_bytes();
        let base = id * size;
        let start = offset.max(base) - base;
        let end = (offset + length).min(base + size) - base;
        ((start / BLOCK) as u32, end.div_ceil(BLOCK) as u32)
    }

    fn stripe_blocks(&self) -> u32 {
        (self.geometry.stripe_bytes() / BLOCK) as u32
    }

    fn line_blocks(&self) -> u32 {
        self.model.cache.line_kib / 4
    }

    fn cache_lines(&self) -> u32 {
        (u64::from(self.model.cache.size_mib) * 1024 / u64::from(self.model.cache.line_kib)) as u32
    }
}
