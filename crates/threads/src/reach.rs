//! Steps that an order must reach to test the subject of a scenario. An order that does not reach them cannot find a
//! defect. So each scenario names its steps, and the test fails if no order reaches one of them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The steps reached by the orders that a thread of the machine has run.
#[derive(Default)]
struct Reached {
    /// The steps of the present order.
    now: BTreeSet<&'static str>,
    /// For each step, the number of orders that reached it.
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

/// Returns true if this order has reached `step`.
pub fn has_reached(step: &'static str) -> bool {
    REACHED.with_borrow(|reached| reached.now.contains(step))
}

/// Returns the number of orders that reached `step`.
pub fn orders(step: &'static str) -> u64 {
    REACHED.with_borrow(|reached| reached.orders.get(step).copied().unwrap_or_default())
}
