//! The settings that change when the configuration is read again.
//!
//! The rules for clients, the certificate of TLS, the log level and the mode change in service. All other differences
//! take effect at the next start. A configuration with mistakes changes nothing.

use forebay_config::{Export, LIMITS, Settings};
use forebay_control::ReloadReport;

/// The differences between two settings.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Exports whose rules for clients or whose protection differ, by name.
    pub(crate) rules: Vec<String>,
    pub(crate) log_level: bool,
    pub(crate) mode: bool,
    /// The differences that take effect at the next start, one sentence each.
    pub(crate) at_next_start: Vec<String>,
}

impl Differences {
    /// Returns the differences between the settings in force and new settings.
    pub(crate) fn between(now: &Settings, new: &Settings) -> Self {
        let mut found = Differences {
            log_level: now.log.level != new.log.level,
            mode: now.mode != new.mode,
            ..Differences::default()
        };
        for export in &now.exports {
            match new.exports.iter().find(|new| is_same(new, export)) {
                Some(new) if (&new.clients, new.tls) != (&export.clients, export.tls) => {
                    found.rules.push(export.name.clone());
                }
                Some(_) => {}
                None => found.at_next_start.push(format!("{} is not served any more", export.path.display())),
            }
        }
        for export in new.exports.iter().filter(|new| !now.exports.iter().any(|now| is_same(now, new))) {
            found.at_next_start.push(format!("{} is served as {}", export.path.display(), export.name));
        }
        let differs = [
            ("listen", now.listen != new.listen),
            ("state_dir", now.state_dir != new.state_dir),
            ("cache", now.cache.devices != new.cache.devices),
            ("nbd", now.nbd != new.nbd),
            ("volume", now.volumes != new.volumes),
            ("cache_size", now.cache.size != new.cache.size),
            ("ram", now.cache.ram != new.cache.ram),
            ("portmap", now.portmap != new.portmap),
            ("locks", now.locks != new.locks),
            ("nfs4", now.nfs4 != new.nfs4),
            ("nfs4_delegations", now.nfs4_delegations != new.nfs4_delegations),
            ("keytab", now.takes_kerberos() && now.kerberos.keytab != new.kerberos.keytab),
            ("realms", now.takes_kerberos() && now.kerberos.realms != new.kerberos.realms),
            ("sandbox", now.sandbox != new.sandbox),
            ("log format", now.log.format != new.log.format),
        ];
        let limits = LIMITS.iter().filter(|limit| limit.show(&now.limits) != limit.show(&new.limits));
        let keys = differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key);
        let keys = keys.chain(limits.map(|limit| limit.key));
        found.at_next_start.extend(keys.map(|key| format!("`{key}` has another value")));
        found
    }

    /// Returns the settings in force afterwards: `now`, with the parts of `new` that change in service.
    pub(crate) fn apply(now: &Settings, new: &Settings) -> Settings {
        let mut applied = now.clone();
        applied.log.level = new.log.level;
        applied.mode = new.mode;
        applied.tls.clone_from(&new.tls);
        // The first rule that takes Kerberos puts these settings in force.
        if !now.takes_kerberos() {
            applied.kerberos.clone_from(&new.kerberos);
        }
        for export in &mut applied.exports {
            if let Some(new) = new.exports.iter().find(|new| is_same(new, export)) {
                export.clients.clone_from(&new.clients);
                export.tls = new.tls;
            }
        }
        applied
    }
}

/// Returns true if everything except the rules for clients and the protection is equal.
fn is_same(one: &Export, other: &Export) -> bool {
    (&one.path, &one.name, &one.aliases, one.id) == (&other.path, &other.name, &other.aliases, other.id)
}

/// Returns a report as one sentence.
pub(crate) fn described(report: &ReloadReport) -> String {
    if !report.mistakes.is_empty() {
        return format!(
            "the configuration has mistakes, and nothing has changed: {}",
            report.mistakes.join("; ")
        );
    }
    let changed = match &report.changed[..] {
        [] => "nothing has changed".to_owned(),
        changed => format!("in force now: {}", changed.join("; ")),
    };
    match &report.at_next_start[..] {
        [] => format!("the configuration was read anew: {changed}"),
        later => {
            format!("the configuration was read anew: {changed}; at the next start: {}", later.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forebay_config::{ClientRule, Flags, Squash, resolve};

    use super::*;

    fn settings(dir: &std::path::Path) -> Settings {
        let flags = Flags { dir: Some(dir.to_owned()), ..Flags::default() };
        resolve(&flags).unwrap().settings
    }

    #[test]
    fn rules_level_and_mode_change_and_all_else_waits_for_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let now = settings(dir.path());
        let mut new = now.clone();
        assert!(Differences::between(&now, &new).at_next_start.is_empty());
        new.exports[0].clients = vec![ClientRule { squash: Squash::All, ..ClientRule::default() }];
        new.log.level = forebay_config::LogLevel::Debug;
        new.mode = forebay_config::Mode::WriteThrough;
        new.exports[0].tls = forebay_config::TlsPolicy::Off;
        new.tls =
            Some(forebay_config::TlsFiles { certificate: "/c".into(), key: "/k".into(), client_ca: None });
        let found = Differences::between(&now, &new);
        assert_eq!((&found.rules[..], found.log_level, found.mode), (&["/".to_owned()][..], true, true));
        assert!(found.at_next_start.is_empty(), "{found:?}");
        assert_eq!(Differences::apply(&now, &new), new);

        new.limits.connections += 1;
        new.cache.devices = vec![PathBuf::from("/dev/x")];
        new.exports[0].path = PathBuf::from("/other");
        let found = Differences::between(&now, &new);
        assert_eq!(found.at_next_start.len(), 4, "{found:?}");
        let applied = Differences::apply(&now, &new);
        assert_eq!((applied.limits, applied.exports), (now.limits.clone(), now.exports.clone()));
    }
}
