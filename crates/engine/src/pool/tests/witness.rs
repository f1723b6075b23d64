//! Tests of the reports to the witness, and of their times.

use std::future::ready;

use forebay_common::lock::Mutex;

use super::*;
use crate::io::{Io, Leg, Noted, Witness, WitnessError};

/// A step of a change: the epoch, the epoch that each device carries at that time, and for an epoch in use its devices.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Give(u64, Vec<u64>),
    UserRecord(u64, Vec<u64>, Vec<String>),
}

struct Book {
    rams: Vec<Arc<Ram>>,
    told: Mutex<Vec<Told>>,
    noted: Mutex<Noted>,
}

impl Book {
    fn new(rams: &[Arc<Ram>], in_use: u64, given: u64) -> Arc<Self> {
        let noted = Mutex::new(Noted { in_use, given });
        Arc::new(Book { rams: rams.to_vec(), told: Mutex::default(), noted })
    }

    fn carried(&self) -> Vec<u64> {
        self.rams.iter().map(|ram| superblock(ram).epoch).collect()
    }

    fn told(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock())
    }
}

impl Witness for Book {
    fn give(&self, _: u128, epoch: u64) -> Io<Result<(), WitnessError>> {
        self.told.lock().push(Told::Give(epoch, self.carried()));
        Box::pin(ready(Ok(())))
    }

    fn note(&self, _: u128, epoch: u64, members: Vec<Leg>) -> Io<Result<(), WitnessError>> {
        let names = members.into_iter().map(|leg| leg.name).collect();
        self.told.lock().push(Told::UserRecord(epoch, self.carried(), names));
        Box::pin(ready(Ok(())))
    }

    fn noted(&self, _: u128) -> Io<Result<Noted, WitnessError>> {
        Box::pin(ready(Ok(*self.noted.lock())))
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_epoch_is_given_out_before_a_device_carries_it_and_noted_once_all_do() {
    let rams = &used::<2>();
    let book = Book::new(rams, 1, 1);
    let mut pool = open(rams).unwrap();
    block_on(pool.watch(book.clone())).unwrap();
    assert_eq!(book.told(), [], "nothing has changed");
    block_on(pool.open_epoch()).unwrap();
    let expected = [Told::Give(2, vec![1, 1]), Told::UserRecord(2, vec![2, 2], names(&["a", "b"]))];
    assert_eq!(book.told(), expected);
    block_on(pool.lose(1)).unwrap();
    assert_eq!(book.told(), [Told::Give(3, vec![2, 2]), Told::UserRecord(3, vec![3, 2], names(&["a"]))]);
}

#[test]
fn an_epoch_that_was_given_out_to_a_device_which_is_not_here_is_not_used_again() {
    let [a, _] = used::<2>();
    let rams = &[a];
    let book = Book::new(rams, 1, 4);
    let mut pool = open(rams).unwrap();
    block_on(pool.watch(book.clone())).unwrap();
    block_on(pool.open_epoch()).unwrap();
    assert_eq!(book.told(), [Told::Give(5, vec![1]), Told::UserRecord(5, vec![5], names(&["a"]))]);
}

#[test]
fn devices_that_the_pool_was_used_without_are_not_opened() {
    let rams = &used::<2>();
    let mut pool = open(rams).unwrap();
    let devices = "a and b".to_owned();
    let refused = Err(PoolError::OutOfDate { devices, found: 1, noted: 2 });
    assert_eq!(block_on(pool.watch(Book::new(rams, 2, 2))), refused);
    assert_eq!(block_on(pool.watch(Book::new(rams, 1, 2))), Ok(()));
}
