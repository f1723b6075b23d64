//! Reasons to doubt figures: other work on the machine.

use super::document::{Text, text};
use crate::result::{Report, Run};

/// Fraction of the machine's processors used by other processes, above which a measurement counts as disturbed.
const LOADED: f64 = 0.05;

/// Returns a warning about runs during which the machine did other work, if there are any.
pub(crate) fn loaded<'a>(reports: impl Iterator<Item = &'a Report>) -> Option<Text> {
    let (mut runs, mut loaded, mut most) = (0, 0, 0.0_f64);
    for report in reports {
        let processors = report.machine.cpus.max(1) as f64;
        for run in report.phases.iter().flat_map(|phase| &phase.runs) {
            runs += 1;
            let Some(others) = others(run) else { continue };
            if others > processors * LOADED {
                loaded += 1;
                most = most.max(others);
            }
        }
    }
    (loaded > 0).then(|| {
        text![format!(
            "the machine had something else to do during {loaded} of {runs} measurements: up to {most:.1} of its processors were busy \
             with neither the clients nor the server. Measure again on a machine that is idle."
        )]
    })
}

/// Returns the number of processors that other processes used; `None` if unknown.
pub(crate) fn others(run: &Run) -> Option<f64> {
    Some(run.other_cpu? / run.seconds.max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::document::Span;
    use crate::report::measured;
    use crate::report::page::page;
    use crate::report::topic::Labelled;

    fn report(label: &str, rate: f64, other_cpu: Option<f64>) -> Labelled {
        let latency =
            serde_json::json!({"mean": 0, "p50": 0, "p90": 0, "p99": 0, "p999": 0, "p9999": 0, "max": 0});
        let report = serde_json::from_value(serde_json::json!({
            "schema": 1, "command": [], "version": "", "started": 0, "target": "", "threads": 1, "verified": false,
            "caches_dropped": false,
            "machine": {"hostname": "", "kernel": "", "cpu": "", "cpus": 4, "memory": 0},
            "phases": [{"name": "x", "groups": [{"pattern": "randread", "options": {}}], "runs": [{
                "seconds": 10, "operations": 1, "operations_per_second": rate, "bytes": 0, "bytes_per_second": 0,
                "entries_per_second": 0, "put_off": 0, "latency": latency, "procedures": [], "series": [],
                "client_cpu": null, "server_cpu": null, "other_cpu": other_cpu,
            }]}],
        }));
        Labelled { label: label.to_owned(), report: report.unwrap() }
    }

    fn warned(others: &[Option<f64>]) -> Option<Text> {
        let reports: Vec<_> = others.iter().map(|others| report("a", 1.0, *others).report).collect();
        loaded(reports.iter())
    }

    #[test]
    fn a_loaded_machine_is_warned_of_and_an_idle_one_is_not() {
        assert_eq!(warned(&[None, Some(0.0), Some(1.9)]), None);
        let told = warned(&[Some(2.1), Some(15.0), None]).unwrap();
        let [Span::Plain(told)] = &told[..] else { panic!("{told:?}") };
        assert!(told.contains("2 of 3 measurements") && told.contains("up to 1.5 of"), "{told}");
    }

    #[test]
    fn what_is_behind_is_red_and_says_so_and_paper_is_white() {
        let reports = [report("a", 100.0, Some(20.0)), report("b", 60.0, None), report("c", 300.0, None)];
        let shown = page(&measured::document(&reports)).unwrap();
        assert!(shown.contains("<span class=\"lose\">behind 0.60\u{a0}×</span>"), "{shown}");
        assert!(shown.contains("<span class=\"win\">ahead 3.00\u{a0}×</span>"), "{shown}");
        assert!(shown.contains("<span class=\"lose\">Warning: </span>the machine had something else to do"));
        assert!(
            shown.contains("@media print")
                && shown.contains("@media screen and (prefers-color-scheme: dark)")
        );
        let alone = page(&measured::document(&reports[..1])).unwrap();
        assert!(
            !alone.contains("behind") && !alone.contains("ahead"),
            "with nothing to compare there is none"
        );
    }
}
