//! Answers every request at once, to measure the transport alone: `null_server [THREADS [BUSY_POLL_US]]`.
//!
//! A request starts with two big-endian words: how many payload bytes to answer with, and 1 to answer from a
//! worker thread. The reply is 124 bytes and the payload, as READ's is. Prints its address; ends with its stdin.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_rpc::{Config, Handled, Message, Record, Reply, Server, Service, Ticket, Workers};

struct Null {
    workers: Workers<(Record, Ticket)>,
}

static CONTENT: [u8; 1 << 20] = [0x5a; 1 << 20];

fn fill(request: &[u8], reply: &mut Reply<'_>) {
    let len = request.first_chunk().map_or(0, |word| u32::from_be_bytes(*word) as usize);
    if len > 0 {
        let payload = reply.payload(len.min(CONTENT.len()));
        let len = payload.capacity();
        payload.spare_mut().copy_from_slice(&CONTENT[..len]);
        payload.set_len(len);
    }
    // The first word of a reply identifies the reply, as an xid does.
    reply.head().extend_from_slice(request.get(8..12).unwrap_or(&[0; 4]));
    reply.head().extend_from_slice(&[0; 120]);
}

impl Service for Null {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        if message.bytes().get(4..8) == Some(&[0, 0, 0, 1]) {
            let address = message.peer().addr.ip();
            return match self.workers.submit(address, 0, message.defer()) {
                Ok(()) => Handled::Deferred,
                Err(_) => Handled::Close,
            };
        }
        fill(message.bytes(), reply);
        Handled::Reply
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let threads = args.next().transpose()?.unwrap_or(0) as usize;
    let busy_poll = Duration::from_micros(args.next().transpose()?.unwrap_or(50));
    let workers = Workers::new(8, 65_536, busy_poll, |(record, ticket): (Record, Ticket)| {
        let mut reply = ticket.reply();
        fill(&record, &mut reply);
        drop(record);
        ticket.send(reply);
    })?;
    let config = Config { threads, busy_poll, ..Config::default() };
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(&[addr], config, Arc::new(Null { workers }))?.spawn()?;
    #[expect(clippy::print_stdout, reason = "the address is the result")]
    {
        println!("{}", server.local_addrs()[0]);
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let stats = server.counters().read();
    server.shutdown(Duration::from_secs(1));
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    eprintln!(
        "{} records, {} wake-ups, {} pauses, {}.{:03} s of CPU",
        stats.records,
        stats.wakeups,
        stats.pauses,
        usage.tv_sec,
        usage.tv_nsec / 1_000_000
    );
    Ok(())
}
