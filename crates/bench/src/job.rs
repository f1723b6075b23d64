//! The parts of a run: steps one after the other, and in each step groups of clients at one time.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::engine::MAX_DEPTH;
use crate::options::{Options, Pattern};

/// Duration of a step without an end of its own, in seconds.
const SECONDS: f64 = 10.0;

/// A run, as given in a job file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Steps in their order.
    pub steps: Vec<Step>,
}

/// Groups of clients that work at one time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name in reports and comparisons; if absent, the patterns joined by `+`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Duration in seconds. If absent, sequential patterns pass through their data once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Groups of clients.
    pub groups: Vec<Group>,
}

/// Clients with one pattern and one set of options.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Pattern of the clients.
    pub pattern: Pattern,
    /// Options of the clients.
    #[serde(default)]
    pub options: Options,
}

impl Job {
    /// Reads a job file.
    ///
    /// # Errors
    /// The file cannot be read, or its values contradict each other.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("the job file {} cannot be read", path.display()))?;
        let job: Self = serde_json::from_str(&text)
            .with_context(|| format!("the job file {} cannot be parsed", path.display()))?;
        job.check().with_context(|| format!("the job file {} is not valid", path.display()))?;
        Ok(job)
    }

    /// Returns a job with one step per pattern, all with these options.
    ///
    /// # Errors
    /// The options do not fit a pattern.
    pub fn of_patterns(patterns: &[Pattern], options: &Options, seconds: Option<f64>) -> Result<Self> {
        let steps = patterns.iter().map(|pattern| {
            let groups = vec![Group { pattern: *pattern, options: options.clone() }];
            Step { name: None, seconds, groups }
        });
        let job = Self { steps: steps.collect() };
        job.check()?;
        Ok(job)
    }

    /// Refuses a job that cannot be run or measured. The error is one sentence with the remedy.
    pub(crate) fn check(&self) -> Result<()> {
        if self.steps.is_empty() {
            bail!("the job has no steps, so there is nothing to do; name a pattern, such as randread");
        }
        for step in &self.steps {
            if step.groups.is_empty() {
                bail!("the step {} has no groups", step.name());
            }
            if step.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds < 1e7)) {
                bail!("the seconds of the step {} must be a positive number", step.name());
            }
            for group in &step.groups {
                group.options.check(group.pattern)?;
                if group.options.depth > MAX_DEPTH {
                    bail!("--depth {} is too large; use at most {MAX_DEPTH}", group.options.depth);
                }
                if step.groups.len() > 1 && group.pattern == Pattern::Meta {
                    bail!("the pattern meta has phases of its own and cannot run beside another group");
                }
                let rate = |group: &Group| group.options.rate.is_some();
                if step.groups.len() > 1 && rate(group) {
                    bail!("a rate needs a step of its own: {} has several groups", step.name());
                }
            }
        }
        Ok(())
    }
}

impl Step {
    /// Returns the name in reports and comparisons.
    #[must_use]
    pub fn name(&self) -> String {
        let patterns: Vec<String> = self.groups.iter().map(|group| group.pattern.to_string()).collect();
        self.name.clone().unwrap_or_else(|| patterns.join("+"))
    }

    /// Returns the seconds after which no new operation begins; `None` if every group has an end of its own.
    #[must_use]
    pub fn limit(&self) -> Option<f64> {
        let endless = |group: &Group| {
            let own_end = group.pattern.is_sequential() || group.pattern == Pattern::Meta;
            !own_end && group.options.count.is_none()
        };
        self.seconds.or_else(|| self.groups.iter().any(endless).then_some(SECONDS))
    }

    /// Returns the operations per second over all clients, if a rate is set.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.groups.iter().find_map(|group| group.options.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(text: &str) -> Result<Job> {
        let job: Job = serde_json::from_str(text)?;
        job.check()?;
        Ok(job)
    }

    #[test]
    fn a_job_file_is_read() {
        let job = job(r#"{"steps": [
                {"name": "mix", "seconds": 3, "groups": [
                    {"pattern": "randread", "options": {"clients": 4, "depth": 8}},
                    {"pattern": "seqwrite", "options": {"record": "1M"}}]},
                {"groups": [{"pattern": "meta"}]}]}"#)
        .unwrap();
        assert_eq!(job.steps[0].name(), "mix");
        assert_eq!(job.steps[0].limit(), Some(3.0));
        assert_eq!(job.steps[1].name(), "meta");
        assert_eq!(job.steps[1].limit(), None);
    }

    #[test]
    fn jobs_that_do_not_work_are_refused() {
        for (text, reason) in [
            (r#"{"steps": []}"#, "nothing to do"),
            (r#"{"steps": [{"groups": []}]}"#, "no groups"),
            (r#"{"steps": [{"groups": [{"pattern": "randread"}], "seconds": -1}]}"#, "positive"),
            (r#"{"steps": [{"groups": [{"pattern": "randread"}, {"pattern": "meta"}]}]}"#, "beside"),
            (r#"{"steps": [{"groups": [{"pattern": "sideread"}]}]}"#, "sideread"),
            (r#"{"steps": [{"groups": [{"pattern": "randread", "options": {"depth": 5000}}]}]}"#, "--depth"),
        ] {
            let error = format!("{:#}", job(text).unwrap_err());
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn the_baseline_is_of_its_job() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/baselines");
        let job = Job::load(&folder.join("job.json")).unwrap();
        let report = crate::result::Report::load(&folder.join("loopback-2-cores.json")).unwrap();
        let measured = |step: &Step| report.phases.iter().any(|phase| phase.name.starts_with(&step.name()));
        assert!(job.steps.iter().all(measured));
        assert!(report.phases.iter().all(|phase| phase.runs.len() == 5));
    }

    #[test]
    fn random_patterns_end_by_themselves() {
        let job =
            Job::of_patterns(&[Pattern::Seqwrite, Pattern::Randread], &Options::default(), None).unwrap();
        assert_eq!(job.steps[0].limit(), None);
        assert_eq!(job.steps[1].limit(), Some(10.0));
    }
}
