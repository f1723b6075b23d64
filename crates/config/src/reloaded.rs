//! The result of reading the configuration again: the settings in force afterwards, and the differences.

use std::fmt;

use crate::entries::{Change, Entry, Table};
use crate::export::Export;
use crate::limits::LIMITS;
use crate::settings::{Limits, Log, Settings};

/// The settings in force after a reload, and the differences from the ones before.
#[derive(Debug, Clone, PartialEq)]
pub struct Reloaded {
    /// The settings in force.
    pub settings: Settings,
    /// Differences that are in force.
    pub in_service: Vec<Difference>,
    /// Differences that take effect at the next start.
    pub at_next_start: Vec<Difference>,
}

/// One difference between two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Table of the file.
    pub table: Table,
    /// Key and its values before and after; `None` if the whole table was added or removed.
    pub key: Option<String>,
    /// Value before; `None` if there was none.
    pub before: Option<String>,
    /// Value after; `None` if there is none.
    pub after: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.to_string();
        let gap = if table.is_empty() { "" } else { " " };
        match (&self.key, &self.before, &self.after) {
            (Some(key), before, after) => {
                let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
                write!(f, "{table}{gap}{key}: {} -> {}", shown(before), shown(after))
            }
            (None, _, Some(after)) => write!(f, "{table}: added with {after}"),
            (None, before, None) => write!(f, "{table}: removed, it had {}", before.as_deref().unwrap_or("")),
        }
    }
}

impl Settings {
    /// Returns the exports of `new` that are not among the present ones. An export whose id or directory a present one
    /// has, under another name, is none: the present one stays until the next start.
    pub fn added_exports<'a>(&self, new: &'a Settings) -> impl Iterator<Item = &'a Export> {
        let kept: Vec<_> =
            self.exports.iter().filter(|export| named_in(export, new).is_some()).cloned().collect();
        new.exports.iter().filter(move |added| {
            !kept.iter().any(|kept| kept.name == added.name || kept.id == added.id || kept.path == added.path)
        })
    }

    /// Returns the settings that are in force once `new` has been read by a server with these settings. Of the exports
    /// that are added, the server takes into service those for which `takes` returns true.
    pub fn reloaded(&self, new: &Settings, takes: impl Fn(&Export) -> bool) -> Reloaded {
        let added: Vec<_> = self.added_exports(new).filter(|export| takes(export)).cloned().collect();
        let (now, wanted) = (self.entries(), new.entries());
        let (mut in_service, mut at_next_start) = (Vec::new(), Vec::new());
        let removed =
            |table: &Table| number(table).is_some_and(|at| named_in(&self.exports[at], new).is_none());
        let mut add = |difference, change| match change {
            Change::InService => in_service.push(difference),
            Change::NeedsRestart => at_next_start.push(difference),
        };
        for table in tables(&now) {
            let (before, after) = (of(&now, table), of(&wanted, table));
            match after.is_empty() {
                true if is_export(table) && removed(table) => {
                    add(whole(table, Some(&before), None), Change::InService);
                }
                true => add(whole(table, Some(&before), None), change(&before)),
                false => differing(&before, &after).into_iter().for_each(|(it, change)| add(it, change)),
            }
        }
        for table in tables(&wanted).into_iter().filter(|table| of(&now, table).is_empty()) {
            let after = of(&wanted, table);
            let export = number(table).filter(|_| is_export(table)).map(|at| &new.exports[at]);
            let change = match export.filter(|export| named_in(export, self).is_none()) {
                Some(export) if added.contains(export) => Change::InService,
                // The rules of an export come with it.
                Some(_) => Change::NeedsRestart,
                None => change(&after),
            };
            add(whole(table, None, Some(&after)), change);
        }
        let mut settings = self.with_changes_of(new);
        settings.exports.extend(added);
        Reloaded { settings, in_service, at_next_start }
    }

    /// Returns these settings with the parts of `new` that change in service. The literal names every field: a new
    /// field has to say here what its entry says.
    fn with_changes_of(&self, new: &Settings) -> Settings {
        let kerberos = if self.takes_kerberos() { &self.kerberos } else { &new.kerberos };
        Settings {
            listen: self.listen.clone(),
            state_dir: self.state_dir.clone(),
            mode: new.mode,
            cache: self.cache.clone(),
            exports: self
                .exports
                .iter()
                .filter(|export| named_in(export, new).is_some())
                .map(|export| export.with_changes_of(&new.exports))
                .collect(),
            volumes: self.volumes.clone(),
            nbd: self.nbd.clone(),
            portmap: self.portmap,
            locks: self.locks,
            nfs4: self.nfs4,
            nfs4_delegations: new.nfs4_delegations,
            profile: new.profile,
            kerberos: kerberos.clone(),
            idmap_domain: new.idmap_domain.clone(),
            sandbox: self.sandbox,
            tls: new.tls.clone(),
            kernel_tls: self.kernel_tls,
            http: self.http.clone(),
            notify: new.notify.clone(),
            rate_limits: new.rate_limits.clone(),
            policies: new.policies.clone(),
            limits: self.limits.with_changes_of(&new.limits),
            log: Log { level: new.log.level, format: self.log.format },
            sources: new.sources.clone(),
        }
    }
}

impl Limits {
    /// Returns these limits with those of `new` that a server in service can take over.
    fn with_changes_of(&self, new: &Limits) -> Limits {
        let mut limits = self.clone();
        for limit in LIMITS.iter().filter(|limit| limit.change == Change::InService) {
            limit.copy(new, &mut limits);
        }
        limits
    }
}

impl Export {
    /// Returns this export with the rules, the protection, the delegations and the policy of the export of the same
    /// name, if that is the same directory with the same id.
    fn with_changes_of(&self, new: &[Export]) -> Export {
        let same = |new: &&Export| (&new.path, &new.name, new.id) == (&self.path, &self.name, self.id);
        let Some(new) = new.iter().find(same) else { return self.clone() };
        Export {
            path: self.path.clone(),
            name: self.name.clone(),
            aliases: self.aliases.clone(),
            id: self.id,
            clients: new.clients.clone(),
            tls: new.tls,
            delegations: new.delegations,
            policy: new.policy,
        }
    }
}

/// Returns the export of `settings` that has the name of this one.
fn named_in<'a>(export: &Export, settings: &'a Settings) -> Option<&'a Export> {
    settings.exports.iter().find(|other| other.name == export.name)
}

/// Returns true for the table of an export, and for the tables of its rules.
fn is_export(table: &Table) -> bool {
    table.name == "export" || table.name.starts_with("export.")
}

/// Returns the number of the thing that a table, or the table that it is part of, describes.
fn number(table: &Table) -> Option<usize> {
    table.numbers.first().copied()
}

/// Returns true if two tables are those of one thing. The number may differ: it is a position in the file.
fn is_same(one: &Table, other: &Table) -> bool {
    (&one.name, &one.of) == (&other.name, &other.of)
}

/// Returns the tables of the entries in their order, each once.
fn tables(entries: &[Entry]) -> Vec<&Table> {
    let mut found: Vec<&Table> = entries.iter().map(|entry| &entry.table).collect();
    found.dedup();
    found
}

/// Returns the entries of a table.
fn of<'a>(entries: &'a [Entry], table: &Table) -> Vec<&'a Entry> {
    entries.iter().filter(|entry| is_same(&entry.table, table)).collect()
}

/// Returns the differences between the entries of one table. The entry before says when a change takes effect.
fn differing(before: &[&Entry], after: &[&Entry]) -> Vec<(Difference, Change)> {
    let mut found = Vec::new();
    for before in before {
        let after = after.iter().find(|after| after.key == before.key).and_then(|after| after.value.clone());
        if before.value != after {
            let (table, key) = (before.table.clone(), Some(before.key.clone()));
            found.push((Difference { table, key, before: before.value.clone(), after }, before.change));
        }
    }
    found
}

/// Returns the difference that a whole table was added or removed.
fn whole(table: &Table, before: Option<&[&Entry]>, after: Option<&[&Entry]>) -> Difference {
    let first = |entries: &[&Entry]| {
        let first = entries.iter().find_map(|entry| Some((&entry.key, entry.value.as_ref()?)));
        first.map(|(key, value)| format!("{key} = {value}")).unwrap_or_default()
    };
    Difference { table: table.clone(), key: None, before: before.map(first), after: after.map(first) }
}

/// Returns when all of a table takes effect: at the next start if any of its settings does.
fn change(entries: &[&Entry]) -> Change {
    let later = entries.iter().any(|entry| entry.change == Change::NeedsRestart);
    if later { Change::NeedsRestart } else { Change::InService }
}
