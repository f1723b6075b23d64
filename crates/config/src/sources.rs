//! The source of each setting: the default, the configuration file, or a flag.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use crate::resolve::Flags;

/// The source of a setting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Neither the file nor a flag gives the setting.
    #[default]
    Default,
    /// The configuration file gives the setting.
    File,
    /// A flag or an argument of the command line gives the setting.
    Flag,
}

impl Source {
    /// Returns the name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Flag => "flag",
        }
    }
}

/// The settings that the file and the flags give, by their paths such as `limits.connections` or
/// `export.0.client.1.squash`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<String, Source>);

impl Sources {
    /// Returns the source of the setting with this path.
    pub(crate) fn of(&self, path: &str) -> Source {
        self.0.get(path).copied().unwrap_or_default()
    }

    /// Returns the sources of settings that result from a file and flags. Flags override the file; the argument `DIR`
    /// replaces the exports of the file.
    pub(crate) fn of_both(file: Option<&DeTable<'_>>, flags: &Flags) -> Self {
        let mut found = BTreeMap::new();
        if let Some(file) = file {
            collect(file, "", &mut found);
        }
        if flags.dir.is_some() {
            found.retain(|path, _| !path.starts_with("export."));
        }
        found.extend(flags.given().into_iter().map(|path| (path, Source::Flag)));
        Sources(found)
    }
}

/// Adds the path of each value in a table of the file.
fn collect(table: &DeTable<'_>, above: &str, found: &mut BTreeMap<String, Source>) {
    for (key, value) in table {
        let path = format!("{above}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => collect(table, &format!("{path}."), found),
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
                for (number, item) in items.iter().enumerate() {
                    if let DeValue::Table(table) = item.get_ref() {
                        collect(table, &format!("{path}.{number}."), found);
                    }
                }
            }
            _ => drop(found.insert(path, Source::File)),
        }
    }
}

impl Flags {
    /// Returns the paths of the settings that the flags give. A new flag has to be added here, or the compiler refuses
    /// the pattern.
    fn given(&self) -> Vec<String> {
        let Flags {
            dir,
            export,
            config: _,
            listen,
            nbd,
            state_dir,
            mode,
            cache,
            cache_size,
            ram,
            // These flags are about one start, and no setting of the file.
            format_cache: _,
            make_missing: _,
            cache_in_memory: _,
            portmap,
            locks,
            nfs4,
            no_nfs4_delegations,
            sandbox,
            tls_cert,
            tls_key,
            tls_client_ca,
            tls_kernel,
            http,
            tls,
            allow,
            read_only,
            squash,
            anonuid,
            anongid,
            manage_gids,
            sec,
            keytab,
            realms,
            privileged_port,
            limits,
            log_level,
            log_format,
        } = self;
        let fields = [
            ("listen", !listen.is_empty()),
            ("nbd.listen", !nbd.is_empty()),
            ("state_dir", state_dir.is_some()),
            ("mode", mode.is_some()),
            ("cache", !cache.is_empty()),
            ("cache_size", cache_size.is_some()),
            ("ram", ram.is_some()),
            ("portmap", portmap.is_some()),
            ("locks", locks.is_some()),
            ("nfs4", nfs4.is_some()),
            ("nfs4_delegations", *no_nfs4_delegations),
            ("sandbox", sandbox.is_some()),
            ("keytab", keytab.is_some()),
            ("realms", !realms.is_empty()),
            ("tls.certificate", tls_cert.is_some()),
            ("tls.key", tls_key.is_some()),
            ("tls.client_ca", tls_client_ca.is_some()),
            ("tls.kernel", tls_kernel.is_some()),
            ("http.listen", http.is_some()),
            ("log.level", log_level.is_some()),
            ("log.format", log_format.is_some()),
            ("export.0.path", dir.is_some()),
            ("export.0.name", dir.is_some()),
            ("export.0.aliases", export.is_some()),
            ("export.0.tls", tls.is_some()),
            ("export.0.client.0.networks", !allow.is_empty()),
            ("export.0.client.0.access", *read_only),
            ("export.0.client.0.squash", squash.is_some()),
            ("export.0.client.0.anonuid", anonuid.is_some()),
            ("export.0.client.0.anongid", anongid.is_some()),
            ("export.0.client.0.privileged_port", privileged_port.is_some()),
            ("export.0.client.0.manage_gids", *manage_gids),
            ("export.0.client.0.sec", !sec.is_empty()),
        ];
        let fields = fields.iter().filter(|(_, given)| *given).map(|(path, _)| (*path).to_owned());
        fields.chain(limits.iter().map(|(key, _)| format!("limits.{key}"))).collect()
    }
}
