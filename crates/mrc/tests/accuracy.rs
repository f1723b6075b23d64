//! The live estimate against a simulation of every request, at five sizes and under three loads.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod loads;

use std::sync::Arc;
use std::time::Duration;

use forebay_mrc::{
    Curve, Estimator, Geometry, Limits, Present, Reference, SIZES, Sampler, Simulation, identity,
};

use loads::Request;

/// A pool of 256 MiB with 16 MiB of memory.
const POOL: Geometry = Geometry { devices: 2, segments: 128, slots: 512, memory: 4096 };
/// The compared sizes: from an eighth of the pool to four times the pool.
const COMPARED: [usize; 5] = [0, 2, 4, 6, 8];
/// Requests in a millisecond.
const SPEED: u64 = 20;

/// Returns the hit ratios and the coalescing at each size, with every request simulated.
fn every_request(load: impl Iterator<Item = Request>) -> ([f64; SIZES], [f64; SIZES]) {
    let mut simulation = Simulation::new(POOL, Limits::NONE, u64::MAX);
    for (number, (object, block, kind)) in (0_u64..).zip(load) {
        simulation.replay(Reference::new(identity(object, block), 0, kind, (number / SPEED) as u32));
    }
    (simulation.hit_ratios(), simulation.coalescing())
}

/// Returns the curve that a server would show, with the bounds on memory and load of a server.
fn sampled(load: impl Iterator<Item = Request>) -> Curve {
    let sampler = Arc::new(Sampler::default());
    let mut estimator = Estimator::new(sampler.clone());
    let present =
        Present { geometry: POOL, destage_age: Duration::from_secs(5), dirty_part: 0.0, record_pages: 0.0 };
    estimator.advance(Duration::ZERO, present);
    for (number, (object, block, kind)) in (0_u64..).zip(load) {
        let now = Duration::from_millis(number / SPEED);
        sampler.record(object, 0, block..block + 1, kind, || now);
        if number % (200 * SPEED) == 0 {
            estimator.advance(now, present);
        }
    }
    estimator.curve()
}

/// Returns the mean absolute error of the hit ratios, in points.
#[track_caller]
fn compare(name: &str, load: impl Iterator<Item = Request> + Clone) -> f64 {
    let (exact, coalescing) = every_request(load.clone());
    let curve = sampled(load);
    assert!(curve.enough && curve.lost == 0, "{name}: {} samples, {} lost", curve.sampled, curve.lost);
    let mut error = 0.0;
    for at in COMPARED {
        let point = curve.points[at];
        println!(
            "{name}, {} MiB: {:.2} % exact, {:.2} % sampled; coalescing {:.2} exact, {:.2} sampled",
            point.cache_bytes >> 20,
            exact[at] * 100.0,
            point.hit_ratio * 100.0,
            coalescing[at],
            point.coalescing
        );
        error += (exact[at] - point.hit_ratio).abs() * 100.0 / COMPARED.len() as f64;
        let relative = point.coalescing / coalescing[at] - 1.0;
        assert!(relative.abs() < 0.1, "{name}: the coalescing is off by {:.0} %", relative * 100.0);
    }
    println!("{name}: mean error {error:.2} points with one block in {:.0}", 1.0 / curve.rate);
    error
}

#[test]
fn zipf_reads_are_estimated_within_two_points() {
    let error = compare("Zipf", loads::zipf(2_000_000).collect::<Vec<_>>().into_iter());
    assert!(error <= 2.0, "{error} points");
}

#[test]
fn a_scan_beside_a_hot_set_is_estimated_within_two_points() {
    let load: Vec<_> = loads::scan_and_hot_set(2_000_000).collect();
    let error = compare("scan and hot set", load.into_iter());
    assert!(error <= 2.0, "{error} points");
}

#[test]
fn reads_and_writes_in_phases_are_estimated_within_two_points() {
    let error = compare("phases", loads::phases(2_000_000).collect::<Vec<_>>().into_iter());
    assert!(error <= 2.0, "{error} points");
}
