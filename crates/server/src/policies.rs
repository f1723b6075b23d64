//! Policies: what is cached how. Rules come from the configuration, by export, and from `forebay policy set`, by path.
//!
//! The rules of the command are in the file `policies.json` of the state directory, which is replaced atomically and
//! durably. They are about inodes of the served directories, so they stay when the pool is replaced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_common::state_file;
use forebay_config::{DirtyTime, Export, Keep, Mode, Policy, Priority, ShareSize, Streams};
use forebay_control::{
    Chosen, EventLog, PolicyInForce, PolicyReport, PolicyRequest, PolicyRule, PolicySource, Severity,
    ShareInForce,
};
use forebay_engine::Engine;
use forebay_engine::buffer::BLOCK;
use forebay_vfs::{PolicyRoot, PolicySettings, Vfs};
use serde::{Deserialize, Serialize};

use crate::cache::{config_mode, engine_mode};

/// The highest number of shares since the start, and one more.
const MOST_SHARES: u16 = forebay_engine::Policy::SHARES;
/// The version of the file. A later version is refused.
const VERSION: u32 = 1;

/// A rule that was made by `forebay policy set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The file or directory.
    #[serde(with = "text")]
    root: PolicyRoot,
    /// The last known path of it.
    path: PathBuf,
    #[serde(flatten)]
    rule: Policy,
}

#[derive(Serialize, Deserialize)]
struct Records {
    version: u32,
    rules: Vec<Record>,
}

/// The policies of a server with a cache.
pub(crate) struct Policies {
    vfs: Arc<Vfs>,
    engine: Arc<Engine>,
    events: Arc<EventLog>,
    file: PathBuf,
    /// The rules of the command, in the order of their making.
    records: Mutex<Vec<Record>>,
    /// The rules of the configuration, one for each export.
    exports: Mutex<Vec<Record>>,
    /// The roots of rules with a share since the start. The share of the first has number 1.
    shares: Mutex<Vec<PolicyRoot>>,
}

impl Policies {
    /// Puts the rules of the configuration and of the state directory in force, before clients are served.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is of a later version. A thread cannot be started.
    pub(crate) fn open(
        state_dir: &Path,
        exports: &[Export],
        (vfs, engine): (&Arc<Vfs>, &Arc<Engine>),
        events: &Arc<EventLog>,
    ) -> io::Result<Self> {
        let file = state_dir.join("policies.json");
        let (vfs, engine, events) = (vfs.clone(), engine.clone(), events.clone());
        let records = Mutex::new(read(&file)?);
        let (exports_now, shares) = (Mutex::default(), Mutex::default());
        let policies = Policies { vfs, engine, events, file, records, exports: exports_now, shares };
        policies.set_exports(exports);
        policies.vfs.start_policies()?;
        Ok(policies)
    }

    /// Puts the policies of the configuration in force. Returns the directories whose policies changed.
    fn set_exports(&self, exports: &[Export]) -> Vec<PolicyRoot> {
        let rule = |export: &Export| {
            let served = self.vfs.exports().iter().find(|served| served.id == export.id)?;
            let root = self.vfs.export_policy_root(served)?;
            Some(Record { root, path: export.path.clone(), rule: export.policy })
        };
        let new: Vec<Record> = exports.iter().filter_map(rule).collect();
        let old = std::mem::replace(&mut *self.exports.lock(), new.clone());
        self.put_in_force(&self.records.lock());
        new.into_iter().filter(|new| !old.contains(new)).map(|new| new.root).collect()
    }

    /// Puts the policies of a configuration that was read again in force.
    pub(crate) fn reload(&self, exports: &[Export]) {
        for root in self.set_exports(exports) {
            self.vfs.queue_policies(&root);
        }
    }

    /// Gives the rules to the file system layer. For a directory, rules of the command come before the configuration.
    fn put_in_force(&self, records: &[Record]) {
        let mut rules: Vec<(PolicyRoot, Policy)> = Vec::new();
        for record in records.iter().chain(self.exports.lock().iter()) {
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
    pub(crate) fn answer(&self, request: PolicyRequest) -> Result<PolicyReport, String> {
        match request {
            PolicyRequest::Show { path: None } => Ok(self.report(self.all(), None)),
            PolicyRequest::Show { path: Some(path) } => self.show(&path),
            PolicyRequest::Set { path, rule } => self.set(&path, rule),
            PolicyRequest::Unset { path } => self.unset(&path),
        }
    }

    /// Adds `rule` to the rule of a path, durably, and applies it to the files below. Returns the rules that hold for
    /// the path then.
    fn set(&self, path: &Path, rule: Policy) -> Result<PolicyReport, String> {
        let roots = self.vfs.policy_roots(path).map_err(|error| error.to_string())?;
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
        self.show(path)
    }

    /// Removes the rule of a path, durably, also if the path is gone. Fails if the rule comes from the configuration.
    fn unset(&self, path: &Path) -> Result<PolicyReport, String> {
        let root = self.vfs.policy_roots(path).ok().and_then(|roots| roots.into_iter().next());
        let mut removed = None;
        self.change(|records| {
            let own = records.iter().position(|record| root.as_ref() == Some(&record.root));
            // A path that is gone names the rule by its last known path.
            let gone = |record: &Record| {
                record.path == path && self.vfs.policy_path(&record.root, &record.path).is_err()
            };
            let at = own.or_else(|| records.iter().position(gone)).ok_or_else(|| {
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
            return self.show(path);
        }
        Ok(self.report(self.all(), None))
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
        self.vfs.apply_policies(root).map_err(|error| {
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
        let (records, exports) = (self.records.lock().clone(), self.exports.lock().clone());
        let about = |root: &PolicyRoot| {
            let of = |list: &[Record], source| {
                let found = list.iter().find(|record| record.root == *root && !record.rule.is_empty());
                found.map(|record| self.shown(record, source))
            };
            [of(&records, PolicySource::Command), of(&exports, PolicySource::Configuration)]
        };
        Ok(roots.iter().flat_map(about).flatten().collect())
    }

    /// Returns all rules: those of the configuration, then those of the command.
    fn all(&self) -> Vec<PolicyRule> {
        let (records, exports) = (self.records.lock().clone(), self.exports.lock().clone());
        let exports = exports.iter().filter(|record| !record.rule.is_empty());
        let exports = exports.map(|record| self.shown(record, PolicySource::Configuration));
        let records = records.iter().map(|record| self.shown(record, PolicySource::Command));
        exports.chain(records).collect()
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

/// Reads the rules from their file. A missing file means no rules. Fails for a damaged file, and for one of a later
/// version.
fn read(path: &Path) -> io::Result<Vec<Record>> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Some(text) = state_file::read(path)? else { return Ok(Vec::new()) };
    let broken = |error: serde_json::Error| {
        io::Error::other(format!("{} is damaged ({error}); remove it to begin without rules", path.display()))
    };
    let Versioned { version } = serde_json::from_str(&text).map_err(broken)?;
    if version != VERSION {
        let message = format!("{} is of a later version of Forebay; use that", path.display());
        return Err(io::Error::other(message));
    }
    Ok(serde_json::from_str::<Records>(&text).map_err(broken)?.rules)
}

/// Replaces the file of the rules, durably.
fn write(path: &Path, rules: &[Record]) -> io::Result<()> {
    let text = serde_json::to_string_pretty(&Records { version: VERSION, rules: rules.to_vec() })?;
    state_file::replace(path, text + "\n")
}

/// Writes the root of a rule as text.
mod text {
    use forebay_vfs::PolicyRoot;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(root: &PolicyRoot, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(root)
    }

    /// Reads a directory's identity from the text that `serialize` has written.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PolicyRoot, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom("no file or directory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_were_written_and_a_damaged_file_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policies.json");
        assert_eq!(read(&path).unwrap(), []);
        let rule = Policy { cache: Some(Keep::Pin), mode: Some(Mode::WriteAround), ..Policy::default() };
        let root = "070000000100aabbccddeeff0011".parse().unwrap();
        let record = Record { root, path: "/srv/data\n1".into(), rule };
        write(&path, std::slice::from_ref(&record)).unwrap();
        assert_eq!(read(&path).unwrap(), [record]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("later version"));
        for damaged in ["", &text[..text.len() / 2], &text.replace("0700", "zz")] {
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&path).unwrap_err().to_string().contains("damaged"), "{damaged}");
        }
    }

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
