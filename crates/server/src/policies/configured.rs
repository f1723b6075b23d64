//! The rules of the configuration: `policy` of each `[[export]]`, and each `[[policy]]`.
//!
//! A `[[policy]]` is for whatever has its path. Clients can rename the file or directory, and make another one with the
//! path. While nothing has the path, the rule follows the file or directory that had the path last. The file
//! `policy-paths.json` of the state directory remembers that one over a restart.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_config::{Export, PathPolicy, Settings};
use forebay_control::Severity;
use forebay_vfs::PolicyRoot;

use super::Policies;
use super::file::{Record, read, write};

/// The time between two looks at the paths of the rules.
const TURN: Duration = Duration::from_secs(2);
/// The file of the state directory with the rules of paths, and the files and directories that have them.
const PATHS: &str = "policy-paths.json";

/// The policies that the configuration has.
pub(super) struct Wanted {
    exports: Vec<Export>,
    paths: Vec<PathPolicy>,
    /// The rules of paths as the state directory has them.
    remembered: Vec<Record>,
}

impl Wanted {
    pub(super) fn of(settings: &Settings) -> Self {
        let (exports, paths) = (settings.exports.clone(), settings.policies.clone());
        Wanted { exports, paths, remembered: Vec::new() }
    }
}

/// The rules of the configuration, by the files and directories that they are for now.
#[derive(Clone, Default)]
pub(super) struct Configured {
    /// The rules with a file or directory: those of exports first.
    pub(super) rules: Vec<Record>,
    /// The policies whose paths nothing has or had.
    pub(super) absent: Vec<PathPolicy>,
}

impl Policies {
    /// Puts the rules of the configuration in force at the start.
    pub(super) fn put_configured_in_force(&self) {
        // Without the file a rule whose path is gone has to wait until something has the path.
        self.wanted.lock().remembered = read(&self.file.with_file_name(PATHS)).unwrap_or_else(|error| {
            self.warn(format!("Directories of [[policy]] that were renamed cannot be found: {error}"));
            Vec::new()
        });
        self.find(true);
    }

    /// Starts the thread that looks at the paths of the rules.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn follow_paths(self: &Arc<Self>) -> io::Result<()> {
        let policies = Arc::downgrade(self);
        // A file system that does not answer may hold the thread, so nothing waits for its end.
        let follow = move || {
            while let Some(policies) = policies.upgrade() {
                policies.find(false);
                drop(policies);
                std::thread::sleep(TURN);
            }
        };
        std::thread::Builder::new().name("forebay-paths".into()).spawn(follow).map(drop)
    }

    /// Puts the policies of a configuration that was read again in force.
    pub(crate) fn reload(&self, settings: &Settings) {
        {
            let mut wanted = self.wanted.lock();
            let remembered = std::mem::take(&mut wanted.remembered);
            *wanted = Wanted { remembered, ..Wanted::of(settings) };
        }
        self.find(true);
    }

    /// Finds the files and directories of the configured rules, and puts what changed in force. With `tell`, events say
    /// which rules hold for nothing, or for something that was renamed.
    fn find(&self, tell: bool) {
        let mut wanted = self.wanted.lock();
        if wanted.paths.is_empty() && !tell {
            return;
        }
        let of_exports = wanted.exports.iter().filter_map(|export| self.rule_of_export(export));
        let mut new = Configured { rules: of_exports.collect(), absent: Vec::new() };
        let of_paths = self.rules_of_paths(&wanted, &mut new.absent, tell);
        new.rules.extend(of_paths.iter().cloned());
        let old = std::mem::replace(&mut *self.configured.lock(), new.clone());
        if old.rules != new.rules || tell {
            self.put_in_force(&self.records.lock());
            let lost = old.rules.iter().filter(|old| !new.rules.contains(old));
            let gained = new.rules.iter().filter(|new| !old.rules.contains(new));
            for changed in lost.chain(gained) {
                self.vfs.queue_policies(&changed.root);
            }
        }
        if wanted.remembered != of_paths {
            if let Err(error) = write(&self.file.with_file_name(PATHS), &of_paths) {
                self.warn(format!(
                    "Cannot write {PATHS}: {error}. A directory of a [[policy]] that is renamed loses its policy at the next start."
                ));
            }
            wanted.remembered = of_paths;
        }
    }

    fn rule_of_export(&self, export: &Export) -> Option<Record> {
        let served = self.vfs.exports().iter().find(|served| served.id == export.id)?;
        let root = self.vfs.export_policy_root(served)?;
        Some(Record { root, path: export.path.clone(), rule: export.policy })
    }

    /// Returns the rules of paths that are for something. Adds the other policies to `absent`.
    fn rules_of_paths(&self, wanted: &Wanted, absent: &mut Vec<PathPolicy>, tell: bool) -> Vec<Record> {
        let look = |wanted: &PathPolicy| self.vfs.policy_roots(&wanted.path).map(first);
        let found: Vec<_> = wanted.paths.iter().map(|wanted| (wanted, look(wanted))).collect();
        let has_path: Vec<_> = found.iter().filter_map(|(_, found)| found.as_ref().ok()?.clone()).collect();
        let mut rules = Vec::new();
        for (wanted_policy, found) in found {
            let PathPolicy { path, policy } = wanted_policy;
            let last = || {
                let known = wanted.remembered.iter().find(|known| known.path == *path)?;
                let elsewhere = self.vfs.policy_path(&known.root, &known.path).ok()?;
                (!has_path.contains(&known.root)).then(|| (known.root.clone(), elsewhere))
            };
            let why = match found {
                Ok(Some(root)) => {
                    rules.push(Record { root, path: path.clone(), rule: *policy });
                    continue;
                }
                Ok(None) => format!("{} is not served", path.display()),
                Err(error) => error.to_string(),
            };
            if let Some((root, elsewhere)) = last() {
                rules.push(Record { root, path: path.clone(), rule: *policy });
                if tell {
                    self.tell(&format!(
                        "{}, which has a [[policy]], is {} now; it keeps the policy until something else has the path",
                        path.display(),
                        elsewhere.display()
                    ));
                }
                continue;
            }
            if tell {
                self.warn(format!("A [[policy]] holds for nothing until something has its path: {why}"));
            }
            absent.push(wanted_policy.clone());
        }
        rules
    }

    fn warn(&self, message: String) {
        self.events.add(Severity::Warning, "policy", message, &[]);
    }
}

/// Returns the file or directory itself of those that `policy_roots` has found.
fn first(roots: Vec<PolicyRoot>) -> Option<PolicyRoot> {
    roots.into_iter().next()
}
