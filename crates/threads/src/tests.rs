//! Runs each scenario in many orders, and checks that each planted bug is found.
#![cfg(feature = "shuttle")]

use crate::check::{Failure, Scenario};
use crate::reach;
use crate::scenarios::SCENARIOS;
use crate::world::Snapshot;

fn scenario(name: &str) -> &'static Scenario {
    SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap()
}

/// Returns the first failure in this number of orders.
fn first_failure(name: &str, orders: u64) -> Option<Failure> {
    let scenario = scenario(name);
    let planted = forebay_common::planted_bugs::planted();
    forebay_common::planted_bugs::plant(None);
    let before = scenario.prepared().unwrap();
    forebay_common::planted_bugs::plant(planted);
    let orders = match std::env::var("FOREBAY_ORDER") {
        Ok(order) => order.parse().map(|order| order..order + 1).unwrap(),
        Err(_) => 0..orders,
    };
    scenario.run(&before, orders).err()
}

/// Checks that no order fails, and that some orders reach each step of the scenario.
fn holds(name: &str, orders: u64) {
    reach::forget();
    let failure = first_failure(name, orders);
    assert_eq!(failure, None, "FOREBAY_ORDER={} repeats it", failure.as_ref().map_or(0, |f| f.seed));
    let one = std::env::var("FOREBAY_ORDER").is_ok();
    for step in scenario(name).steps.iter().filter(|_| !one) {
        let reached = reach::orders(step);
        eprintln!("{name}: {step} in {reached} of {orders} orders");
        assert!(reached > 0, "{name}: {step} in none of {orders} orders");
    }
}

/// Checks that one of this number of orders finds `bug`.
fn finds(bug: &'static str, name: &str, orders: u64) {
    forebay_common::planted_bugs::plant(Some(bug));
    let failure = first_failure(name, orders);
    forebay_common::planted_bugs::plant(None);
    eprintln!("{bug}: {failure:?}");
    assert!(failure.is_some(), "{bug}: not found in {orders} orders of {name}");
}

#[test]
fn a_write_against_a_cut() {
    holds("write against cut", 100);
    finds("a frame is durable before it is waited for", "write against cut", 300);
}

#[test]
fn a_write_against_a_write() {
    holds("write against write", 100);
    finds("a write is in the log before the index knows of it", "write against write", 100);
}

#[test]
fn a_write_against_a_rewrite() {
    holds("write against rewrite", 100);
}

#[test]
fn a_cut_against_a_rewrite() {
    holds("cut against rewrite", 100);
    finds("a cut is in the log before its object is locked", "cut against rewrite", 400);
}

#[test]
fn a_write_against_a_repair() {
    holds("write against repair", 100);
}

#[test]
fn a_repair_against_the_next_segment_in_its_place() {
    holds("repair against reuse", 100);
    finds("a repair does not ask whether its place is still a leg", "repair against reuse", 200);
    finds("a place is used again before its repair has ended", "repair against reuse", 400);
}

#[test]
fn a_read_against_a_cut() {
    holds("read against cut", 100);
}

#[test]
fn a_write_against_destaging() {
    holds("write against destage", 100);
}

#[test]
fn a_write_against_the_next_segment() {
    holds("write against roll", 100);
    finds("facts are taken before the wait for room", "write against roll", 400);
}

#[test]
fn the_next_segment_against_destaging() {
    holds("roll against destage", 100);
    finds("a segment is sealed before the log leaves it", "roll against destage", 200);
}

#[test]
fn writes_past_the_log() {
    holds("write past the log", 100);
    // Eight of 600 orders find it, more than of most scenarios.
    finds("a change comes between the look and the wait", "write past the log", 600);
}

/// Returns all failures in this number of orders.
fn failures(scenario: &'static Scenario, before: &Snapshot, orders: u64) -> Vec<Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    while let Err(failure) = scenario.run(before, failures.last().map_or(0, |last| last.seed + 1)..orders) {
        failures.push(failure);
    }
    failures
}

/// Prints, for a person, the number of orders in which each scenario finds each bug.
#[test]
#[ignore = "a table for a person"]
fn table() {
    let orders = std::env::var("ORDERS").map_or(100, |orders| orders.parse().unwrap());
    let only = std::env::var("BUG").unwrap_or_default();
    let kind = std::env::var("SCENARIO").unwrap_or_default();
    let bugs = || forebay_engine::planted_bugs::threads::PLANTS.iter().map(|bug| Some(*bug));
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name.contains(&kind)) {
        let before = scenario.prepared().unwrap();
        for bug in std::iter::once(None).chain(bugs()) {
            let name = bug.unwrap_or("none");
            if !name.contains(&only) {
                continue;
            }
            let begun = std::time::Instant::now();
            forebay_common::planted_bugs::plant(bug);
            reach::forget();
            let failures = failures(scenario, &before, orders);
            forebay_common::planted_bugs::plant(None);
            let first = failures.first().map(|f| (f.seed, f.message.chars().take(200).collect::<String>()));
            println!("{:4} {:20} {name} {:?} {first:?}", failures.len(), scenario.name, begun.elapsed());
            for step in scenario.steps {
                println!("     {:20} {step}", reach::orders(step));
            }
        }
    }
}
