//! All actions of threads on one connection's output, under a model checker. Each reply arrives once and in one piece,
//! and no thread waits for ever. A lost wake-up is a deadlock, which the checker reports with its schedule.

use shuttle::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use super::*;

/// A reply: a number of bytes, all equal to a tag.
struct Reply {
    tag: u8,
    left: usize,
}

impl Weigh for Reply {
    fn weight(&self) -> usize {
        self.left
    }
}

/// A socket with edge-triggered readiness, and the loop's inbox.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    space: usize,
    no_space: bool,
    edge: bool,
    post: bool,
    closed: bool,
}

struct Model {
    outlet: Mutex<Outlet<Reply>>,
    inflight: AtomicUsize,
    pipe: Mutex<Pipe>,
    event: Condvar,
    readable: Condvar,
}

impl Wire for Model {
    type Chunk = Reply;

    fn with_outlet<R>(&self, f: impl FnOnce(&mut Outlet<Reply>) -> R) -> R {
        f(&mut self.outlet.lock().unwrap())
    }

    fn write(&self, batch: &mut VecDeque<Reply>) -> Wrote {
        let mut total = 0;
        while let Some(front) = batch.front_mut() {
            let mut pipe = self.pipe.lock().unwrap();
            let n = pipe.space.min(front.left);
            if n == 0 {
                pipe.no_space = true;
                return Wrote::Full(total);
            }
            let to = pipe.bytes.len() + n;
            pipe.bytes.resize(to, front.tag);
            pipe.space -= n;
            front.left -= n;
            total += n;
            if front.left == 0 {
                batch.pop_front();
            }
            self.readable.notify_one();
        }
        Wrote::All(total)
    }

    fn inflight(&self) -> usize {
        self.inflight.load(SeqCst)
    }

    fn failed(&self) {
        unreachable!("this socket does not fail");
    }
}

impl Model {
    fn new(space: usize, inflight: usize) -> Arc<Self> {
        Arc::new(Self {
            outlet: Mutex::new(Outlet::new()),
            inflight: AtomicUsize::new(inflight),
            pipe: Mutex::new(Pipe { space, ..Pipe::default() }),
            event: Condvar::new(),
            readable: Condvar::new(),
        })
    }

    /// Sends the replies of tickets together; a ticket without a reply is dropped.
    fn leave(&self, replies: Vec<Option<Reply>>) {
        let (mut writer, mut tell) = (false, false);
        for reply in replies {
            let (now_writer, to_tell) = submit(self, reply, || {
                self.inflight.fetch_sub(1, SeqCst);
            });
            writer |= now_writer;
            tell |= to_tell;
        }
        if writer && write_out(self) || tell {
            self.pipe.lock().unwrap().post = true;
            self.event.notify_one();
        }
    }

    /// Sends a reply from the loop itself.
    fn reply_inline(&self, reply: Reply) {
        let mut rest = VecDeque::from([reply]);
        offer(self, |may_write| {
            let sent = if may_write { self.write(&mut rest) } else { Wrote::Full(0) };
            match sent {
                Wrote::All(n) | Wrote::Full(n) => Some((n, rest)),
                Wrote::Failed => None,
            }
        });
    }

    /// Runs the loop until nothing is in flight or unsent, as the event loop does before it closes. While there are
    /// replies in `replies`, each turn sends one.
    fn serve(&self, replies: Vec<Reply>) {
        let mut replies = replies.into_iter();
        loop {
            replies.next().into_iter().for_each(|reply| self.reply_inline(reply));
            if drained(self) {
                break;
            }
            let mut pipe = self.pipe.lock().unwrap();
            while !pipe.edge && !pipe.post {
                pipe = self.event.wait(pipe).unwrap();
            }
            let edge = std::mem::take(&mut pipe.edge);
            pipe.post = false;
            drop(pipe);
            resume(self, edge);
        }
        self.pipe.lock().unwrap().closed = true;
        self.readable.notify_one();
    }

    /// Acts as the peer: reads in pieces until the connection is closed. Returns the tags in the order of arrival.
    fn read(&self) -> Vec<(u8, usize)> {
        let mut runs: Vec<(u8, usize)> = Vec::new();
        loop {
            let mut pipe = self.pipe.lock().unwrap();
            while pipe.bytes.is_empty() && !pipe.closed {
                pipe = self.readable.wait(pipe).unwrap();
            }
            if pipe.bytes.is_empty() {
                return runs;
            }
            for tag in std::mem::take(&mut pipe.bytes) {
                pipe.space += 1;
                match runs.last_mut() {
                    Some((last, n)) if *last == tag => *n += 1,
                    _ => runs.push((tag, 1)),
                }
            }
            if std::mem::take(&mut pipe.no_space) {
                pipe.edge = true;
                self.event.notify_one();
            }
        }
    }
}

fn replies_arrive_whole() {
    // The middle reply does not fit the socket. The other replies fit or not, depending on the schedule.
    let model = Model::new(3, 4);
    let mut threads = Vec::new();
    for replies in [vec![(1, 2), (2, 5)], vec![(3, 1)], vec![]] {
        let model = Arc::clone(&model);
        let replies = replies.into_iter().map(|(tag, left)| Some(Reply { tag, left }));
        let replies = if replies.len() == 0 { vec![None] } else { replies.collect() };
        threads.push(thread::spawn(move || model.leave(replies)));
    }
    let served = Arc::clone(&model);
    threads.push(thread::spawn(move || {
        served.reply_inline(Reply { tag: 4, left: 4 });
        served.serve(vec![Reply { tag: 5, left: 1 }, Reply { tag: 6, left: 1 }]);
    }));
    let mut runs = model.read();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(runs.iter().map(|(tag, _)| tag).filter(|tag| **tag > 3).is_sorted(), "the loop keeps its order");
    runs.sort_unstable();
    // The loop may end before it had a reason for its last turn.
    assert_eq!(runs[..5], [(1, 2), (2, 5), (3, 1), (4, 4), (5, 1)]);
    assert!(matches!(runs[5..], [] | [(6, 1)]));
    assert_eq!(model.with_outlet(|outlet| outlet.bytes()), 0);
}

#[test]
fn replies_arrive_whole_under_random_schedules() {
    shuttle::check_random(replies_arrive_whole, 3000);
}

#[test]
fn replies_arrive_whole_under_few_preemptions() {
    shuttle::check_pct(replies_arrive_whole, 3000, 3);
}
