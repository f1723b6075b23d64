//! The settings as a list of entries: each with its table, its key and its value as the file has them.
//!
//! [`Settings::entries`] names every field of every part, so that a new field cannot be forgotten: the compiler refuses
//! a pattern that lacks the field. `config show`, the check of a configuration and the differences of a reload use the
//! list. To add a field, add its entry here and its source in [`Reloaded`](crate::Reloaded) and
//! [`Sources`](crate::sources::Sources).

use serde::{Deserialize, Serialize};

use crate::client_rule::{ClientRule, PrivilegedPort};
use crate::export::Export;
use crate::http::Http;
use crate::limits::LIMITS;
use crate::nbd::Nbd;
use crate::notify::{Notify, NotifyWay};
use crate::path_policy::PathPolicy;
use crate::policy::Policy;
use crate::rate_limit::RateLimit;
use crate::settings::{Kerberos, Log, Settings, TlsFiles};
use crate::sources::Source;
use crate::units::{format_duration, format_size_exactly};
use crate::volume::Volume;

/// One setting under its name in the configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Table of the file.
    pub table: Table,
    /// Key in the table.
    pub key: String,
    /// Value in the syntax of TOML; `None` if the setting has no value. A value is never a secret: for a secret, the
    /// entry names the file that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Source of the value.
    pub source: Source,
    /// Moment at which another value takes effect.
    pub change: Change,
}

/// The moment at which another value of a setting takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// At a reload.
    InService,
    /// At the next start of the server.
    NeedsRestart,
}

/// A table of the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Table {
    /// Name without brackets, such as `limits` or `export.client`; empty for the keys before all tables.
    pub name: String,
    /// Number of the table among those with its name, from 0, after the numbers of the tables that it belongs to;
    /// empty for a table that exists once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numbers: Vec<usize>,
    /// Name of what the table describes, such as that of an export; empty for a table that exists once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
}

impl Table {
    /// Returns a table that exists once.
    pub(crate) fn single(name: &str) -> Self {
        Table { name: name.to_owned(), ..Table::default() }
    }

    /// Returns a table that may exist several times.
    pub(crate) fn numbered(name: &str, numbers: &[usize], of: String) -> Self {
        Table { name: name.to_owned(), numbers: numbers.to_vec(), of }
    }

    /// Returns the header line in the file; empty for the keys before all tables.
    pub fn header(&self) -> String {
        match (self.name.as_str(), self.numbers.is_empty()) {
            ("", _) => String::new(),
            (name, true) => format!("[{name}]"),
            (name, false) => format!("[[{name}]]"),
        }
    }

    /// Returns the path of a key of the table, as [`Sources`](crate::sources::Sources) has it.
    fn path(&self, key: &str) -> String {
        let mut path = String::new();
        let mut numbers = self.numbers.iter();
        for part in self.name.split('.').filter(|part| !part.is_empty()) {
            path.push_str(part);
            path.push('.');
            if let Some(number) = numbers.next() {
                path.push_str(&format!("{number}."));
            }
        }
        path + key
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.header())?;
        if self.of.is_empty() { Ok(()) } else { write!(f, " {}", self.of) }
    }
}

/// A list of entries that grows, and the settings whose sources it takes.
pub(crate) struct List<'a> {
    settings: &'a Settings,
    entries: Vec<Entry>,
}

impl List<'_> {
    /// Adds an entry that has a value or none.
    fn add(&mut self, table: &Table, key: &str, value: Option<String>, change: Change) {
        let source = self.settings.sources.of(&table.path(key));
        let (table, key) = (table.clone(), key.to_owned());
        self.entries.push(Entry { table, key, value, source, change });
    }
}

/// Returns a string in the syntax of TOML.
fn quoted(text: impl ToString) -> Option<String> {
    Some(toml::Value::String(text.to_string()).to_string())
}

/// Returns a path in the syntax of TOML.
fn path(path: &std::path::Path) -> Option<String> {
    quoted(path.display())
}

/// Returns strings as an array in the syntax of TOML; `None` for an empty list, which the file must not have.
fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> Option<String> {
    let items: Vec<_> = items.into_iter().filter_map(quoted).collect();
    (!items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

/// Settings whose values are lists of strings, each with its table.
pub const LISTS: &[&str] = &[
    "listen",
    "cache",
    "realms",
    "http.hosts",
    "nbd.listen",
    "notify.command",
    "rate_limit.networks",
    "export.aliases",
    "export.client.networks",
    "export.client.sec",
];

/// Settings that exist once, each with its table. Completions offer them.
pub const KEYS: &[&str] = &[
    "listen",
    "state_dir",
    "mode",
    "cache",
    "cache_size",
    "ram",
    "miss_ratio_curve",
    "portmap",
    "locks",
    "nfs4",
    "nfs4_delegations",
    "profile",
    "sandbox",
    "keytab",
    "realms",
    "idmap_domain",
    "limits.threads",
    "limits.workers",
    "limits.worker_queue",
    "limits.memory",
    "limits.connection_memory",
    "limits.connections",
    "limits.inflight",
    "limits.shared_inflight",
    "limits.reply_cache_entries",
    "limits.reply_cache_memory",
    "limits.metadata_memory",
    "limits.open_files",
    "limits.busy_poll",
    "limits.lease",
    "limits.idle_timeout",
    "limits.stall_timeout",
    "limits.drain_timeout",
    "log.level",
    "log.format",
    "tls.certificate",
    "tls.key",
    "tls.client_ca",
    "tls.kernel",
    "http.listen",
    "http.token_file",
    "http.hosts",
    "http.tls",
    "nbd.listen",
    "nbd.insecure",
    "nbd.client_certificate",
];

impl Settings {
    /// Returns every setting of the configuration file, table by table in the order of the documentation.
    pub fn entries(&self) -> Vec<Entry> {
        use Change::{InService, NeedsRestart};
        let Settings {
            listen,
            state_dir,
            mode,
            cache,
            exports,
            volumes,
            nbd,
            portmap,
            locks,
            nfs4,
            nfs4_delegations,
            profile,
            kerberos,
            idmap_domain,
            sandbox,
            tls,
            kernel_tls,
            http,
            notify,
            rate_limits,
            policies,
            limits,
            log,
            sources: _,
        } = self;
        let mut all = List { settings: self, entries: Vec::new() };
        let root = Table::default();
        all.add(&root, "listen", list(listen), NeedsRestart);
        all.add(&root, "state_dir", path(state_dir), NeedsRestart);
        all.add(&root, "mode", quoted(mode), InService);
        // The other fields are about one start, and no settings of the file.
        let crate::cache::CacheSettings {
            devices,
            size,
            ram,
            curve,
            size_given: _,
            format: _,
            make_missing: _,
            in_memory: _,
        } = cache;
        all.add(&root, "cache", list(devices.iter().map(|device| device.display())), NeedsRestart);
        all.add(&root, "cache_size", quoted(format_size_exactly(*size)), NeedsRestart);
        all.add(&root, "ram", quoted(format_size_exactly(*ram)), NeedsRestart);
        all.add(&root, "miss_ratio_curve", Some(curve.to_string()), NeedsRestart);
        all.add(&root, "portmap", quoted(portmap), NeedsRestart);
        all.add(&root, "locks", Some(locks.to_string()), NeedsRestart);
        all.add(&root, "nfs4", Some(nfs4.to_string()), NeedsRestart);
        all.add(&root, "nfs4_delegations", Some(nfs4_delegations.to_string()), InService);
        all.add(&root, "profile", Some(profile.to_string()), InService);
        all.add(&root, "sandbox", quoted(sandbox), NeedsRestart);
        // The first rule that takes Kerberos puts its settings in force.
        let kerberos_changes = if self.takes_kerberos() { NeedsRestart } else { InService };
        let Kerberos { keytab, realms } = kerberos;
        all.add(&root, "keytab", path(keytab), kerberos_changes);
        all.add(&root, "realms", list(realms), kerberos_changes);
        all.add(&root, "idmap_domain", idmap_domain.as_deref().and_then(quoted), InService);
        let table = Table::single("limits");
        for limit in LIMITS {
            let value = limit.show(limits);
            let value = if value.parse::<u64>().is_ok() { Some(value) } else { quoted(value) };
            all.add(&table, limit.key, value, limit.change);
        }
        let (table, Log { level, format }) = (Table::single("log"), log);
        all.add(&table, "level", quoted(level), InService);
        all.add(&table, "format", quoted(format), NeedsRestart);
        all.add_tls(tls.as_ref(), *kernel_tls);
        all.add_http(http.as_ref());
        all.add_nbd(nbd);
        for (number, target) in notify.iter().enumerate() {
            all.add_notify(number, target);
        }
        for (number, limit) in rate_limits.iter().enumerate() {
            all.add_rate_limit(number, limit);
        }
        for (number, policy) in policies.iter().enumerate() {
            all.add_path_policy(number, policy);
        }
        for (number, export) in exports.iter().enumerate() {
            all.add_export(number, export);
        }
        for (number, volume) in volumes.iter().enumerate() {
            all.add_volume(number, volume);
        }
        all.entries
    }
}

impl List<'_> {
    /// Adds the entries of `[tls]`. Without TLS the files have no values.
    fn add_tls(&mut self, files: Option<&TlsFiles>, in_kernel: bool) {
        let table = Table::single("tls");
        let (certificate, key, client_ca) = match files {
            Some(TlsFiles { certificate, key, client_ca }) => {
                (path(certificate), path(key), client_ca.as_deref().and_then(path))
            }
            None => (None, None, None),
        };
        self.add(&table, "certificate", certificate, Change::InService);
        self.add(&table, "key", key, Change::InService);
        self.add(&table, "client_ca", client_ca, Change::InService);
        self.add(&table, "kernel", Some(in_kernel.to_string()), Change::NeedsRestart);
    }

    /// Adds the entries of `[http]`. Without HTTP they have no values.
    fn add_http(&mut self, http: Option<&Http>) {
        let table = Table::single("http");
        let (listen, token_file, hosts, tls) = match http {
            Some(Http { listen, token_file, hosts, tls }) => {
                (quoted(listen), token_file.as_deref().and_then(path), list(hosts), Some(tls.to_string()))
            }
            None => (None, None, None, None),
        };
        self.add(&table, "listen", listen, Change::NeedsRestart);
        self.add(&table, "token_file", token_file, Change::NeedsRestart);
        self.add(&table, "hosts", hosts, Change::NeedsRestart);
        self.add(&table, "tls", tls, Change::NeedsRestart);
    }

    /// Adds the entries of an `[[export]]` and of its client rules. `number` is its place in the file, from 0.
    fn add_export(&mut self, number: usize, export: &Export) {
        use Change::{InService, NeedsRestart};
        let Export { path: directory, name, aliases, id, clients, tls, delegations, policy } = export;
        let table = Table::numbered("export", &[number], name.clone());
        self.add(&table, "path", path(directory), NeedsRestart);
        self.add(&table, "name", quoted(name), NeedsRestart);
        self.add(&table, "aliases", list(aliases), NeedsRestart);
        self.add(&table, "id", Some(id.to_string()), NeedsRestart);
        self.add(&table, "tls", quoted(tls), InService);
        self.add(&table, "delegations", Some(delegations.to_string()), InService);
        self.add_policy(&table, "policy.", policy);
        for (rule, client) in clients.iter().enumerate() {
            let of = format!("{name} rule {}", rule + 1);
            self.add_client(&Table::numbered("export.client", &[number, rule], of), client);
        }
    }

    /// Adds the entries of a `[[policy]]`.
    fn add_path_policy(&mut self, number: usize, policy: &PathPolicy) {
        let PathPolicy { path: about, policy } = policy;
        let table = Table::numbered("policy", &[number], about.display().to_string());
        self.add(&table, "path", path(about), Change::InService);
        self.add_policy(&table, "", policy);
    }

    /// Adds the entries of a policy. Their keys begin with `above`.
    fn add_policy(&mut self, table: &Table, above: &str, policy: &Policy) {
        let Policy { cache, priority, streams, mode, dirty_time, cache_min, cache_max } = policy;
        let parts = [
            ("cache", cache.and_then(quoted)),
            ("priority", priority.and_then(quoted)),
            ("streams", streams.and_then(quoted)),
            ("mode", mode.and_then(quoted)),
            ("dirty_time", dirty_time.and_then(quoted)),
            ("cache_min", cache_min.and_then(quoted)),
            ("cache_max", cache_max.and_then(quoted)),
        ];
        for (key, value) in parts {
            self.add(table, &format!("{above}{key}"), value, Change::InService);
        }
    }

    /// Adds the entries of `[nbd]`.
    fn add_nbd(&mut self, nbd: &Nbd) {
        let (table, places) = (Table::single("nbd"), list(nbd.places()));
        // Without a place there is no door, and nothing else to show.
        let flag = |flag: bool| places.is_some().then(|| flag.to_string());
        let (insecure, certificate) = (flag(nbd.insecure), flag(nbd.client_certificate));
        self.add(&table, "listen", places, Change::NeedsRestart);
        self.add(&table, "insecure", insecure, Change::NeedsRestart);
        self.add(&table, "client_certificate", certificate, Change::NeedsRestart);
    }

    /// Adds the entries of a `[[notify]]`: the common ones, and those that its kind uses.
    fn add_notify(&mut self, number: usize, target: &Notify) {
        let Notify { name, kind, severity, per_minute, timeout, command, url, token_file, ca_file, socket } =
            target;
        let table = Table::numbered("notify", &[number], name.clone());
        let mut fields = vec![
            ("name", quoted(name)),
            ("kind", quoted(kind)),
            ("severity", quoted(severity)),
            ("per_minute", Some(per_minute.to_string())),
            ("timeout", quoted(format_duration(*timeout))),
        ];
        let file = |file: &Option<std::path::PathBuf>| file.as_deref().and_then(path);
        match kind.way() {
            NotifyWay::Program => fields.push(("command", list(command))),
            NotifyWay::Http => {
                fields.extend([
                    ("url", quoted(url)),
                    ("token_file", file(token_file)),
                    ("ca_file", file(ca_file)),
                ]);
            }
            NotifyWay::Socket => fields.push(("socket", file(socket))),
        }
        for (key, value) in fields {
            self.add(&table, key, value, Change::InService);
        }
    }

    /// Adds the entries of a `[[rate_limit]]`. A rate without a limit has no value.
    fn add_rate_limit(&mut self, number: usize, limit: &RateLimit) {
        let RateLimit { name, networks, export, requests, bytes, burst } = limit;
        let table = Table::numbered("rate_limit", &[number], name.clone());
        let fields = [
            ("name", quoted(name)),
            match export {
                Some(export) => ("export", quoted(export)),
                None => ("networks", list(networks)),
            },
            ("requests_per_second", requests.map(|rate| rate.to_string())),
            ("bytes_per_second", bytes.and_then(|rate| quoted(format_size_exactly(rate)))),
            ("burst", quoted(format_duration(*burst))),
        ];
        for (key, value) in fields {
            self.add(&table, key, value, Change::InService);
        }
    }

    /// Adds the entries of a `[[volume]]`.
    fn add_volume(&mut self, number: usize, volume: &Volume) {
        let Volume { name, backing, mode, read_only } = volume;
        let table = Table::numbered("volume", &[number], name.clone());
        self.add(&table, "name", quoted(name), Change::NeedsRestart);
        self.add(&table, "backing", path(backing), Change::NeedsRestart);
        self.add(&table, "mode", mode.and_then(quoted), Change::NeedsRestart);
        self.add(&table, "read_only", Some(read_only.to_string()), Change::NeedsRestart);
    }

    /// Adds the entries of an `[[export.client]]`. All of them take effect at a reload.
    fn add_client(&mut self, table: &Table, client: &ClientRule) {
        let ClientRule {
            networks: _,
            certificates: _,
            access,
            squash,
            anonuid,
            anongid,
            privileged_port,
            manage_gids,
            sec,
        } = client;
        let port = match privileged_port {
            PrivilegedPort::Always => Some("true".to_owned()),
            PrivilegedPort::Never => Some("false".to_owned()),
            // The file has no word for the default of a server that runs as root.
            PrivilegedPort::Remote => None,
        };
        let fields = [
            // Networks and certificates are one list in the file.
            ("networks", list(client.clients())),
            ("access", quoted(access)),
            ("squash", quoted(squash)),
            ("anonuid", Some(anonuid.to_string())),
            ("anongid", Some(anongid.to_string())),
            ("privileged_port", port),
            ("manage_gids", Some(manage_gids.to_string())),
            ("sec", list(sec)),
        ];
        for (key, value) in fields {
            self.add(table, key, value, Change::InService);
        }
    }
}

/// Returns entries as text of a configuration file. With `sources`, a comment after each value names its source. A
/// setting without a value is left out.
pub fn describe(entries: &[Entry], sources: bool) -> String {
    let mut text = String::new();
    let mut last = None;
    for entry in entries {
        let Some(value) = &entry.value else { continue };
        if last != Some(&entry.table) {
            let gap = if text.is_empty() { "" } else { "\n" };
            let header = entry.table.header();
            let line = if header.is_empty() { header } else { header + "\n" };
            text.push_str(&format!("{gap}{line}"));
            last = Some(&entry.table);
        }
        let line = format!("{} = {value}", entry.key);
        match sources {
            true => text.push_str(&format!("{line:<48}  # {}\n", entry.source.as_str())),
            false => text.push_str(&format!("{line}\n")),
        }
    }
    text
}
