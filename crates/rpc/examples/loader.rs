//! Closed-loop load on `null_server` from one epoll thread:
//! `loader ADDR CLIENTS DEPTH SECONDS REQUEST_BYTES PAYLOAD_BYTES [worker]`.

use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};

struct Client {
    socket: TcpStream,
    /// Bytes of the current reply still to come; 0 = at a record mark.
    left: usize,
    mark: Vec<u8>,
    /// Bytes of requests not written yet.
    unsent: usize,
    started: Instant,
}

struct Load {
    request: Vec<u8>,
    depth: usize,
    replies: u64,
    bytes: u64,
    /// Microseconds, one client in flight only.
    latencies: Vec<u32>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, clients, depth, seconds, request, payload, rest @ ..] = &args[..] else {
        return Err("usage: loader ADDR CLIENTS DEPTH SECONDS REQUEST_BYTES PAYLOAD_BYTES [worker]".into());
    };
    let addr: SocketAddr = addr.parse()?;
    let length: usize = request.parse::<usize>()?.max(12);
    let mut request = (length as u32 | 1 << 31).to_be_bytes().to_vec();
    request.extend(payload.parse::<u32>()?.to_be_bytes());
    request.extend(u32::from(rest.first().is_some_and(|word| word == "worker")).to_be_bytes());
    request.resize(length + 4, 1);
    let mut load = Load { request, depth: depth.parse()?, replies: 0, bytes: 0, latencies: Vec::new() };

    let set = epoll::create(CreateFlags::CLOEXEC)?;
    let mut clients: Vec<Client> = (0..clients.parse()?).map(|_| connect(addr)).collect::<Result<_, _>>()?;
    for (index, client) in clients.iter_mut().enumerate() {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(&set, &client.socket, EventData::new_u64(index as u64), flags)?;
        client.unsent = load.depth * load.request.len();
        load.write(client)?;
    }
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds.parse()?));
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let mut buffer = vec![0; 1 << 20];
    while start.elapsed() < limit {
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            let client = &mut clients[event.data.u64() as usize];
            let flags = event.flags;
            if flags.contains(EventFlags::IN) {
                load.read(client, &mut buffer)?;
            }
            load.write(client)?;
        }
    }
    load.report(start.elapsed());
    Ok(())
}

fn connect(addr: SocketAddr) -> std::io::Result<Client> {
    let socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(Client { socket, left: 0, mark: Vec::new(), unsent: 0, started: Instant::now() })
}

impl Load {
    /// Receives until the socket is empty; each reply entitles to a new request.
    fn read(&mut self, client: &mut Client, buffer: &mut [u8]) -> std::io::Result<()> {
        loop {
            let received = match recv(client.socket.as_fd(), &mut *buffer, RecvFlags::empty()) {
                Ok((0, _)) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => n,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.bytes += received as u64;
            let mut input = &buffer[..received];
            while !input.is_empty() {
                if client.left == 0 {
                    let (mark, rest) = input.split_at(input.len().min(4 - client.mark.len()));
                    client.mark.extend(mark);
                    input = rest;
                    if let Ok(mark) = <[u8; 4]>::try_from(&client.mark[..]) {
                        client.left = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
                        client.mark.clear();
                    }
                } else {
                    let take = input.len().min(client.left);
                    client.left -= take;
                    input = &input[take..];
                    if client.left == 0 {
                        self.replies += 1;
                        client.unsent += self.request.len();
                        if self.depth == 1 && self.latencies.len() < 10_000_000 {
                            self.latencies.push(client.started.elapsed().as_nanos() as u32);
                        }
                    }
                }
            }
            if received < buffer.len() {
                return Ok(());
            }
        }
    }

    /// Writes as many requests as are due in one call.
    fn write(&self, client: &mut Client) -> std::io::Result<()> {
        let len = self.request.len();
        while client.unsent > 0 {
            client.started = Instant::now();
            let begun = client.unsent % len;
            let first = if begun == 0 { &self.request[..] } else { &self.request[len - begun..] };
            let sent = if client.unsent <= len {
                send(&client.socket, first, SendFlags::NOSIGNAL)
            } else {
                let mut slices = vec![IoSlice::new(&self.request); client.unsent.div_ceil(len).min(64)];
                slices[0] = IoSlice::new(first);
                sendmsg(&client.socket, &slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
            };
            match sent {
                Ok(n) => client.unsent -= n,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "the figures are the result")]
    fn report(&mut self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        println!(
            "{:.0} replies/s, {:.0} MB/s in, {:.0} MB/s out, loader CPU {:.2}",
            self.replies as f64 / seconds,
            self.bytes as f64 / seconds / 1e6,
            self.replies as f64 * self.request.len() as f64 / seconds / 1e6,
            cpu / seconds
        );
        self.latencies.sort_unstable();
        if let Some(last) = self.latencies.len().checked_sub(1) {
            let at = |share: f64| f64::from(self.latencies[(last as f64 * share) as usize]) / 1e3;
            println!("latency us: p50 {:.1} p99 {:.1} p99.9 {:.1}", at(0.5), at(0.99), at(0.999));
        }
    }
}
