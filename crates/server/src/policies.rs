//! Policies: what is cached how. Rules come from the configuration (`configured.rs`) and from `forebay policy set`.
//!
//! The rules of the command are in the file `policies.json` of the state directory. They are about inodes of the served
//! directories, so they stay when the pool is replaced.

mod configured;
mod file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_config::{DirtyTime, Keep, Mode, Policy, Priority, Settings, ShareSize, Streams};
use forebay_control::{
    Chosen, EventLog, PolicyInForce, PolicyReport, PolicyRequest, PolicyRule, PolicySource, Severity,
    ShareInForce,
};
use forebay_engine::Engine;
use forebay_engine::buffer::BLOCK;
use forebay_vfs::{InspectError, PolicyRoot, PolicySettings, Vfs};
use rustix::io::Errno;

use self::configured::{Configured, Wanted};
use self::file::{Record, read, write};
use crate::cache::{config_mode, engine_mode};
use crate::in_time::{ASK_AGAIN, in_time, walk_in_time};

/// The highest number of shares since the start, and one more.
const MOST_SHARES: u16 = forebay_engine::Policy::SHARES;

/// The place of a look at the paths of all rules.
const RULED: &str = "a path with a rule";

/// The policies of a server with a cache.
pub(crate) struct Policies {
    vfs: Arc<Vfs>,
    engine: Arc<Engine>,
    events: Arc<EventLog>,
    file: PathBuf,
    /// The rules of the command, in the order of their making.
    records: Mutex<Vec<Record>>,
    /// The policies that the configuration has.
    wanted: Mutex<Wanted>,
    /// The rules of the configuration in force.
    configured: Mutex<Configured>,
    /// The roots of rules with a share since the start. The share of the first has number 1.
    shares: Mutex<Vec<PolicyRoot>>,
}

impl Policies {
    /// Puts the rules of the configuration and of the state directory in force, before clients are served.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is of a later version. A thread cannot be started.
    pub(crate) fn open(
        settings: &Settings,
        (vfs, engine): (&Arc<Vfs>, &Arc<Engine>),
        events: &Arc<EventLog>,
    ) -> io::Result<Arc<Self>> {
        let file = settings.state_dir.join("policies.json");
        let (vfs, engine, events) = (vfs.clone(), engine.clone(), events.clone());
        let records = Mutex::new(read(&file)?);
        let (wanted, configured) = (Mutex::new(Wanted::of(settings)), Mutex::default());
        let shares = Mutex::default();
        let policies = Arc::new(Policies { vfs, engine, events, file, records, wanted, configured, shares });
        policies.put_configured_in_force();
        policies.vfs.start_policies()?;
        policies.follow_paths()?;
        Ok(policies)
    }

    /// Gives the rules to the file system layer. For a directory, rules of the command come before the configuration.
    fn put_in_force(&self, records: &[Record]) {
        let mut rules: Vec<(PolicyRoot, Policy)> = Vec::new();
        for record in records.iter().chain(&self.configured.lock().rules) {
            match rules.iter_mut().find(|(root, _)| *root == record.root) {
                Some((_, rule)) => {
                    let mode = rule.mode.max(record.rule.mode);
                    *rule = Policy { mode, ..rule.or(record.rule) };
                }
                None => rules.push((record.root.clone(), record.rule)),
            }
        }
        let rules = rules.into_iter().filter(|(_, rule)| !rule.is_empty());
        let rules: Vec<_> = rules.collect();
        self.set_shares(&rules);
        let share = |root: &PolicyRoot, rule: &Policy| rule.has_share().then(|| self.share_number(root));
        let rules = rules.iter().map(|(root, rule)| {
            let settings = PolicySettings { share: share(root, rule), ..settings(*rule) };
            (root.clone(), settings)
        });
        self.vfs.set_policies(&rules.collect::<Vec<_>>());
    }

    /// Gives the limits of shares to the engine. The share of a rule that is gone has none.
    fn set_shares(&self, rules: &[(PolicyRoot, Policy)]) {
        for (root, rule) in rules.iter().filter(|(_, rule)| rule.has_share()) {
            let min = rule.cache_min.map_or(0, ShareSize::bytes);
            self.engine.set_share(self.share_number(root), min, rule.cache_max.map(ShareSize::bytes));
        }
        let known = self.shares.lock().clone();
        for (number, root) in (1..MOST_SHARES).zip(&known) {
            if !rules.iter().any(|(other, rule)| other == root && rule.has_share()) {
                self.engine.set_share(number, 0, None);
            }
        }
    }

    /// Returns the number of the share of a rule; 0, for no share, once there were too many since the start.
    fn share_number(&self, root: &PolicyRoot) -> u16 {
        let mut shares = self.shares.lock();
        let at = shares.iter().position(|known| known == root).unwrap_or_else(|| {
            if shares.len() + 1 < usize::from(MOST_SHARES) {
                shares.push(root.clone());
                shares.len() - 1
            } else {
                shares.len()
            }
        });
        u16::try_from(at + 1).unwrap_or(0) % MOST_SHARES
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// A sentence: the path is not served, or the state directory cannot be written. Nothing has changed then.
    pub(crate) fn answer(self: &Arc<Self>, request: PolicyRequest) -> Result<PolicyReport, String> {
        match request {
            PolicyRequest::Show { path } => {
                let place = path.as_ref().map_or(RULED.into(), |path| path.display().to_string());
                let policies = self.clone();
                in_time(&place, ASK_AGAIN, move || match path {
                    Some(path) => policies.show(&policies.named(&path).map_err(|error| error.to_string())?.0),
                    None => Ok(policies.report(policies.all(), None)),
                })?
            }
            PolicyRequest::Set { path, rule } => self.set(&path, rule),
            PolicyRequest::Unset { path } => self.unset(&path),
        }
    }

    /// Adds `rule` to the rule of a path, durably, and applies it to the files below. Returns the rules that hold for
    /// the path then.
    fn set(self: &Arc<Self>, path: &Path, rule: Policy) -> Result<PolicyReport, String> {
        let (path, roots) = self.found(path)?.map_err(|error| error.to_string())?;
        let path = path.as_path();
        let root = roots.into_iter().next().ok_or_else(|| format!("{} is not served", path.display()))?;
        self.change(|records| {
            let path = path.to_owned();
            match records.iter_mut().find(|record| record.root == root) {
                Some(record) => (record.path, record.rule) = (path, rule.or(record.rule)),
                None => records.push(Record { root: root.clone(), path, rule }),
            }
            let new = records.iter().find(|record| record.root == root);
            new.map_or(Ok(()), |record| record.rule.check_share())
        })?;
        self.tell(&format!("the policy of {} is {} now", path.display(), described(rule)));
        self.apply(&root, path)?;
        self.show_in_time(path)
    }

    /// Removes the rule of a path, durably, also if the path is gone. Fails if the rule comes from the configuration.
    fn unset(self: &Arc<Self>, path: &Path) -> Result<PolicyReport, String> {
        let (path, roots) = self.found(path)?.unwrap_or_else(|_| (path.to_owned(), Vec::new()));
        let (path, root) = (path.as_path(), roots.into_iter().next());
        // A path that is gone names the rule by its last known path. The file system is asked without the lock.
        let mut named = self.records.lock().clone();
        named.retain(|record| record.path == path && self.vfs.policy_path(&record.root, path).is_err());
        let is_gone = |record: &Record| named.iter().any(|gone| gone.root == record.root);
        let mut removed = None;
        self.change(|records| {
            let own = records.iter().position(|record| root.as_ref() == Some(&record.root));
            let at = own.or_else(|| records.iter().position(is_gone)).ok_or_else(|| {
                format!(
                    "{} has no rule of its own; `forebay policy show` lists the rules, and rules of the configuration are changed \
                     there",
                    path.display()
                )
            })?;
            removed = Some(records.remove(at).root);
            Ok(())
        })?;
        self.tell(&format!("the policy of {} is removed", path.display()));
        if let Some(root) = root.filter(|root| removed.as_ref() == Some(root)) {
            self.apply(&root, path)?;
            return self.show_in_time(path);
        }
        let policies = self.clone();
        in_time(RULED, ASK_AGAIN, move || policies.report(policies.all(), None))
    }

    /// Returns the result of [`Policies::show`].
    ///
    /// # Errors
    /// A sentence: the path is not served, or the file system does not answer.
    fn show_in_time(self: &Arc<Self>, path: &Path) -> Result<PolicyReport, String> {
        let (policies, asked) = (self.clone(), path.to_owned());
        in_time(&path.display().to_string(), ASK_AGAIN, move || policies.show(&asked))?
    }

    /// Returns a path without symbolic links, and the directories whose rules hold for it, the nearest first.
    fn named(&self, path: &Path) -> Result<(PathBuf, Vec<PolicyRoot>), InspectError> {
        let found = self.vfs.policy_roots(path);
        let Err(error) = found else { return found.map(|roots| (path.to_owned(), roots)) };
        match std::fs::canonicalize(path) {
            Ok(real) if real != path => self.vfs.policy_roots(&real).map(|roots| (real, roots)),
            Err(real) => match (error, Errno::from_io_error(&real)) {
                // A symbolic link may lead nowhere.
                (InspectError::System(shown, _), Some(errno)) => {
                    Err(InspectError::System(shown, errno.into()))
                }
                (error, _) => Err(error),
            },
            Ok(_) => Err(error),
        }
    }

    /// Returns the result of [`Policies::named`].
    ///
    /// # Errors
    /// A sentence: the file system does not answer. The inner error is about the path.
    fn found(
        self: &Arc<Self>,
        path: &Path,
    ) -> Result<Result<(PathBuf, Vec<PolicyRoot>), InspectError>, String> {
        let (policies, asked) = (self.clone(), path.to_owned());
        in_time(&path.display().to_string(), ASK_AGAIN, move || policies.named(&asked))
    }

    /// Changes the rules: in the file first, then in force.
    fn change(&self, change: impl FnOnce(&mut Vec<Record>) -> Result<(), String>) -> Result<(), String> {
        let mut records = self.records.lock();
        let mut new = records.clone();
        change(&mut new)?;
        write(&self.file, &new)
            .map_err(|error| format!("cannot write {}: {error}; nothing has changed", self.file.display()))?;
        *records = new;
        self.put_in_force(&records);
        Ok(())
    }

    /// Tells the engine about the files below a rule that changed.
    fn apply(&self, root: &PolicyRoot, path: &Path) -> Result<(), String> {
        let (vfs, root) = (self.vfs.clone(), root.clone());
        let applied = walk_in_time(
            &path.display().to_string(),
            |_| (),
            move |walk| vfs.apply_policies(&root, walk).map_err(|error| error.to_string()),
        );
        applied.and_then(|applied| applied).map_err(|error| {
            format!(
                "the rule for {} is in force, but not all files could be looked at: {error}; they follow when they are used",
                path.display()
            )
        })
    }

    fn tell(&self, message: &str) {
        self.events.add(Severity::Info, "policy", message.to_owned(), &[]);
    }

    /// Returns the rules that hold for a path, the nearest first, and the policy that follows.
    fn show(&self, path: &Path) -> Result<PolicyReport, String> {
        let in_force = self.in_force(path)?;
        let rules = self.holding(path)?;
        Ok(self.report(rules, Some(in_force)))
    }

    /// Returns the policy of a path, with the reason for each part.
    ///
    /// # Errors
    /// A sentence: the path is not served.
    pub(crate) fn in_force(&self, path: &Path) -> Result<PolicyInForce, String> {
        let rules = self.holding(path)?;
        Ok(PolicyInForce {
            cache: chosen(&rules, |rule| rule.cache, Keep::Normal),
            priority: chosen(&rules, |rule| rule.priority, Priority::Normal),
            streams: chosen(&rules, |rule| rule.streams, Streams::Past),
            mode: least_cached(&rules, config_mode(self.engine.effective_mode())),
            dirty_time: chosen(&rules, |rule| rule.dirty_time, self.usual_dirty_time()),
            share: self.share_in_force(path, &rules),
        })
    }

    /// Returns the share of the nearest rule that has one.
    fn share_in_force(&self, path: &Path, rules: &[PolicyRule]) -> Option<ShareInForce> {
        let nearest = rules.iter().find(|rule| rule.rule.has_share())?;
        let here = rules.iter().filter(|rule| rule.path == nearest.path);
        let rule = here.fold(Policy::default(), |rule, next| rule.or(next.rule));
        let roots = self.vfs.policy_roots(path).ok()?;
        let shares = self.shares.lock().clone();
        let root = roots.iter().find(|root| {
            shares.contains(root)
                && self.vfs.policy_path(root, &nearest.path).is_ok_and(|path| path == nearest.path)
        })?;
        Some(ShareInForce {
            min_bytes: rule.cache_min.map(ShareSize::bytes),
            max_bytes: rule.cache_max.map(ShareSize::bytes),
            held_bytes: self.engine.share_held(self.share_number(root)),
            source: nearest.source,
            path: nearest.path.clone(),
        })
    }

    fn usual_dirty_time(&self) -> DirtyTime {
        DirtyTime::from_seconds(self.engine.dirty_time().as_secs().try_into().unwrap_or(u32::MAX))
    }

    /// Returns the rules that hold for a path, the nearest directory first; at one directory the command comes before
    /// the configuration.
    fn holding(&self, path: &Path) -> Result<Vec<PolicyRule>, String> {
        let roots = self.vfs.policy_roots(path).map_err(|error| error.to_string())?;
        let (records, configured) = (self.records.lock().clone(), self.configured.lock().rules.clone());
        let about = |root: &PolicyRoot| {
            let of = |list: &[Record], source| {
                let found = list.iter().find(|record| record.root == *root && !record.rule.is_empty());
                found.map(|record| self.shown(record, source))
            };
            [of(&records, PolicySource::Command), of(&configured, PolicySource::Configuration)]
        };
        Ok(roots.iter().flat_map(about).flatten().collect())
    }

    /// Returns all rules: those of the configuration, then those of the command.
    fn all(&self) -> Vec<PolicyRule> {
        let (records, configured) = (self.records.lock().clone(), self.configured.lock().clone());
        let of_file = configured.rules.iter().filter(|record| !record.rule.is_empty());
        let of_file = of_file.map(|record| self.shown(record, PolicySource::Configuration));
        let absent = configured.absent.into_iter().map(|absent| PolicyRule {
            path: absent.path,
            rule: absent.policy,
            source: PolicySource::Configuration,
            exists: false,
        });
        let records = records.iter().map(|record| self.shown(record, PolicySource::Command));
        of_file.chain(absent).chain(records).collect()
    }

    /// Returns a rule for the report, with the present path of its directory, or the last known path if the directory
    /// is gone.
    fn shown(&self, record: &Record, source: PolicySource) -> PolicyRule {
        let path = self.vfs.policy_path(&record.root, &record.path);
        let exists = path.is_ok();
        let path = path.unwrap_or_else(|_| record.path.clone());
        PolicyRule { path, rule: record.rule, source, exists }
    }

    /// Returns the answer to a policy request, with the use of the room for pinned data in bytes.
    fn report(&self, rules: Vec<PolicyRule>, in_force: Option<PolicyInForce>) -> PolicyReport {
        let usage = self.engine.usage();
        PolicyReport {
            rules,
            in_force,
            pinned_bytes: usage.pinned_blocks * BLOCK as u64,
            pin_limit_bytes: self.engine.pin_limit() * BLOCK as u64,
            high_bytes: usage.high_blocks * BLOCK as u64,
            high_limit_bytes: self.engine.high_limit() * BLOCK as u64,
        }
    }
}

/// Returns a part of the policy: that of the nearest rule with this part.
fn chosen<T>(rules: &[PolicyRule], part: impl Fn(&Policy) -> Option<T>, default: T) -> Chosen<T> {
    let found = rules.iter().find_map(|rule| Some((part(&rule.rule)?, rule)));
    match found {
        Some((value, rule)) => Chosen { value, source: rule.source, path: Some(rule.path.clone()) },
        None => Chosen { value: default, source: PolicySource::Default, path: None },
    }
}

/// Returns the mode in force: the server's, or that of the nearest rule among those that use the cache least.
fn least_cached(rules: &[PolicyRule], server: Mode) -> Chosen<Mode> {
    let modes = rules.iter().rev().filter_map(|rule| Some((rule.rule.mode?, rule)));
    match modes.max_by_key(|(mode, _)| *mode).filter(|(mode, _)| *mode > server) {
        Some((value, rule)) => Chosen { value, source: rule.source, path: Some(rule.path.clone()) },
        None => Chosen { value: server, source: PolicySource::Server, path: None },
    }
}

/// Returns the rule for an event.
fn described(rule: Policy) -> String {
    let parts = [
        rule.cache.map(|keep| format!("cache {keep}")),
        rule.priority.map(|priority| format!("priority {priority}")),
        rule.streams.map(|way| format!("streams {way}")),
        rule.mode.map(|mode| format!("mode {mode}")),
        rule.dirty_time.map(|time| format!("dirty time {time}")),
        rule.cache_min.map(|size| format!("cache min {size}")),
        rule.cache_max.map(|size| format!("cache max {size}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns a rule in the engine's terms. Parts that the rule leaves open stay open.
fn settings(rule: Policy) -> PolicySettings {
    PolicySettings {
        keep: rule.cache.map(|keep| match keep {
            Keep::Normal => forebay_engine::Keep::Normal,
            Keep::Pin => forebay_engine::Keep::Pin,
            Keep::Never => forebay_engine::Keep::Never,
        }),
        priority: rule.priority.map(|priority| match priority {
            Priority::Low => forebay_engine::Priority::Low,
            Priority::Normal => forebay_engine::Priority::Normal,
            Priority::High => forebay_engine::Priority::High,
        }),
        streams: rule.streams.map(|streams| match streams {
            Streams::Past => forebay_engine::Streams::Past,
            Streams::Cache => forebay_engine::Streams::Cache,
        }),
        mode: rule.mode.map(engine_mode),
        dirty_seconds: rule.dirty_time.map(DirtyTime::seconds),
        share: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_rule_with_a_part_counts() {
        let rule = |path: &str, cache, streams| PolicyRule {
            path: path.into(),
            rule: Policy { cache, streams, ..Policy::default() },
            source: PolicySource::Command,
            exists: true,
        };
        let rules =
            [rule("/a/b", None, Some(Streams::Cache)), rule("/a", Some(Keep::Pin), Some(Streams::Past))];
        let cache = chosen(&rules, |rule| rule.cache, Keep::Normal);
        assert_eq!((cache.value, cache.path), (Keep::Pin, Some("/a".into())));
        let streams = chosen(&rules, |rule| rule.streams, Streams::Past);
        assert_eq!((streams.value, streams.path), (Streams::Cache, Some("/a/b".into())));
        let with = |path, mode| PolicyRule {
            rule: Policy { mode: Some(mode), ..Policy::default() },
            ..rule(path, None, None)
        };
        let rules =
            [with("/a/b", Mode::WriteThrough), with("/a", Mode::WriteAround), with("/", Mode::WriteAround)];
        let mode = least_cached(&rules, Mode::WriteBack);
        assert_eq!((mode.value, mode.path), (Mode::WriteAround, Some("/a".into())));
        let server = least_cached(&rules, Mode::PassThrough);
        assert_eq!((server.value, server.source), (Mode::PassThrough, PolicySource::Server));
        let none = chosen(&[], |rule| rule.cache, Keep::Normal);
        assert_eq!((none.value, none.source), (Keep::Normal, PolicySource::Default));
    }
}
