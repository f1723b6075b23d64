//! Steps that an order reaches on the way to what a scenario is about. An order that does not reach them cannot find anything, so
//! each scenario names its steps, and a step that no order reaches fails the test.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The steps of the orders that a thread of the machine has run.
#[derive(Default)]
struct Reached {
    /// Steps of the order that runs.
    now: BTreeSet<&'static str>,
    /// In how many orders each step was reached.
    orders: BTreeMap<&'static str, u64>,
}

thread_local! {
    static REACHED: RefCell<Reached> = RefCell::default();
}

/// Forgets the steps of all orders.
pub fn forget() {
    REACHED.take();
}

/// Begins an order.
pub fn begin_order() {
    REACHED.with_borrow_mut(|reached| reached.now.clear());
}

/// Notes that this order reaches `step`.
pub fn reach(step: &'static str) {
    REACHED.with_borrow_mut(|reached| {
        if reached.now.insert(step) {
            *reached.orders.entry(step).or_default() += 1;
        }
    });
}

/// Returns whether this order has reached `step`.
pub fn has_reached(step: &'static str) -> bool {
    REACHED.with_borrow(|reached| reached.now.contains(step))
}

/// Returns in how many orders `step` was reached.
pub fn orders(step: &'static str) -> u64 {
    REACHED.with_borrow(|reached| reached.orders.get(step).copied().unwrap_or_default())
}
