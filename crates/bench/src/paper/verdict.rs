//! The verdict on each test: which system is ahead, and by which factor.

use super::system::System;
use crate::report::document::{Span, Text, text};
use crate::report::topic::Topic;

/// Largest relative difference that counts as even: with repeats, and without.
pub(crate) const EVEN: (f64, f64) = (0.05, 0.1);

/// The result of comparing a mode of Forebay with the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict {
    Win(System, f64),
    Even(System, f64),
    Lose(System, f64),
    /// The baseline or the mode was not measured.
    Unknown,
}

/// Returns the rate of a system with `clients` clients, the median of its repeats.
pub(crate) fn rate_at(topic: &Topic<'_>, system: System, clients: u32) -> Option<f64> {
    let unit = topic.unit();
    let series = topic.series.iter().find(|series| series.label == system.name())?;
    let cell = series.cells.iter().find(|cell| cell.clients == clients)?;
    Some(cell.spread(|run| unit.rate(run)).0)
}

/// Returns the highest rate of a system over all numbers of clients.
pub(crate) fn peak(topic: &Topic<'_>, system: System) -> Option<f64> {
    topic.clients().into_iter().filter_map(|clients| rate_at(topic, system, clients)).reduce(f64::max)
}

/// Returns the peak of a system divided by the baseline's peak.
pub(crate) fn ratio(topic: &Topic<'_>, system: System) -> Option<f64> {
    let baseline = peak(topic, System::Ganesha).filter(|rate| *rate > 0.0)?;
    Some(peak(topic, system)? / baseline)
}

/// Judges write-back, or pass-through if write-back was not measured.
pub(crate) fn verdict(topic: &Topic<'_>) -> Verdict {
    let judged = [System::WriteBack, System::PassThrough];
    let found = judged.into_iter().find_map(|system| Some((system, ratio(topic, system)?)));
    let repeated = topic.cells().all(|(_, cell)| cell.phase.runs.len() > 1);
    let even = if repeated { EVEN.0 } else { EVEN.1 };
    match found {
        None => Verdict::Unknown,
        Some((system, ratio)) if ratio > 1.0 + even => Verdict::Win(system, ratio),
        Some((system, ratio)) if ratio < 1.0 - even => Verdict::Lose(system, ratio),
        Some((system, ratio)) => Verdict::Even(system, ratio),
    }
}

/// Returns a ratio as text, with two to four significant digits.
pub(crate) fn shown(ratio: f64) -> String {
    let digits = match ratio {
        large if large >= 20.0 => 0,
        middle if middle >= 0.1 => 2,
        _ => 4,
    };
    format!("{ratio:.digits$}\u{a0}×")
}

impl Verdict {
    /// Returns the verdict in a few words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Win(system, ratio) | Self::Even(system, ratio) | Self::Lose(system, ratio) => {
                format!("{} {}", system.name(), shown(*ratio))
            }
            Self::Unknown => "not known".to_owned(),
        }
    }

    /// Returns the verdict for a table.
    pub(crate) fn show(&self) -> Span {
        match self {
            Self::Win(..) => Span::Win("ahead".into()),
            Self::Even(..) => Span::Even("even".into()),
            Self::Lose(..) => Span::Lose("behind".into()),
            Self::Unknown => Span::from("-"),
        }
    }

    /// Returns the verdict as a sentence, beside the published ratio.
    pub(crate) fn sentence(&self, published: Option<f64>) -> Text {
        let (Self::Win(system, ratio) | Self::Even(system, ratio) | Self::Lose(system, ratio)) = self else {
            return text!["not known: the baseline or Forebay was not measured."];
        };
        let beside = published.map(|published| {
            let word = if *ratio >= published { "better than" } else { "short of" };
            format!(", {word} the published {}", shown(published))
        });
        let ratio = Span::Strong(shown(*ratio));
        text![
            format!("{} has ", system.name()),
            ratio,
            " the baseline",
            beside.unwrap_or_default(),
            ": ",
            self.show(),
            ".",
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::topic::{Labelled, topics};
    use crate::result::Report;

    /// Returns a result of one phase with one client. Each repeat has a rate.
    fn result(system: System, rates: &[f64]) -> Labelled {
        let run = |rate: &f64| {
            let none =
                serde_json::json!({"mean": 0, "p50": 0, "p90": 0, "p99": 0, "p999": 0, "p9999": 0, "max": 0});
            serde_json::json!({
                "seconds": 1, "operations": 1, "operations_per_second": rate, "bytes": 0, "bytes_per_second": 0,
                "entries_per_second": 0, "put_off": 0, "latency": none, "procedures": [], "series": [],
                "client_cpu": null, "server_cpu": null,
            })
        };
        let runs: Vec<_> = rates.iter().map(run).collect();
        let report: Report = serde_json::from_value(serde_json::json!({
            "schema": 1, "command": [], "version": "", "started": 0, "target": "", "threads": 1, "verified": false,
            "caches_dropped": false,
            "machine": {"hostname": "", "kernel": "", "cpu": "", "cpus": 1, "memory": 0},
            "phases": [{"name": "x", "groups": [{"pattern": "randread", "options": {}}], "runs": runs}],
        }))
        .unwrap();
        Labelled { label: system.name().to_owned(), report }
    }

    fn judged(results: &[Labelled]) -> Verdict {
        verdict(&topics(results)[0])
    }

    #[test]
    fn write_back_is_judged_or_else_pass_through() {
        let baseline = result(System::Ganesha, &[100.0, 100.0]);
        let pass = result(System::PassThrough, &[90.0, 90.0]);
        let back = result(System::WriteBack, &[630.0, 650.0]);
        let both = [baseline.clone(), pass.clone(), back];
        assert_eq!(judged(&both), Verdict::Win(System::WriteBack, 6.4));
        assert_eq!(judged(&[baseline.clone(), pass.clone()]), Verdict::Lose(System::PassThrough, 0.9));
        assert_eq!(judged(&[pass]), Verdict::Unknown);
        let once = [result(System::Ganesha, &[100.0]), result(System::PassThrough, &[92.0])];
        assert_eq!(judged(&once), Verdict::Even(System::PassThrough, 0.92), "one repeat proves less");
    }

    #[test]
    fn ratios_have_the_digits_that_mean_something() {
        assert_eq!([76.5, 6.4, 0.0238].map(shown), ["76\u{a0}×", "6.40\u{a0}×", "0.0238\u{a0}×"]);
    }
}
