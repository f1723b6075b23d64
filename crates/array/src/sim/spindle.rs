//! One disk: a moving head, a turning platter, and a queue from which the nearest command is taken.
//!
//! The angle of the platter follows from the time, and the angle of a byte from its position. So rotational delays
//! result from the mechanics, not from a random distribution.

use super::Nanos;
use crate::model::Disk;
use std::collections::VecDeque;

/// Angles that differ by less than this many nanoseconds of rotation count as equal, so that rounding does not cost a
/// revolution.
const ANGLE_SLACK_NS: f64 = 2_000.0;

/// Times and sizes of a disk, derived once from the model.
#[derive(Debug, Clone)]
pub(crate) struct Mechanics {
    revolution: f64,
    track_bytes: f64,
    settle: f64,
    seek_scale: f64,
    ns_per_byte: f64,
    command: f64,
    window: usize,
    max_wait: Nanos,
    buffer_ns: f64,
    buffer_bytes: u64,
    /// Fraction of the stroke for each byte of position.
    stroke_per_byte: f64,
}

impl Mechanics {
    /// Derives the mechanics. `disk_bytes` is the part of each disk that the image uses; it is spread over
    /// `disk.stroke` of the stroke.
    pub(crate) fn new(disk: &Disk, disk_bytes: u64) -> Self {
        let revolution = 60e9 / disk.rpm;
        let ns_per_byte = 1e3 / disk.media_mb_s;
        let buffer_bytes = u64::from(disk.buffer_kib) * 1024;
        Self {
            revolution,
            track_bytes: revolution / ns_per_byte,
            settle: disk.track_to_track_ms * 1e6,
            // For two uniform points, the mean of the square root of their distance is 8/15.
            seek_scale: (disk.average_seek_ms - disk.track_to_track_ms) * 1e6 * 15.0 / 8.0,
            ns_per_byte,
            command: disk.command_us * 1e3,
            window: disk.queue_window as usize,
            max_wait: (disk.max_wait_ms * 1e6) as Nanos,
            buffer_ns: buffer_bytes as f64 * ns_per_byte,
            buffer_bytes,
            stroke_per_byte: disk.stroke / (disk_bytes.max(1) as f64),
        }
    }

    /// Returns the seek time in nanoseconds between two positions in bytes: 0 within a track, else the settling time
    /// plus a square root of the distance.
    fn seek(&self, from: u64, to: u64) -> f64 {
        let distance = from.abs_diff(to) as f64;
        if distance < self.track_bytes {
            return 0.0;
        }
        self.settle + self.seek_scale * (distance * self.stroke_per_byte).sqrt()
    }

    fn transfer(&self, bytes: u64) -> f64 {
        bytes as f64 * self.ns_per_byte
    }

    /// Returns the nanoseconds from `at` until the byte at `position` is under a head that is already on its track.
    fn rotation(&self, position: u64, at: f64) -> f64 {
        let target = position as f64 * self.ns_per_byte;
        let wait = (target - at).rem_euclid(self.revolution);
        if wait > self.revolution - ANGLE_SLACK_NS { 0.0 } else { wait }
    }
}

/// A command for a disk. `T` identifies its owner.
#[derive(Debug, Clone)]
pub(crate) struct Command<T> {
    pub(crate) position: u64,
    pub(crate) length: u64,
    pub(crate) write: bool,
    pub(crate) arrival: Nanos,
    pub(crate) token: T,
}

/// A disk with its queue.
#[derive(Debug)]
pub(crate) struct Spindle<T> {
    queue: VecDeque<Command<T>>,
    active: Option<Command<T>>,
    head: u64,
    last_was_read: bool,
    free_at: Nanos,
    /// Factor by which service times are multiplied; 1 is a healthy disk.
    pub(crate) slowness: f64,
    /// Time in service, in nanoseconds.
    pub(crate) busy: Nanos,
    /// Commands served.
    pub(crate) served: u64,
}

impl<T> Spindle<T> {
    /// Makes an idle disk with its head at position 0.
    pub(crate) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            active: None,
            head: 0,
            last_was_read: false,
            free_at: 0,
            slowness: 1.0,
            busy: 0,
            served: 0,
        }
    }

    /// Returns the number of commands queued or in service.
    pub(crate) fn depth(&self) -> usize {
        self.queue.len() + usize::from(self.active.is_some())
    }

    /// Queues a command. If the disk was idle, the command starts and the time of its end is returned.
    pub(crate) fn push(&mut self, mechanics: &Mechanics, command: Command<T>) -> Option<Nanos> {
        let arrival = command.arrival;
        self.queue.push_back(command);
        if self.active.is_some() { None } else { self.start(mechanics, self.free_at.max(arrival)) }
    }

    /// Ends the command in service at `now` and starts the next one. Returns the token of the ended command and the
    /// time of the next end.
    pub(crate) fn finish(&mut self, mechanics: &Mechanics, now: Nanos) -> (Option<T>, Option<Nanos>) {
        let Some(done) = self.active.take() else { return (None, None) };
        self.head = done.position + done.length;
        self.last_was_read = !done.write;
        self.free_at = now;
        self.served += 1;
        (Some(done.token), self.start(mechanics, now))
    }

    /// Starts the command that `nearest` chooses from the queue. Returns the time of its end, or `None` if the queue
    /// is empty.
    fn start(&mut self, mechanics: &Mechanics, now: Nanos) -> Option<Nanos> {
        let command = self.queue.remove(self.nearest(mechanics, now)?)?;
        let healthy = self.service(mechanics, &command, now);
        let took = (healthy * self.slowness).max(1.0) as Nanos;
        self.busy += took;
        self.active = Some(command);
        Some(now + took)
    }

    /// Returns the queued command with the shortest positioning time within the window. If the oldest command has
    /// waited too long, returns that one.
    fn nearest(&self, mechanics: &Mechanics, now: Nanos) -> Option<usize> {
        let oldest = self.queue.front()?;
        if now.saturating_sub(oldest.arrival) > mechanics.max_wait {
            return Some(0);
        }
        let mut best = (f64::INFINITY, 0);
        for (index, command) in self.queue.iter().take(mechanics.window).enumerate() {
            let wait = self.service(mechanics, command, now) - mechanics.transfer(command.length);
            if wait < best.0 {
                best = (wait, index);
            }
        }
        Some(best.1)
    }

    /// Returns the nanoseconds from `now` to the end of `command` if the disk serves it next.
    fn service(&self, mechanics: &Mechanics, command: &Command<T>, now: Nanos) -> f64 {
        let transfer = mechanics.transfer(command.length);
        let gap = command.position.wrapping_sub(self.head);
        if !command.write && self.last_was_read && gap <= mechanics.buffer_bytes {
            // The disk has been reading ahead since its last command. Data in its buffer costs no time.
            let idle = ((now - self.free_at.min(now)) as f64).min(mechanics.buffer_ns);
            return (mechanics.transfer(gap) + transfer - idle).max(0.0);
        }
        // The disk decodes a queued command while it serves the previous one.
        let command_time = if command.arrival < now { 0.0 } else { mechanics.command };
        let lead = command_time + mechanics.seek(self.head, command.position);
        lead + mechanics.rotation(command.position, now as f64 + lead) + transfer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    const DISK: u64 = 1 << 40;

    fn mechanics() -> Mechanics {
        Mechanics::new(&Model::load("nl-sas-8").unwrap().disk, DISK)
    }

    fn command(position: u64, length: u64, write: bool, arrival: Nanos) -> Command<u64> {
        Command { position, length, write, arrival, token: position }
    }

    /// Serves commands that were all queued at time 0. Returns their order and the time of the last end.
    fn drain(commands: Vec<Command<u64>>, m: &Mechanics) -> (Vec<u64>, Nanos) {
        let (mut disk, mut order, mut next) = (Spindle::new(), Vec::new(), None);
        for c in commands {
            next = disk.push(m, c).or(next);
        }
        let mut last = 0;
        while let Some(at) = next {
            last = at;
            let (token, following) = disk.finish(m, at);
            order.extend(token);
            next = following;
        }
        (order, last)
    }

    #[test]
    fn a_run_costs_its_transfer_and_no_seeks() {
        let m = mechanics();
        for write in [false, true] {
            let commands = (0..64).map(|i| command(i * 65536, 65536, write, 0)).collect();
            let (_, took) = drain(commands, &m);
            let transfer = m.transfer(64 * 65536);
            assert!((took as f64) < transfer + m.revolution + m.command + 1e5, "{took} against {transfer}");
        }
    }

    #[test]
    fn a_write_of_what_was_just_read_waits_for_one_revolution() {
        let m = mechanics();
        let read = drain(vec![command(1 << 30, 4096, false, 0)], &m).1 as f64;
        let both =
            drain(vec![command(1 << 30, 4096, false, 0), command(1 << 30, 4096, true, 0)], &m).1 as f64;
        assert!((both - read - m.revolution).abs() < 1e4, "{}", both - read);
    }

    #[test]
    fn the_nearest_is_served_first_but_nobody_starves() {
        let m = mechanics();
        let far = command(DISK - 4096, 4096, false, 0);
        let mut queue = vec![command(0, 4096, false, 0), far];
        queue.extend((1..3).map(|i| command(i * 8192, 4096, false, 0)));
        let (order, _) = drain(queue, &m);
        assert_eq!(*order.last().unwrap(), DISK - 4096);

        let mut disk = Spindle::new();
        disk.free_at = m.max_wait + 1;
        disk.queue.push_back(command(DISK - 4096, 4096, false, 0));
        disk.queue.push_back(command(8192, 4096, false, m.max_wait));
        assert_eq!(disk.nearest(&m, m.max_wait + 1), Some(0));
    }

    #[test]
    fn random_positions_cost_the_mean_seek_and_half_a_revolution() {
        let m = mechanics();
        let (mut disk, mut now, mut state) = (Spindle::<u64>::new(), 0, 7u64);
        let count = 4000;
        for _ in 0..count {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let position = (state >> 20) % (DISK / 4096) * 4096;
            now = disk.push(&m, command(position, 4096, false, now)).unwrap();
            disk.finish(&m, now);
        }
        let mean = now as f64 / count as f64;
        let expected = 8.5e6 + m.revolution / 2.0 + m.command + m.transfer(4096);
        assert!((mean / expected - 1.0).abs() < 0.03, "{mean} against {expected}");
    }

    #[test]
    fn a_slow_disk_takes_its_factor_longer() {
        let m = mechanics();
        let mut disk = Spindle::new();
        let healthy = disk.push(&m, command(1 << 30, 4096, false, 0)).unwrap();
        let mut slow = Spindle::new();
        slow.slowness = 10.0;
        let took = slow.push(&m, command(1 << 30, 4096, false, 0)).unwrap();
        assert!(took.abs_diff(healthy * 10) < 20);
    }
}
