//! Requests of clients minus requests to disks over time (the published figure 14): the requests that the disks never
//! saw.

use super::cell::Cell;
use super::storage::DiskSample;
use super::system::System;
use crate::report::charts::short;
use crate::report::document::{Part, Section, Span, Table, text};
use crate::report::measured::grouped;
use crate::report::plot::{Line, Plot, Point};
use crate::report::scale::Scale;
use crate::result::Run;

/// The number of requests of clients, and of requests to the disks, in one second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Second {
    clients: f64,
    disks: f64,
}

/// Returns the number of requests to the disks until a moment, interpolated between two samples.
fn until(samples: &[DiskSample], time: f64) -> Option<f64> {
    let after = samples.iter().position(|sample| sample.time >= time)?;
    let (before, after) = (samples.get(after.checked_sub(1)?)?, samples[after]);
    let share = (time - before.time) / (after.time - before.time);
    let (from, to) = (before.requests as f64, after.requests as f64);
    Some(from + (to - from) * share)
}

/// Returns the whole seconds of a run.
fn seconds(run: &Run, samples: &[DiskSample]) -> Vec<Second> {
    let whole = run.series.len().saturating_sub(1);
    let second = |(number, had): (usize, &crate::result::SecondReport)| {
        let start = run.began + number as f64;
        let disks = until(samples, start + 1.0)? - until(samples, start)?;
        Some(Second { clients: had.operations as f64, disks })
    };
    run.series[..whole].iter().enumerate().map_while(second).collect()
}

/// Returns a plot of one value over the seconds of every system.
fn plot(title: &str, seconds: &[(System, Vec<Second>)], value: fn(&Second) -> f64) -> Plot {
    let lines: Vec<Line> = seconds
        .iter()
        .map(|(system, seconds)| {
            let color = System::ALL.iter().position(|known| known == system).unwrap_or_default();
            let points = seconds.iter().enumerate();
            let points =
                points.map(|(number, second)| Point::new(number as f64 + 0.5, value(second).max(0.0)));
            Line { label: system.name().to_owned(), color, points: points.collect(), marks: false }
        })
        .collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|point| point.y).fold(10.0, f64::max);
    let last = points().map(|point| point.x + 0.5).fold(1.0, f64::max);
    Plot {
        title: title.to_owned(),
        x_label: "seconds since the start",
        y_label: "requests/s".to_owned(),
        x: Scale::up_to(last, short),
        y: Scale::linear(most, short),
        lines,
    }
}

/// Returns the section, if any system's disks were recorded.
pub(super) fn section(cells: &[Cell]) -> Option<Section> {
    let watched = System::ALL.into_iter().filter_map(|system| {
        let cell = cells.iter().find(|cell| cell.key.system == system && !cell.disk.is_empty())?;
        let run = cell.report.phases.first()?.runs.first()?;
        Some((system, seconds(run, &cell.disk))).filter(|(_, seconds)| !seconds.is_empty())
    });
    let watched: Vec<(System, Vec<Second>)> = watched.collect();
    if watched.is_empty() {
        return None;
    }
    let rows = watched.iter().map(|(system, seconds)| {
        let mean = |value: fn(&Second) -> f64| seconds.iter().map(value).sum::<f64>() / seconds.len() as f64;
        let (asked, reached) = (mean(|second| second.clients), mean(|second| second.disks));
        vec![
            Span::from(system.name()),
            Span::from(grouped(asked)),
            Span::from(grouped(reached)),
            Span::from(signed(asked - reached)),
        ]
    });
    let plots = vec![
        plot("requests that no disk saw: clients - disks", &watched, |second| second.clients - second.disks),
        plot("requests to the disks", &watched, |second| second.disks),
    ];
    let head = ["mean of the seconds", "clients, requests/s", "disks, requests/s", "clients - disks"];
    let said = text![
        "Half reads, half stable writes of 4 KiB at random places, from an empty cache; what the kernel's block device counts is \
         subtracted. Where the disks do more than clients asked for (journals, write-back of earlier data), the first plot \
         stays at zero and the table tells by how much."
    ];
    let parts = vec![Part::Text(said), Part::Plots(plots), Part::Table(Table::new(&head, rows.collect()))];
    Some(Section::new("Figure 14: cache I/O minus disk I/O over time", parts))
}

fn signed(value: f64) -> String {
    if value < 0.0 { format!("-{}", grouped(-value)) } else { grouped(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_interpolated() {
        let sample = |time: f64, requests: u64| DiskSample { time, requests };
        let samples = [sample(10.0, 100), sample(12.0, 300)];
        assert_eq!(until(&samples, 11.0), Some(200.0));
        assert_eq!(until(&samples, 12.0), Some(300.0));
        assert_eq!((until(&samples, 9.0), until(&samples, 12.1)), (None, None));
    }
}
