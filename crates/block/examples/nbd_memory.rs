//! Serves a volume in memory on a Unix socket, for measurements: `nbd_memory SOCKET MIB [THREADS [POLL]]`. POLL is the
//! time of busy polling in microseconds. Ends with its standard input.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

#[path = "../tests/common/memory.rs"]
#[allow(dead_code, reason = "written for tests")]
mod memory;

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use forebay_block::{Config, Door};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next();
    let (Some(socket), Some(size)) = (next(), next()) else {
        tracing::error!("usage: memory SOCKET MIB [THREADS]");
        std::process::exit(2);
    };
    let threads = next().map_or(0, |threads| threads.parse().unwrap());
    let busy_poll =
        next().map_or(Config::default().busy_poll, |micros| Duration::from_micros(micros.parse().unwrap()));
    let disk = memory::Memory::new(size.parse::<u64>().unwrap() << 20);
    let config = Config { sockets: vec![PathBuf::from(socket)], threads, busy_poll, ..Config::default() };
    let door = Door::start(&config, memory::Set::one(&disk), Box::new(|_, _| {})).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
    door.stop(Duration::ZERO);
}
