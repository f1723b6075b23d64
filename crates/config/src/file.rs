//! Reads the configuration file: from TOML text to a draft, with every mistake noted.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;
use toml::de::DeTable;

use crate::cache::{CacheDraft, parse_device_size, parse_ram};
use crate::client_rule::{Access, Flavor, Squash};
use crate::clients::{Clients, is_host_name, parse_clients};
use crate::export::TlsPolicy;
use crate::http::{self, DraftHttp};
use crate::limits::LIMITS;
use crate::listen::parse_listen;
use crate::nbd::{Nbd, read_nbd};
use crate::notify::{Notify, read_notify};
use crate::path_policy::{PathPolicy, read_path_policy};
use crate::policy::{Policy, read_policy};
use crate::problem::{Collector, Origin};
use crate::rate_limit::{RateLimit, read_rate_limit};
use crate::resolve::Flags;
use crate::settings::{Limits, Log, Mode, Portmap, Sandbox};
use crate::sources::Sources;
use crate::table::{Located, TableReader};
use crate::users::{parse_group, parse_user};
use crate::volume::{Volume, read_volume};

/// The settings that the file and the flags gave so far. A setting that was not given is absent.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) listen: Option<Vec<Located<SocketAddr>>>,
    pub(crate) state_dir: Option<Located<PathBuf>>,
    pub(crate) mode: Option<Located<Mode>>,
    pub(crate) cache: CacheDraft,
    pub(crate) portmap: Option<Located<Portmap>>,
    pub(crate) locks: Option<bool>,
    pub(crate) nfs4: Option<bool>,
    pub(crate) nfs4_delegations: Option<bool>,
    pub(crate) profile: Option<bool>,
    pub(crate) sandbox: Option<Sandbox>,
    pub(crate) keytab: Option<PathBuf>,
    pub(crate) realms: Vec<String>,
    pub(crate) idmap_domain: Option<String>,
    pub(crate) limits: Limits,
    /// Place of `connection_memory` in the file, for the check against `memory`.
    pub(crate) connection_memory: Option<Origin>,
    pub(crate) log: Log,
    pub(crate) tls: DraftTls,
    pub(crate) kernel_tls: Option<bool>,
    /// Present if HTTP is served.
    pub(crate) http: Option<DraftHttp>,
    pub(crate) notify: Vec<(Origin, Notify)>,
    pub(crate) rate_limits: Vec<(Origin, RateLimit)>,
    pub(crate) policies: Vec<(Origin, PathPolicy)>,
    pub(crate) exports: Vec<DraftExport>,
    pub(crate) sources: Sources,
    pub(crate) volumes: Vec<(Origin, Volume)>,
    pub(crate) nbd: Nbd,
}

/// The files of TLS as written in the file or on the command line.
#[derive(Default)]
pub(crate) struct DraftTls {
    pub(crate) certificate: Option<Located<PathBuf>>,
    pub(crate) key: Option<Located<PathBuf>>,
    pub(crate) client_ca: Option<Located<PathBuf>>,
}

/// An export as written in the file or on the command line.
pub(crate) struct DraftExport {
    pub(crate) origin: Origin,
    pub(crate) path: Option<Located<PathBuf>>,
    pub(crate) name: Option<Located<String>>,
    pub(crate) aliases: Vec<Located<String>>,
    pub(crate) id: Option<Located<u32>>,
    pub(crate) tls: Option<Located<TlsPolicy>>,
    /// Absent if `nfs4_delegations` decides.
    pub(crate) delegations: Option<bool>,
    pub(crate) policy: Policy,
    pub(crate) clients: Vec<DraftClient>,
}

/// A client rule as written in the file or on the command line.
pub(crate) struct DraftClient {
    pub(crate) origin: Origin,
    pub(crate) networks: Vec<Located<Clients>>,
    pub(crate) access: Option<Access>,
    pub(crate) squash: Option<Squash>,
    pub(crate) anonuid: Option<u32>,
    pub(crate) anongid: Option<u32>,
    pub(crate) privileged_port: Option<bool>,
    pub(crate) manage_gids: bool,
    pub(crate) sec: Vec<Flavor>,
}

/// Reads the text of a configuration file. Returns `None` if the text is not TOML. The parser may then have skipped
/// keys, so further checks would report mistakes that do not exist.
pub(crate) fn read(text: &str, flags: &Flags, problems: &mut Collector<'_>) -> Option<Draft> {
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let message = error.message().replace('\n', "; ");
        problems.add(&Origin::File(error.span().unwrap_or_default()), message);
    }
    if !errors.is_empty() {
        return None;
    }
    let mut draft = Draft::default();
    let mut root = TableReader::new("the configuration", document.get_ref());
    draft.listen = root.list("listen", problems, parse_listen).map(|list| list.value);
    draft.state_dir = root.parsed("state_dir", problems, absolute_path);
    draft.mode = root.parsed("mode", problems, str::parse);
    draft.cache.devices = root.list("cache", problems, device_path).map_or(Vec::new(), |list| list.value);
    draft.cache.size = root.parsed("cache_size", problems, parse_device_size);
    draft.cache.ram = root.parsed("ram", problems, parse_ram);
    draft.cache.curve = root.boolean("miss_ratio_curve", problems).map(|flag| flag.value);
    draft.portmap = root.parsed("portmap", problems, str::parse);
    draft.locks = root.boolean("locks", problems).map(|flag| flag.value);
    draft.nfs4 = root.boolean("nfs4", problems).map(|flag| flag.value);
    draft.nfs4_delegations = root.boolean("nfs4_delegations", problems).map(|flag| flag.value);
    draft.profile = root.boolean("profile", problems).map(|flag| flag.value);
    draft.sandbox = root.parsed("sandbox", problems, str::parse).map(|sandbox| sandbox.value);
    draft.keytab = root.parsed("keytab", problems, absolute_path).map(|path| path.value);
    let realms = root.list("realms", problems, parse_realm);
    draft.realms = realms.into_iter().flat_map(|list| list.value).map(|realm| realm.value).collect();
    draft.idmap_domain = root.parsed("idmap_domain", problems, parse_domain).map(|domain| domain.value);
    if let Some(mut table) = root.table("limits", "[limits]", problems) {
        for limit in LIMITS {
            let set = table.parsed(limit.key, problems, |text| limit.set(&mut draft.limits, text));
            if limit.key == "connection_memory" {
                draft.connection_memory = set.map(|set| set.origin);
            }
        }
        table.finish(problems);
    }
    if let Some(mut table) = root.table("log", "[log]", problems) {
        if let Some(level) = table.parsed("level", problems, str::parse) {
            draft.log.level = level.value;
        }
        if let Some(format) = table.parsed("format", problems, str::parse) {
            draft.log.format = format.value;
        }
        table.finish(problems);
    }
    if let Some(mut table) = root.table("tls", "[tls]", problems) {
        draft.tls.certificate = table.parsed("certificate", problems, absolute_path);
        draft.tls.key = table.parsed("key", problems, absolute_path);
        draft.tls.client_ca = table.parsed("client_ca", problems, absolute_path);
        draft.kernel_tls = table.boolean("kernel", problems).map(|flag| flag.value);
        table.finish(problems);
    }
    draft.http = root.table("http", "[http]", problems).map(|table| http::read(table, problems));
    if let Some(table) = root.table("nbd", "[nbd]", problems) {
        draft.nbd = read_nbd(table, problems);
    }
    let targets = root.tables("notify", "[[notify]]", problems);
    draft.notify =
        targets.into_iter().filter_map(|target| read_notify(target, problems, absolute_path)).collect();
    let limits = root.tables("rate_limit", "[[rate_limit]]", problems);
    draft.rate_limits = limits.into_iter().filter_map(|limit| read_rate_limit(limit, problems)).collect();
    let policies = root.tables("policy", "[[policy]]", problems);
    draft.policies = policies.into_iter().filter_map(|policy| read_path_policy(policy, problems)).collect();
    let exports = root.tables("export", "[[export]]", problems);
    draft.exports = exports.into_iter().map(|export| read_export(export, problems)).collect();
    let volumes = root.tables("volume", "[[volume]]", problems);
    draft.volumes =
        volumes.into_iter().filter_map(|volume| read_volume(volume, problems, device_path)).collect();
    root.finish(problems);
    draft.sources = Sources::of_both(Some(document.get_ref()), flags);
    Some(draft)
}

/// Reads an `[[export]]` with its client rules. Reports mistakes and unknown keys, and returns as much as could be
/// read.
fn read_export(table: Located<TableReader<'_, '_>>, problems: &mut Collector<'_>) -> DraftExport {
    let Located { value: mut table, origin } = table;
    let path = table.parsed("path", problems, absolute_path);
    let name = table.parsed("name", problems, check_name);
    for key in ["path", "name"] {
        if !table.has(key) {
            problems.add(&origin, format!("[[export]] has no `{key}`; add {key} = \"/...\""));
        }
    }
    let aliases = table.list("aliases", problems, check_name).map_or(Vec::new(), |list| list.value);
    let id = table.parsed("id", problems, parse_id);
    let tls = table.parsed("tls", problems, str::parse);
    let delegations = table.boolean("delegations", problems).map(|flag| flag.value);
    let policy = table.table("policy", "policy = { cache = \"pin\" }", problems);
    let policy = policy.map(|policy| read_policy(policy, problems)).unwrap_or_default();
    let mut clients = Vec::new();
    for client in table.tables("client", "[[export.client]]", problems) {
        clients.push(read_client(client, problems));
    }
    table.finish(problems);
    DraftExport { origin, path, name, aliases, id, tls, delegations, policy, clients }
}

/// Reads an `[[export.client]]`. Reports mistakes and unknown keys, and returns as much as could be read.
fn read_client(table: Located<TableReader<'_, '_>>, problems: &mut Collector<'_>) -> DraftClient {
    let Located { value: mut table, origin } = table;
    let networks = table.list("networks", problems, parse_clients);
    if !table.has("networks") {
        let message =
            "[[export.client]] has no `networks`; add networks = [\"192.168.0.0/24\"], or [\"*\"] for all";
        problems.add(&origin, message);
    }
    let client = DraftClient {
        origin,
        networks: networks.map_or(Vec::new(), |list| list.value),
        access: table.parsed("access", problems, str::parse).map(|access| access.value),
        squash: table.parsed("squash", problems, str::parse).map(|squash| squash.value),
        anonuid: table.parsed("anonuid", problems, parse_user).map(|id| id.value),
        anongid: table.parsed("anongid", problems, parse_group).map(|id| id.value),
        privileged_port: table.boolean("privileged_port", problems).map(|flag| flag.value),
        manage_gids: table.boolean("manage_gids", problems).is_some_and(|flag| flag.value),
        sec: table
            .list("sec", problems, str::parse)
            .into_iter()
            .flat_map(|list| list.value)
            .map(|flavor| flavor.value)
            .collect(),
    };
    table.finish(problems);
    client
}

/// Parses the absolute path of a device, or the URL of an NBD export.
fn device_path(text: &str) -> Result<PathBuf, String> {
    match NbdUrl::is_meant(Path::new(text)) {
        true => NbdUrl::parse(text).map(|url| PathBuf::from(url.as_str())),
        false => absolute_path(text),
    }
}

/// Parses an absolute path. The path need not exist.
pub(crate) fn absolute_path(text: &str) -> Result<PathBuf, String> {
    if text.starts_with('/') && !text.contains('\0') {
        return Ok(PathBuf::from(text));
    }
    Err(format!("`{text}` is not an absolute path; write it from / on"))
}

/// Checks the name of an export: absolute, without empty, `.` or `..` components, at most 1024 bytes (MNTPATHLEN, RFC
/// 1813 section 5.1.1). A longer name is a mistake.
pub(crate) fn check_name(text: &str) -> Result<String, String> {
    let components_good = || text[1..].split('/').all(|part| !matches!(part, "" | "." | ".."));
    let good = text == "/" || (text.starts_with('/') && components_good());
    if !good || text.contains('\0') {
        return Err(format!(
            "`{text}` is not an export name; write / or /NAME, without `.`, `..` or // and no slash at the end"
        ));
    }
    if text.len() > 1024 {
        return Err(format!("the export name has {} bytes; at most 1024 are allowed", text.len()));
    }
    Ok(text.to_owned())
}

/// Parses the name of a realm (RFC 4120 section 6.1).
pub(crate) fn parse_realm(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains(['/', ':', '@', '\0']);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| format!("`{text}` is no realm; write a name such as EXAMPLE.ORG"))
}

/// Parses the domain of names of owners.
fn parse_domain(text: &str) -> Result<String, String> {
    let is_domain = is_host_name(text);
    is_domain
        .then(|| text.to_owned())
        .ok_or_else(|| format!("`{text}` is no domain; write a name such as example.org"))
}

/// Parses the id of an export, which is part of its handles. 0 is no id.
fn parse_id(text: &str) -> Result<u32, String> {
    let id = text.parse().ok().filter(|id| *id != 0);
    id.ok_or_else(|| format!("`{text}` is not an export id; write a whole number from 1 to {}", u32::MAX))
}
