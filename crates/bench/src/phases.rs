//! Collects the results of phases into a report.

use crate::job::{Group, Step};
use crate::result::{GroupReport, Machine, PhaseReport, Report, Run, SCHEMA};
use crate::settings::Settings;
use crate::stats::Measured;

/// The phases so far, each with its repeats.
#[derive(Debug, Default)]
pub(crate) struct Phases(Vec<PhaseReport>);

impl Phases {
    /// Adds one repeat of a phase.
    pub(crate) fn add(&mut self, step: &Step, name: String, measured: &Measured) {
        let run = Run::new(measured);
        if let Some(phase) = self.0.iter_mut().find(|phase| phase.name == name) {
            phase.runs.push(run);
            return;
        }
        let group = |group: &Group| GroupReport { pattern: group.pattern, options: group.options.clone() };
        let groups = step.groups.iter().map(group).collect();
        self.0.push(PhaseReport { name, groups, runs: vec![run] });
    }

    /// Returns the report on all phases.
    pub(crate) fn report(self, settings: &Settings, started: u64) -> Report {
        Report {
            schema: SCHEMA,
            command: settings.command.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started,
            target: settings.target.to_string(),
            nfs: settings.nfs,
            label: settings.label.clone(),
            machine: Machine::this(),
            agents: Vec::new(),
            threads: settings.threads,
            verified: settings.verify || settings.state.is_some(),
            caches_dropped: settings.drop_caches,
            phases: self.0,
        }
    }
}
