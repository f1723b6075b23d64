//! A service with something going on of its own on the event loops.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use forebay_rpc::{Config, Handled, Message, Record, Reply, Server, Service, Ticket};
use rustix::event::{EventfdFlags, eventfd};

/// The event loop's descriptor, and the requests it keeps.
type Kept = (Arc<OwnedFd>, Vec<(Record, Ticket)>);

thread_local! {
    static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Keeps each request until another thread has rung, and answers all that it has then.
#[derive(Default)]
struct Patient {
    attached: AtomicUsize,
    detached: AtomicUsize,
}

impl Service for Patient {
    fn handle(&self, message: Message<'_>, _: &mut Reply<'_>) -> Handled {
        KEPT.with_borrow_mut(|kept| {
            let (fd, kept) = kept.as_mut().unwrap();
            kept.push(message.defer());
            if kept.len() == 1 {
                let fd = fd.clone();
                std::thread::spawn(move || rustix::io::write(&*fd, &1_u64.to_ne_bytes()).unwrap());
            }
        });
        Handled::Deferred
    }

    fn attach(&self) -> Option<Arc<OwnedFd>> {
        self.attached.fetch_add(1, SeqCst);
        let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        KEPT.set(Some((fd.clone(), Vec::new())));
        Some(fd)
    }

    fn turn(&self) {
        let ready = KEPT.with_borrow_mut(|kept| {
            let (fd, kept) = kept.as_mut().unwrap();
            // Rung since the last time.
            rustix::io::read(&**fd, &mut [0; 8]).is_ok().then(|| std::mem::take(kept))
        });
        for (record, ticket) in ready.unwrap_or_default() {
            let mut reply = ticket.reply();
            reply.head().extend_from_slice(&record);
            ticket.send(reply);
        }
    }

    fn detach(&self) {
        self.detached.fetch_add(1, SeqCst);
        KEPT.set(None);
    }
}

#[test]
fn a_service_goes_on_when_its_descriptor_says_so() {
    let service = Arc::new(Patient::default());
    let config = Config { threads: 2, ..Config::default() };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], config, service.clone()).unwrap();
    let running = server.spawn().unwrap();
    let address = running.local_addrs()[0];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut socket = TcpStream::connect(address).unwrap();
                for n in 0..500_u32 {
                    let record = [&(0x8000_0004_u32).to_be_bytes()[..], &n.to_be_bytes()].concat();
                    socket.write_all(&record).unwrap();
                    let mut answer = [0; 8];
                    socket.read_exact(&mut answer).unwrap();
                    assert_eq!(answer, record[..]);
                }
            });
        }
    });
    running.shutdown(Duration::from_secs(5));
    assert_eq!((service.attached.load(SeqCst), service.detached.load(SeqCst)), (2, 2));
}
