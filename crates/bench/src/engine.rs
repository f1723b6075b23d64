//! The event loop: one thread, many clients, each with several requests in flight. All requests that result from one
//! wake-up leave in one write for each connection.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_wire::nfs3::Nfsstat3;
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::{Decode as _, Reader};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use crate::protocol::{Answer, Link, Operation};
use crate::session::{LATER, TIMEOUT};
use crate::stats::Stats;
use crate::workload::{Call, Next, Outcome, Workload};

/// Number of low bits of a transaction number that hold the slot, so that a reply finds its slot without a search.
const SLOT_BITS: u32 = 10;
/// Most requests that one client can have in flight.
pub(crate) const MAX_DEPTH: u16 = 1 << SLOT_BITS;
/// Longest sleep of a thread before it checks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Interval at which a client that waits for another client is asked again.
const RETRY: Duration = Duration::from_millis(1);

/// Figures and flags that all threads of a phase and the progress bar share.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) operations: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// True once a thread has failed.
    pub(crate) abort: AtomicBool,
}

/// The timing of the operations of one thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Time after which no new operation begins; `None` means no limit.
    pub(crate) limit: Option<Duration>,
    /// Nanoseconds between the operations of this thread (open loop). With `None`, an operation begins as soon as
    /// another ends.
    pub(crate) interval: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    xid: u32,
    request: Operation,
    busy: bool,
    /// Start of the operation, in nanoseconds since the phase began.
    operation_at: u64,
    request_at: u64,
}

/// One client of a phase: its link and its workload.
pub(crate) struct Client {
    link: Link,
    workload: Box<dyn Workload>,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    in_flight: u32,
    finished: bool,
    /// Requests to send again: due time in nanoseconds, and slot.
    later: Vec<(u64, u16)>,
    /// True if epoll reports when the socket takes more data.
    wants_write: bool,
    last_reply: u64,
    number: u32,
}

impl Client {
    /// Makes a client with `depth` slots, each for one request in flight. The client sends nothing yet.
    pub(crate) fn new(number: u32, link: Link, workload: Box<dyn Workload>, depth: u16) -> Self {
        let slot = |index: u16| Slot {
            // Transaction numbers start at random, so that no server takes a request of another client or run for a
            // retransmission.
            xid: rand::random::<u32>() << SLOT_BITS | u32::from(index),
            request: Operation::Null,
            busy: false,
            operation_at: 0,
            request_at: 0,
        };
        Self {
            link,
            workload,
            slots: (0..depth).map(slot).collect(),
            idle: (0..depth).rev().collect(),
            in_flight: 0,
            finished: false,
            later: Vec::new(),
            wants_write: false,
            last_reply: 0,
            number,
        }
    }

    /// Opens the files of the workload.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.workload.prepare(&mut self.link)
    }

    /// Closes the files of the workload, and returns the link for the next phase.
    pub(crate) fn finish(mut self) -> Result<Link> {
        self.workload.finish(&mut self.link)?;
        Ok(self.link)
    }

    fn is_done(&self) -> bool {
        self.finished && self.in_flight == 0
    }

    /// Sends a request in the slot that became idle last. Returns true if the request begins an operation; `None` if
    /// there is no request to send. `due` is the time at which the request should have been sent.
    #[inline]
    fn issue(&mut self, due: u64, stopping: bool) -> Option<bool> {
        let index = self.idle.pop()?;
        let next = self.workload.next(index.into(), stopping);
        if matches!(next, Next::Wait | Next::Finished) {
            self.finished = next == Next::Finished;
            self.idle.push(index);
            return None;
        }
        let slot = &mut self.slots[usize::from(index)];
        slot.request_at = due;
        if next == Next::Begin {
            slot.operation_at = due;
        }
        self.send(index);
        self.in_flight += 1;
        Some(next == Next::Begin)
    }

    /// Writes the request of a slot.
    #[inline]
    fn send(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        slot.xid = slot.xid.wrapping_add(1 << SLOT_BITS);
        slot.busy = true;
        let mut call = Call::new(&mut self.link, slot.xid, index.into());
        self.workload.send(index.into(), &mut call);
        slot.request = call.operation();
        self.link.connection.end_call();
    }

    /// Sends again the requests that the server put off and that are due now.
    fn send_again(&mut self, now: u64) {
        while let Some((_, index)) = self.later.pop_if(|(due, _)| *due <= now) {
            self.send(index);
        }
    }

    /// Handles the next complete reply.
    #[inline]
    fn take_reply(&mut self, now: u64, stats: &mut Stats, live: &mut (u64, u64)) -> Result<Option<Outcome>> {
        let Some((record, session)) = self.link.next_record() else { return Ok(None) };
        let mut reader = Reader::new(record);
        let header = ReplyHeader::decode(&mut reader).context("a reply is not an RPC reply")?;
        let index = (header.xid & ((1 << SLOT_BITS) - 1)) as usize;
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.busy && slot.xid == header.xid) else {
            bail!("the server answered call {:#x}, which this client did not send", header.xid);
        };
        if header.status != ReplyStatus::Success {
            bail!("the server refused {}: {:?}", slot.request.name(), header.status);
        }
        slot.busy = false;
        let version = session.version();
        session.answered(index as u32, reader);
        if is_jukebox(&reader) {
            if now.saturating_sub(slot.request_at) > TIMEOUT.as_nanos() as u64 {
                bail!(
                    "{} was put off for {} seconds: NFS3ERR_JUKEBOX or NFS4ERR_DELAY",
                    slot.request.name(),
                    TIMEOUT.as_secs()
                );
            }
            stats.put_off += 1;
            self.later.insert(0, (now + LATER.as_nanos() as u64, index as u16));
            return Ok(Some(Outcome::Aside));
        }
        let progress = self.workload.reply(index, &Answer::new(version, slot.request, reader))?;
        self.in_flight -= 1;
        self.idle.push(index as u16);
        let second = (now / 1_000_000_000) as usize;
        stats.reply(slot.request, now.saturating_sub(slot.request_at));
        if progress.bytes | progress.entries > 0 {
            stats.moved(second, progress.bytes, progress.entries);
            live.1 += progress.bytes;
        }
        if progress.outcome == Outcome::Complete {
            stats.operation(second, now.saturating_sub(slot.operation_at));
            live.0 += 1;
        }
        Ok(Some(progress.outcome))
    }
}

/// Returns true if a result is NFS3ERR_JUKEBOX or NFS4ERR_DELAY, which have one number. Every result that a workload
/// asks for begins with its status.
#[inline]
fn is_jukebox(body: &Reader<'_>) -> bool {
    body.rest().first_chunk::<4>() == Some(&(Nfsstat3::Jukebox as u32).to_be_bytes())
}

struct Thread<'a> {
    epoll: OwnedFd,
    clients: &'a mut [Client],
    pace: Pace,
    live: &'a Live,
    start: Instant,
    stats: Stats,
    /// Time at which the next operation of an open loop is due.
    due: u64,
    /// Index of the client that begins the next operation of an open loop.
    turn: usize,
}

/// Runs the clients until all are finished, or until another thread has failed.
///
/// # Errors
/// The first failure, in one sentence.
pub(crate) fn run(clients: &mut [Client], pace: Pace, start: Instant, live: &Live) -> Result<Stats> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    for (index, client) in clients.iter().enumerate() {
        epoll::add(&epoll, &client.link.connection, EventData::new_u64(index as u64), EventFlags::IN)?;
    }
    let mut thread = Thread { epoll, clients, pace, live, start, stats: Stats::new(), due: 0, turn: 0 };
    let result = thread.run();
    if result.is_err() {
        live.abort.store(true, Ordering::Relaxed);
    }
    result.map(|()| thread.stats)
}

impl Thread<'_> {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn stopping(&self, now: u64) -> bool {
        self.pace.limit.is_some_and(|limit| u128::from(now) >= limit.as_nanos())
    }

    /// Runs the clients of this thread until all of them are done, or another thread has failed. Fails with the
    /// number of the client whose connection or check fails.
    fn run(&mut self) -> Result<()> {
        let mut events = [MaybeUninit::uninit(); 256];
        self.kick(self.now())?;
        while !self.clients.iter().all(Client::is_done) {
            let timeout = self.timeout();
            let (ready, _) = match epoll::wait(&self.epoll, &mut events, Some(&timeout)) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error).context("epoll_wait failed"),
            };
            if self.live.abort.load(Ordering::Relaxed) {
                return Ok(());
            }
            for event in &*ready {
                let (index, flags) = (event.data.u64() as usize, event.flags);
                let number = self.clients[index].number;
                self.handle(index, flags).with_context(|| format!("client {number} failed"))?;
            }
            let now = self.now();
            if ready.is_empty() {
                self.find_dead(now)?;
            }
            if self.pace.interval.is_some() || ready.is_empty() || self.any_later() {
                self.kick(now)?;
            }
        }
        Ok(())
    }

    fn any_later(&self) -> bool {
        self.clients.iter().any(|client| !client.later.is_empty())
    }

    /// Returns the longest time to sleep.
    fn timeout(&self) -> Timespec {
        let now = self.now();
        let mut sleep = TICK;
        if let Some(limit) = self.pace.limit {
            sleep = sleep.min(limit.saturating_sub(Duration::from_nanos(now)).max(RETRY));
        }
        if self.any_later() {
            sleep = sleep.min(RETRY);
        }
        if self.pace.interval.is_some() && !self.stopping(now) {
            // If no slot is free, the next reply wakes the thread.
            let free = self.clients.iter().any(|client| !client.idle.is_empty());
            sleep = if free { Duration::from_nanos(self.due.saturating_sub(now)).min(sleep) } else { sleep };
        } else if self.clients.iter().any(|client| client.in_flight == 0 && !client.finished) {
            sleep = RETRY;
        }
        Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: sleep.subsec_nanos().into() }
    }

    /// Lets every client send the requests that it can send now.
    fn kick(&mut self, now: u64) -> Result<()> {
        let stopping = self.stopping(now);
        self.clients.iter_mut().for_each(|client| client.send_again(now));
        if self.pace.interval.is_some() && !stopping {
            self.begin_due(now);
        } else {
            for client in self.clients.iter_mut().filter(|client| !client.is_done()) {
                while client.issue(now, stopping).is_some() {}
            }
        }
        (0..self.clients.len()).try_for_each(|index| self.flush(index))
    }

    /// Begins the operations of an open loop that are due; clients take turns. An operation without a free slot stays
    /// due, and its latency counts from its due time.
    fn begin_due(&mut self, now: u64) {
        let Some(interval) = self.pace.interval else { return };
        while self.due <= now {
            let count = self.clients.len();
            let begun = (0..count).find_map(|step| {
                let index = (self.turn + step) % count;
                Some((index, self.clients[index].issue(self.due, false)?))
            });
            let Some((index, first)) = begun else { return };
            // An additional request such as a COMMIT is not the operation that was due.
            if first {
                self.turn = index + 1;
                self.due += interval;
            }
        }
    }

    /// Receives the replies of a client's connection, and sends the requests that may follow. In an open loop the
    /// clock decides when further operations begin.
    fn handle(&mut self, index: usize, flags: EventFlags) -> Result<()> {
        let client = &mut self.clients[index];
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            client.link.connection.receive().context("the connection to the server is lost")?;
            let now = self.start.elapsed().as_nanos() as u64;
            let stopping = self.pace.limit.is_some_and(|limit| u128::from(now) >= limit.as_nanos());
            let open = self.pace.interval.is_some() && !stopping;
            let mut live = (0, 0);
            client.last_reply = now;
            while let Some(outcome) = client.take_reply(now, &mut self.stats, &mut live)? {
                if !open {
                    while client.issue(now, stopping).is_some() {}
                } else if outcome == Outcome::Continue {
                    client.issue(now, stopping);
                }
            }
            self.live.operations.fetch_add(live.0, Ordering::Relaxed);
            self.live.bytes.fetch_add(live.1, Ordering::Relaxed);
        }
        self.flush(index)
    }

    /// Sends as many bytes as the socket takes. The remaining bytes are sent when epoll reports that the socket takes
    /// more.
    fn flush(&mut self, index: usize) -> Result<()> {
        let client = &mut self.clients[index];
        let wants_write = !client.link.connection.flush().context("the connection to the server is lost")?;
        if wants_write != client.wants_write {
            let flags = if wants_write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &client.link.connection, EventData::new_u64(index as u64), flags)?;
            client.wants_write = wants_write;
        }
        Ok(())
    }

    /// Fails if a request of some client has waited for `TIMEOUT` and the connection has brought no reply in that
    /// time.
    fn find_dead(&self, now: u64) -> Result<()> {
        let timeout = TIMEOUT.as_nanos() as u64;
        for client in self.clients.iter().filter(|client| client.in_flight > 0) {
            let oldest = client.slots.iter().filter(|slot| slot.busy).map(|slot| slot.request_at).min();
            if oldest.is_some_and(|oldest| now.saturating_sub(oldest.max(client.last_reply)) > timeout) {
                bail!("client {} has had no reply for {} seconds", client.number, TIMEOUT.as_secs());
            }
        }
        Ok(())
    }
}
