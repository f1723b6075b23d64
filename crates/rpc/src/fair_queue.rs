//! A queue of jobs in which client addresses take turns: start-time fair queueing (Goyal, Vin and Cheng, "Start-time
//! Fair Queueing", 1996). A lone request of one client waits for a job of each other client, not for all their jobs.
//!
//! Each address has a flow, first in first out. A flow has a time, which counts the work taken from it. The next job
//! is that of the flow with the earliest time. A flow that was empty starts at the time of the flow that was served
//! last, so an address saves nothing up while it asks for nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;

use ::slab::Slab;

/// The number of flows from which on empty flows are removed.
const MANY: usize = 256;
/// The least cost of a job in bytes: that of a small request which waits for a disk.
const LEAST: u64 = 16 << 10;
/// The capacity beyond which an empty flow gives its memory back.
const KEPT: usize = 64;

/// Jobs of clients that wait for a worker.
pub(crate) struct FairQueue<J> {
    flows: Slab<Flow<J>>,
    known: HashMap<IpAddr, usize, foldhash::fast::RandomState>,
    /// The time and the number of each flow with jobs.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// The flow of the last pushed job.
    last: usize,
    /// The time of the flow that was served last.
    now: u64,
    len: usize,
}

/// The jobs of one address.
struct Flow<J> {
    address: IpAddr,
    /// Jobs with their costs.
    jobs: VecDeque<(u64, J)>,
    time: u64,
}

impl<J> FairQueue<J> {
    /// Returns an empty queue.
    pub(crate) fn new() -> Self {
        Self {
            flows: Slab::new(),
            known: HashMap::default(),
            next: BinaryHeap::new(),
            last: 0,
            now: 0,
            len: 0,
        }
    }

    /// Returns the number of jobs.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if another job of `address` may wait in a queue for `limit` jobs. If the queue is full, that is an
    /// address with less than its share of the queue. The queue then has at most twice `limit` jobs.
    pub(crate) fn has_room(&self, address: IpAddr, limit: usize) -> bool {
        if self.len < limit {
            return true;
        }
        let waiting = self.find(address).map_or(0, |flow| self.flows[flow].jobs.len());
        let addresses = self.next.len() + usize::from(waiting == 0);
        self.len < 2 * limit && waiting < limit / addresses.max(2)
    }

    /// Appends a job of `address`, which works on `bytes` bytes.
    pub(crate) fn push(&mut self, address: IpAddr, bytes: usize, job: J) {
        let number = self.find(address).unwrap_or_else(|| self.open(address));
        self.last = number;
        let flow = &mut self.flows[number];
        if flow.jobs.is_empty() {
            flow.time = flow.time.max(self.now);
            self.next.push(Reverse((flow.time, number)));
        }
        flow.jobs.push_back((LEAST + bytes as u64, job));
        self.len += 1;
    }

    /// Removes the next job.
    pub(crate) fn pop(&mut self) -> Option<J> {
        let Reverse((time, number)) = self.next.pop()?;
        let flow = &mut self.flows[number];
        let (cost, job) = flow.jobs.pop_front()?;
        self.now = time;
        flow.time = time + cost;
        self.len -= 1;
        if !flow.jobs.is_empty() {
            self.next.push(Reverse((flow.time, number)));
        } else if flow.jobs.capacity() > KEPT {
            flow.jobs = VecDeque::new();
        }
        Some(job)
    }

    /// Returns the flow of `address`.
    fn find(&self, address: IpAddr) -> Option<usize> {
        // One client often has all jobs.
        match self.flows.get(self.last) {
            Some(flow) if flow.address == address => Some(self.last),
            _ => self.known.get(&address).copied(),
        }
    }

    /// Returns a new flow for `address`. Addresses without jobs are forgotten if there are many.
    fn open(&mut self, address: IpAddr) -> usize {
        if self.flows.len() >= MANY.max(2 * self.next.len()) {
            self.flows.retain(|_, flow| !flow.jobs.is_empty());
            self.known.retain(|_, flow| self.flows.contains(*flow));
        }
        let flow = self.flows.insert(Flow { address, jobs: VecDeque::new(), time: self.now });
        self.known.insert(address, flow);
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn address(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    /// Returns how many jobs of each of the addresses 0 to 9 come in the next `count`.
    fn served(queue: &mut FairQueue<u32>, count: usize) -> [usize; 10] {
        let mut served = [0; 10];
        (0..count).filter_map(|_| queue.pop()).for_each(|address| served[address as usize] += 1);
        served
    }

    #[test]
    fn a_job_waits_for_one_job_of_each_other_address() {
        let mut queue = FairQueue::new();
        (0..1000).for_each(|_| queue.push(address(1), MIB, 1));
        assert_eq!(served(&mut queue, 10)[1], 10);
        (0..1000).for_each(|_| queue.push(address(2), MIB, 2));
        for _ in 0..50 {
            queue.push(address(3), 0, 3);
            assert!(served(&mut queue, 3)[3] == 1);
        }
    }

    #[test]
    fn the_jobs_of_one_address_keep_their_order() {
        let mut queue = FairQueue::new();
        (0..100).for_each(|n| queue.push(address(n % 3), (n * 1000) as usize, n));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        for flow in 0..3 {
            assert!(order.iter().filter(|n| *n % 3 == flow).is_sorted());
        }
        assert_eq!((order.len(), queue.len()), (100, 0));
    }

    #[test]
    fn addresses_get_equal_work_and_small_jobs_come_more_often() {
        let mut queue = FairQueue::new();
        for _ in 0..10_000 {
            queue.push(address(1), MIB, 1);
            queue.push(address(2), 0, 2);
        }
        let served = served(&mut queue, 6500);
        // A MiB costs as much as 65 small jobs.
        assert!((98..=100).contains(&served[1]), "{served:?}");
    }

    #[test]
    fn an_address_that_was_away_has_saved_nothing_up() {
        let mut queue = FairQueue::new();
        queue.push(address(2), 0, 2);
        (0..2000).for_each(|_| queue.push(address(1), 0, 1));
        served(&mut queue, 1001);
        (0..100).for_each(|_| queue.push(address(2), 0, 2));
        let served = served(&mut queue, 100);
        assert!((49..=51).contains(&served[2]), "{served:?}");
    }

    #[test]
    fn a_full_queue_has_room_for_addresses_with_less_than_their_share() {
        let mut queue = FairQueue::new();
        let fill = |queue: &mut FairQueue<u32>, n| {
            (0..)
                .take_while(|_| {
                    queue.has_room(address(n), 100).then(|| queue.push(address(n), 0, 0)).is_some()
                })
                .count()
        };
        assert_eq!(fill(&mut queue, 1), 100);
        assert_eq!(fill(&mut queue, 2), 50);
        assert_eq!(fill(&mut queue, 3), 33);
        let rest: usize = (4..1000).map(|n| fill(&mut queue, n)).sum();
        assert_eq!((rest, queue.len()), (17, 200), "twice the limit is the bound");
    }

    #[test]
    fn addresses_without_jobs_are_forgotten() {
        let mut queue = FairQueue::new();
        queue.push(address(0), 0, 0);
        queue.push(address(0), 0, 0);
        for n in 1..10_000 {
            queue.push(address(n), 0, n);
            queue.pop();
            assert!(queue.flows.len() <= MANY && queue.known.len() == queue.flows.len());
        }
        (0..KEPT as u32 * 4).for_each(|n| queue.push(address(0), 0, n));
        while queue.pop().is_some() {}
        assert!(queue.flows.iter().all(|(_, flow)| flow.jobs.capacity() <= KEPT));
    }
}
