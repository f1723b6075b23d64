//! Tests of the executor.

use super::*;

fn order_of(seed: u64) -> (Vec<u32>, u64) {
    let executor = Executor::new(Rng::new(seed));
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..8 {
        let (inner, order) = (executor.clone(), order.clone());
        executor.start(
            "test",
            Box::pin(async move {
                inner.sleep(Duration::from_millis(1)).await;
                order.lock().push(number);
                inner.note(u64::from(number));
            }),
        );
    }
    assert_eq!(executor.run(Duration::from_secs(1), || false), Stop::Idle);
    assert!(executor.time() >= Duration::from_millis(1001));
    (std::mem::take(&mut order.lock()), executor.digest())
}

#[test]
fn the_seed_decides_the_order_and_nothing_else_does() {
    assert_eq!(order_of(1), order_of(1));
    let different = (2..10).filter(|seed| order_of(*seed) != order_of(1)).count();
    assert!(different > 4);
}

#[test]
fn a_crash_stops_everything_at_its_step_and_the_executor_goes_on_afterwards() {
    let executor = Executor::new(Rng::new(1));
    executor.crash_in(Some(3));
    let inner = executor.clone();
    let stop = executor.block_on(Duration::from_secs(60), async move {
        while inner.step() {
            inner.sleep(Duration::from_secs(1)).await;
        }
        inner.never::<()>().await;
    });
    assert_eq!(stop, Err(Stop::Crashed));
    assert_eq!(executor.steps(), 3);
    executor.reset();
    assert_eq!(executor.block_on(Duration::from_secs(60), async { 5 }), Ok(5));
}

#[test]
fn a_task_that_waits_for_nothing_is_a_deadlock_and_one_that_spins_a_livelock() {
    let executor = Executor::new(Rng::new(1));
    assert_eq!(executor.block_on(Duration::MAX / 2, std::future::pending::<()>()), Err(Stop::Idle));
    let inner = executor.clone();
    let spin = async move {
        loop {
            inner.sleep(Duration::from_millis(1)).await;
        }
    };
    assert_eq!(executor.block_on::<()>(Duration::from_secs(1), spin), Err(Stop::Stuck));
}
