mod change;
mod crash;
mod identify;
mod ram;
mod superblock;
mod table;
mod witness;

use std::sync::Arc;

use super::*;
use crate::buffer::BLOCK;
use crate::io::{Device, DeviceError};
use ram::{Ram, block_on};

const MIB: u64 = 1 << 20;

/// Returns the UUIDs 1, 2, 3 and so on from `first`.
fn random(first: u128) -> impl FnMut() -> u128 + Send {
    let mut next = first;
    move || {
        next += 1;
        next - 1
    }
}

fn devices(rams: &[Arc<Ram>]) -> Vec<Arc<dyn Device>> {
    rams.iter().map(|ram| ram.clone() as Arc<dyn Device>).collect()
}

fn format(rams: &[Arc<Ram>]) -> Pool {
    block_on(Pool::format(devices(rams), &mut random(1), false)).unwrap()
}

fn open(rams: &[Arc<Ram>]) -> Result<Pool, PoolError> {
    block_on(Pool::open(devices(rams)))
}

/// Returns blank devices of 64 MiB, named a, b, c.
fn blank<const N: usize>() -> [Arc<Ram>; N] {
    std::array::from_fn(|at| Ram::new(["a", "b", "c", "d"][at], 64 * MIB))
}

/// Returns the devices of a pool that was opened once.
fn used<const N: usize>() -> [Arc<Ram>; N] {
    let rams = blank();
    assert_eq!(block_on(format(&rams).open_epoch()), Ok(vec![]));
    rams
}

fn contents(ram: &Ram) -> Contents {
    block_on(super::identify(ram)).unwrap()
}

fn superblock(ram: &Ram) -> Superblock {
    match contents(ram) {
        Contents::Pool(superblock) => superblock,
        other => panic!("{} holds {other}", ram.name()),
    }
}

fn states(pool: &Pool) -> Vec<State> {
    pool.members.iter().map(|member| member.state).collect()
}

fn present(pool: &Pool) -> Vec<&str> {
    pool.present().map(|(_, device)| device.name()).collect()
}
