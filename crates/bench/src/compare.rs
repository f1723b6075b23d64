//! Compares two results: ratios of medians and their confidence intervals.

use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

use crate::protocol::Version;
use crate::result::{PhaseReport, Report, Run, median};

const RESAMPLES: usize = 10_000;

/// The ratio B / A of two medians over the repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the medians.
    pub ratio: f64,
    /// Lower end of the interval: 95 % by bootstrap over the repeats, or the extremes with fewer than five repeats.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// One phase that both results have.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Name of the phase.
    pub name: String,
    /// Versions of NFS in A and in B.
    pub versions: (Version, Version),
    /// Number of repeats in A and in B.
    pub repeats: (usize, usize),
    /// True if both phases ran with equal options.
    pub same_options: bool,
    /// Ratio of operations per second.
    pub rate: Ratio,
    /// Ratio of median latencies; below 1, B is faster.
    pub p50: Ratio,
    /// Ratio of 99th percentiles of the latency; below 1, B is faster.
    pub p99: Ratio,
}

/// Compares the phases that both results have, in the order of `a`.
#[must_use]
pub fn compare(a: &Report, b: &Report) -> Vec<Comparison> {
    let versions = (a.nfs, b.nfs);
    let pairs = a
        .phases
        .iter()
        .filter_map(|phase| Some((phase, b.phases.iter().find(|other| other.name == phase.name)?)));
    pairs
        .map(|(a, b)| Comparison {
            name: a.name.clone(),
            versions,
            repeats: (a.runs.len(), b.runs.len()),
            same_options: options(a) == options(b),
            rate: ratio(a, b, |run| run.operations_per_second),
            p50: ratio(a, b, |run| run.latency.p50),
            p99: ratio(a, b, |run| run.latency.p99),
        })
        .collect()
}

fn options(phase: &PhaseReport) -> Option<String> {
    serde_json::to_string(&phase.groups).ok()
}

/// Returns the ratio of one figure of a phase between two results, with its confidence interval.
fn ratio(a: &PhaseReport, b: &PhaseReport, value: impl Fn(&Run) -> f64) -> Ratio {
    let a: Vec<f64> = a.runs.iter().map(&value).collect();
    let b: Vec<f64> = b.runs.iter().map(&value).collect();
    interval(&a, &b)
}

/// Returns the ratio of the medians and its 95 % interval by bootstrap. With fewer than five values on a side, the
/// interval is the range of all ratios.
fn interval(a: &[f64], b: &[f64]) -> Ratio {
    let ratio = median(b) / median(a);
    if a.len().min(b.len()) < 5 {
        let most = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
        let least = |values: &[f64]| values.iter().copied().fold(f64::MAX, f64::min);
        return Ratio { ratio, low: least(b) / most(a), high: most(b) / least(a) };
    }
    // The seed is fixed, so that two files always give one interval.
    let mut rng = SmallRng::seed_from_u64(1);
    let mut resampled = |values: &[f64]| {
        let sample: Vec<f64> = values.iter().map(|_| values[rng.random_range(0..values.len())]).collect();
        median(&sample)
    };
    let mut ratios: Vec<f64> = (0..RESAMPLES).map(|_| resampled(b) / resampled(a)).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |quantile: f64| ratios[((RESAMPLES - 1) as f64 * quantile) as usize];
    Ratio { ratio, low: at(0.025), high: at(0.975) }
}

/// Returns a comparison as a table. `versions` are those of A and of B.
#[must_use]
pub fn table(comparisons: &[Comparison], versions: (Version, Version)) -> String {
    let mut out = String::new();
    let width = comparisons.iter().map(|comparison| comparison.name.len()).max().unwrap_or(0).max(5);
    let _ = writeln!(
        out,
        "{:width$} {:>7} {:>24} {:>24} {:>24}",
        "phase", "repeats", "rate B/A", "p50 B/A", "p99 B/A"
    );
    for Comparison { name, repeats, same_options, rate, p50, p99, .. } in comparisons {
        let show = |ratio: &Ratio| format!("{:.2} ({:.2} to {:.2})", ratio.ratio, ratio.low, ratio.high);
        let repeats = format!("{}:{}", repeats.0, repeats.1);
        let note = if *same_options { "" } else { "  different options" };
        let _ = writeln!(
            out,
            "{name:width$} {repeats:>7} {:>24} {:>24} {:>24}{note}",
            show(rate),
            show(p50),
            show(p99)
        );
    }
    let _ = writeln!(out, "A: {}, B: {}", versions.0, versions.1);
    out.push_str("in parentheses: 95 % by bootstrap from five repeats on, else the extremes\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_repeats_give_the_extremes() {
        let ratio = interval(&[1.0, 2.0], &[4.0, 6.0]);
        assert_eq!((ratio.low, ratio.high), (2.0, 6.0));
        assert!((ratio.ratio - 5.0 / 1.5).abs() < 1e-9);
    }

    #[test]
    fn the_interval_holds_the_ratio_and_is_repeatable() {
        let a = [100.0, 101.0, 99.0, 102.0, 98.0];
        let b = [200.0, 210.0, 190.0, 205.0, 195.0];
        let ratio = interval(&a, &b);
        assert!(ratio.low < 2.0 && ratio.ratio == 2.0 && ratio.high > 2.0);
        assert!(ratio.low > 1.8 && ratio.high < 2.2);
        assert_eq!(ratio, interval(&a, &b));
    }
}
