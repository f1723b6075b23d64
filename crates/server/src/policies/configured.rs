//! The rules of the configuration: `policy` of each `[[export]]`, and each `[[policy]]`.
//!
//! A `[[policy]]` is for whatever has its path. Clients can rename the file or directory, and make another one with the
//! path. While nothing has the path, the rule follows the file or directory that had the path last. The file
//! `policy-paths.json` of the state directory remembers that one over a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_config::{Export, PathPolicy, Settings};
use forebay_control::Severity;
use forebay_vfs::{PolicyRoot, Question, Vfs};

use super::Policies;
use super::file::{Record, read, write};

/// The time between two looks at the paths of the rules.
const TURN: Duration = Duration::from_secs(2);
/// The time that a path may take to be found before clients are served, and in service. A rule whose path takes longer
/// follows later.
const PATIENCE_AT_START: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(5);
/// The file of the state directory with the rules of paths, and the files and directories that have them.
const PATHS: &str = "policy-paths.json";

/// The policies that the configuration has.
pub(super) struct Wanted {
    exports: Vec<Export>,
    paths: Vec<Sought>,
    /// The rules of paths as the state directory has them.
    remembered: Vec<Record>,
}

/// A policy, with the question what has its path. The file system of the path may not answer.
#[derive(Clone)]
struct Sought {
    policy: PathPolicy,
    found: Arc<Question<Found>>,
}

/// The answer to the question what has a path.
#[derive(Clone)]
struct Found {
    /// The file or directory with the path, or a sentence.
    at_path: Result<PolicyRoot, String>,
    /// If nothing has the path: the file or directory that had it last, and the path that it has now.
    renamed: Option<(PolicyRoot, PathBuf)>,
}

impl Wanted {
    pub(super) fn of(settings: &Settings) -> Self {
        let sought = |policy: &PathPolicy| Sought { policy: policy.clone(), found: Arc::default() };
        let paths = settings.policies.iter().map(sought).collect();
        Wanted { exports: settings.exports.clone(), paths, remembered: Vec::new() }
    }

    /// Takes over the policies of a configuration that was read again. A question about a path that stays goes on.
    fn replace(&mut self, settings: &Settings) {
        let before = std::mem::replace(self, Self::of(settings));
        for sought in &mut self.paths {
            let known = before.paths.iter().find(|known| known.policy.path == sought.policy.path);
            sought.found = known.map_or_else(Arc::default, |known| known.found.clone());
        }
        self.remembered = before.remembered;
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
        self.look(PATIENCE_AT_START);
        self.put_found_in_force(true);
    }

    /// Starts the thread that looks at the paths of the rules.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn follow_paths(self: &Arc<Self>) -> io::Result<()> {
        let policies = Arc::downgrade(self);
        let follow = move || {
            while let Some(policies) = policies.upgrade() {
                if policies.look(TURN) {
                    policies.put_found_in_force(false);
                }
                drop(policies);
                std::thread::sleep(TURN);
            }
        };
        std::thread::Builder::new().name("forebay-paths".into()).spawn(follow).map(drop)
    }

    /// Puts the policies of a configuration that was read again in force.
    pub(crate) fn reload(&self, settings: &Settings) {
        self.wanted.lock().replace(settings);
        self.look(PATIENCE);
        self.put_found_in_force(true);
    }

    /// Looks for the files and directories of the configured rules. Returns false if there are no rules of paths.
    fn look(&self, patience: Duration) -> bool {
        let from = Instant::now();
        // A file system may not answer, so the lock is not held meanwhile.
        let (paths, remembered) = {
            let wanted = self.wanted.lock();
            (wanted.paths.clone(), wanted.remembered.clone())
        };
        let question = |sought: &Sought| {
            let (vfs, path) = (self.vfs.clone(), sought.policy.path.clone());
            let last = remembered.iter().find(|known| known.path == path).map(|known| known.root.clone());
            move || find(&vfs, &path, last)
        };
        // All questions are asked before the first answer is waited for.
        for sought in &paths {
            sought.found.begin(from.elapsed(), question(sought));
        }
        for sought in &paths {
            sought.found.ask_since(from, patience, question(sought));
        }
        !paths.is_empty()
    }

    /// Puts the rules in force for the files and directories that were found. With `tell`, events say which rules hold
    /// for nothing, or for something that was renamed. Asks no file system that may not answer.
    fn put_found_in_force(&self, tell: bool) {
        let mut wanted = self.wanted.lock();
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
        let found: Vec<_> = wanted.paths.iter().map(|sought| (&sought.policy, sought.found.last())).collect();
        let roots = found.iter().filter_map(|(_, found)| found.as_ref()?.at_path.as_ref().ok().cloned());
        let has_path: Vec<_> = roots.collect();
        let mut rules = Vec::new();
        for (policy, found) in found {
            let PathPolicy { path, policy: rule } = policy;
            let mut holds_for = |root| rules.push(Record { root, path: path.clone(), rule: *rule });
            let Some(Found { at_path, renamed }) = found else {
                if tell {
                    let path = path.display();
                    self.warn(format!(
                        "The [[policy]] of {path} holds later: its file system does not answer"
                    ));
                }
                let known = wanted.remembered.iter().find(|known| known.path == *path);
                match known.filter(|known| !has_path.contains(&known.root)) {
                    Some(known) => holds_for(known.root.clone()),
                    None => absent.push(policy.clone()),
                }
                continue;
            };
            let why = match at_path {
                Ok(root) => {
                    holds_for(root);
                    continue;
                }
                Err(why) => why,
            };
            if let Some((root, elsewhere)) = renamed.filter(|(root, _)| !has_path.contains(root)) {
                holds_for(root);
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
            absent.push(policy.clone());
        }
        rules
    }

    fn warn(&self, message: String) {
        self.events.add(Severity::Warning, "policy", message, &[]);
    }
}

/// Returns the file or directory that has a path. `last` is the one that had it last.
fn find(vfs: &Vfs, path: &Path, last: Option<PolicyRoot>) -> Found {
    let at_path = match vfs.policy_roots(path).map(|roots| roots.into_iter().next()) {
        Ok(Some(root)) => Ok(root),
        Ok(None) => Err(format!("{} is not served", path.display())),
        Err(error) => Err(error.to_string()),
    };
    let elsewhere = |root: PolicyRoot| vfs.policy_path(&root, path).ok().map(|elsewhere| (root, elsewhere));
    let renamed = last.filter(|_| at_path.is_err()).and_then(elsewhere);
    Found { at_path, renamed }
}
