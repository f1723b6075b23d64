//! The step from flags and file to settings.

use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;

use crate::cache::{device_size, ram_size};
use crate::check;
use crate::client_rule::{Access, Flavor, Squash};
use crate::clients::parse_clients;
use crate::export::TlsPolicy;
use crate::file::{self, Draft, DraftClient, DraftExport, check_name, parse_realm};
use crate::limits::LIMITS;
use crate::listen::parse_listen;
use crate::nbd::parse_place;
use crate::problem::{Collector, Origin, Place, Problem, Problems};
use crate::settings::{LogFormat, LogLevel, Mode, Portmap, Sandbox, Settings};
use crate::sources::Sources;
use crate::table::Located;

/// The flags of the command line, each in the field of its name. A flag that was not given is absent, empty or false.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// Directory to serve, the argument `DIR`. Its last component may be missing; the caller then makes the
    /// directory. `DIR` replaces the exports of the file.
    pub dir: Option<PathBuf>,
    /// Further name of the export of `dir`, in addition to `/`.
    pub export: Option<String>,
    /// Configuration file.
    pub config: Option<PathBuf>,
    /// Listen addresses. They replace the addresses of the file.
    pub listen: Vec<String>,
    /// Addresses and Unix sockets for NBD. They replace those of the file.
    pub nbd: Vec<String>,
    /// State directory.
    pub state_dir: Option<PathBuf>,
    /// Mode.
    pub mode: Option<Mode>,
    /// Cache devices.
    pub cache: Vec<PathBuf>,
    /// Size in bytes of each cache file that has to be made.
    pub cache_size: Option<u64>,
    /// Most bytes of memory for cached blocks.
    pub ram: Option<u64>,
    /// True to make a new pool of the cache devices, even if they hold data.
    pub format_cache: bool,
    /// True to recreate cache files that are missing from their pool.
    pub make_missing: bool,
    /// True to accept cache files on file systems in memory.
    pub cache_in_memory: bool,
    /// Use of the portmapper.
    pub portmap: Option<Portmap>,
    /// False to serve no locks of NFSv3 clients.
    pub locks: Option<bool>,
    /// False to serve NFSv3 only.
    pub nfs4: Option<bool>,
    /// True to give clients of NFSv4 no delegations. `delegations` of an export overrides it.
    pub no_nfs4_delegations: bool,
    /// Filter of system calls.
    pub sandbox: Option<Sandbox>,
    /// Certificate of the server.
    pub tls_cert: Option<PathBuf>,
    /// Private key of the server.
    pub tls_key: Option<PathBuf>,
    /// Authorities for the certificates of clients.
    pub tls_client_ca: Option<PathBuf>,
    /// False to encrypt connections with TLS in user space.
    pub tls_kernel: Option<bool>,
    /// Address of HTTP.
    pub http: Option<String>,
    /// Protection that the export of `dir` asks of connections.
    pub tls: Option<TlsPolicy>,
    /// Networks and certificates that may use the export of `dir`.
    pub allow: Vec<String>,
    /// True if the export of `dir` is read-only.
    pub read_only: bool,
    /// Squashing on the export of `dir`.
    pub squash: Option<Squash>,
    /// Anonymous user of the export of `dir`.
    pub anonuid: Option<u32>,
    /// Anonymous group of the export of `dir`.
    pub anongid: Option<u32>,
    /// True if the user database of the server's host gives the groups of a user of the export of `dir`.
    pub manage_gids: bool,
    /// Flavours of authentication of the export of `dir`.
    pub sec: Vec<Flavor>,
    /// File with the server's keys of Kerberos.
    pub keytab: Option<PathBuf>,
    /// Realms whose users are users of this host. They replace the realms of the file.
    pub realms: Vec<String>,
    /// True if the export of `dir` requires source ports below 1024.
    pub privileged_port: Option<bool>,
    /// Limits: key (as in [`LIMITS`]) and text.
    pub limits: Vec<(&'static str, String)>,
    /// Log level.
    pub log_level: Option<LogLevel>,
    /// Log format.
    pub log_format: Option<LogFormat>,
}

/// Complete settings, and notices about how they resulted.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The settings.
    pub settings: Settings,
    /// Facts that the administrator should know, one sentence each; usually empty.
    pub notices: Vec<String>,
}

/// Makes settings from defaults, file and flags. The file overrides the defaults, and the flags override the file.
///
/// # Errors
/// Every mistake in the file and in the flags.
pub fn resolve(flags: &Flags) -> Result<Resolved, Problems> {
    let text = match &flags.config {
        Some(path) => Some(read_file(path)?),
        None => None,
    };
    resolve_text(flags, text.as_deref())
}

/// Makes settings as [`resolve`] does, with `text` as the contents of the file that the flags name.
///
/// # Errors
/// Every mistake in the text and in the flags.
pub fn resolve_text(flags: &Flags, text: Option<&str>) -> Result<Resolved, Problems> {
    let named = flags.config.as_deref().zip(text);
    let mut problems = Collector::new(named);
    let draft = match named {
        Some((_, text)) => file::read(text, flags, &mut problems),
        None => Some(Draft { sources: Sources::of_both(None, flags), ..Draft::default() }),
    };
    let Some(mut draft) = draft else { return Err(problems.into_problems()) };
    let mut notices = Vec::new();
    apply_common(flags, &mut draft, &mut problems);
    apply_dir(flags, &mut draft, &mut notices, &mut problems);
    let settings = check::settings(draft, &mut problems);
    let problems = problems.into_problems();
    if problems.0.is_empty() { Ok(Resolved { settings, notices }) } else { Err(problems) }
}

/// Returns the text of the configuration file. The problem names the file.
fn read_file(path: &Path) -> Result<String, Problems> {
    std::fs::read_to_string(path).map_err(|error| {
        let message = match error.kind() {
            std::io::ErrorKind::InvalidData => "the file is not UTF-8 text".to_owned(),
            _ => format!("cannot read the configuration: {error}"),
        };
        Problems(vec![Problem { place: Place::WholeFile(path.to_owned()), message }])
    })
}

/// Adds the flags that concern the whole server to the draft.
fn apply_common(flags: &Flags, draft: &mut Draft, problems: &mut Collector<'_>) {
    if !flags.listen.is_empty() {
        draft.listen = Some(each("--listen", &flags.listen, problems, parse_listen));
    }
    if !flags.nbd.is_empty() {
        let places = each("--nbd", &flags.nbd, problems, parse_place);
        draft.nbd.set_places(places.into_iter().map(|place| place.value));
    }
    if let Some(path) = &flags.state_dir {
        match std::path::absolute(path) {
            Ok(path) => draft.state_dir = Some(Located::flag(path, "--state-dir")),
            Err(error) => {
                problems.add(&Origin::flag("--state-dir"), format!("cannot make it absolute: {error}"));
            }
        }
    }
    if let Some(mode) = flags.mode {
        draft.mode = Some(Located::flag(mode, "--mode"));
    }
    if let Some(portmap) = flags.portmap {
        draft.portmap = Some(Located::flag(portmap, "--portmap"));
    }
    draft.locks = flags.locks.or(draft.locks);
    draft.nfs4 = flags.nfs4.or(draft.nfs4);
    if flags.no_nfs4_delegations {
        draft.nfs4_delegations = Some(false);
    }
    draft.sandbox = flags.sandbox.or(draft.sandbox);
    let files = [
        ("--tls-cert", &flags.tls_cert, &mut draft.tls.certificate),
        ("--tls-key", &flags.tls_key, &mut draft.tls.key),
        ("--tls-client-ca", &flags.tls_client_ca, &mut draft.tls.client_ca),
    ];
    for (flag, given, file) in files {
        if let Some(path) = given {
            *file = Some(Located::flag(absolute(path), flag));
        }
    }
    draft.kernel_tls = flags.tls_kernel.or(draft.kernel_tls);
    if let Some(address) = &flags.http {
        draft.http = Some(draft.http.take().unwrap_or_default().listening(address, problems));
    }
    if let Some(path) = &flags.keytab {
        draft.keytab = Some(absolute(path));
    }
    if !flags.realms.is_empty() {
        let realms = each("--realm", &flags.realms, problems, parse_realm);
        draft.realms = realms.into_iter().map(|realm| realm.value).collect();
    }
    apply_cache(flags, draft, problems);
    for (key, text) in &flags.limits {
        let flag = Origin::Flag(format!("--{}", key.replace('_', "-")));
        match LIMITS.iter().find(|limit| limit.key == *key) {
            Some(limit) => match limit.set(&mut draft.limits, text) {
                Ok(()) if *key == "connection_memory" => draft.connection_memory = Some(flag),
                Ok(()) => {}
                Err(message) => problems.add(&flag, message),
            },
            None => problems.add(&flag, "there is no such limit"),
        }
    }
    draft.log.level = flags.log_level.unwrap_or(draft.log.level);
    draft.log.format = flags.log_format.unwrap_or(draft.log.format);
}

/// Returns an absolute path. Returns the path itself if it is the URL of an NBD export, or if the current directory is
/// not known.
fn absolute(path: &PathBuf) -> PathBuf {
    if NbdUrl::is_meant(path) {
        return path.clone();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.clone())
}

/// Adds the flags about the cache to the draft.
fn apply_cache(flags: &Flags, draft: &mut Draft, problems: &mut Collector<'_>) {
    if !flags.cache.is_empty() {
        draft.cache.devices =
            flags.cache.iter().map(|path| Located::flag(absolute(path), "--cache")).collect();
    }
    let mut sized = |flag: &str, given: Option<u64>, check: fn(u64) -> Result<u64, String>| {
        let checked = given.map(check)?;
        checked
            .map(|size| Located::flag(size, flag))
            .map_err(|error| problems.add(&Origin::flag(flag), error))
            .ok()
    };
    draft.cache.size = sized("--cache-size", flags.cache_size, device_size).or(draft.cache.size.take());
    draft.cache.ram = sized("--ram", flags.ram, ram_size).or(draft.cache.ram.take());
    draft.cache.format = flags.format_cache;
    draft.cache.make_missing = flags.make_missing;
    draft.cache.in_memory = flags.cache_in_memory;
}

/// Adds `DIR` and the flags that describe its export to the draft.
fn apply_dir(flags: &Flags, draft: &mut Draft, notices: &mut Vec<String>, problems: &mut Collector<'_>) {
    let about_dir = [
        ("--export", flags.export.is_some()),
        ("--allow", !flags.allow.is_empty()),
        ("--read-only", flags.read_only),
        ("--squash", flags.squash.is_some()),
        ("--anonuid", flags.anonuid.is_some()),
        ("--anongid", flags.anongid.is_some()),
        ("--privileged-port", flags.privileged_port.is_some()),
        ("--manage-gids", flags.manage_gids),
        ("--tls", flags.tls.is_some()),
        ("--sec", !flags.sec.is_empty()),
    ];
    let Some(dir) = &flags.dir else {
        for (flag, _) in about_dir.iter().filter(|(_, given)| *given) {
            let message = "the flag describes the export of DIR, but DIR was not given; name DIR, or set this under [[export]]";
            problems.add(&Origin::flag(*flag), message);
        }
        return;
    };
    if let (false, Some(file)) = (draft.exports.is_empty(), &flags.config) {
        let count = draft.exports.len();
        notices.push(format!(
            "serving {} instead of the {count} export(s) of {}: a directory on the command line replaces them",
            dir.display(),
            file.display()
        ));
    }
    let path = absolute(dir);
    let aliases = flags.export.iter().filter(|name| *name != "/").cloned().collect::<Vec<_>>();
    draft.exports = vec![DraftExport {
        origin: Origin::flag("DIR"),
        path: Some(Located::flag(path, "DIR")),
        name: Some(Located::flag("/".to_owned(), "DIR")),
        aliases: each("--export", &aliases, problems, check_name),
        id: None,
        tls: flags.tls.map(|tls| Located::flag(tls, "--tls")),
        delegations: None,
        policy: crate::Policy::default(),
        clients: dir_clients(flags, problems),
    }];
}

/// Returns the client rule for the export of `DIR`; none if no flag describes its clients.
fn dir_clients(flags: &Flags, problems: &mut Collector<'_>) -> Vec<DraftClient> {
    let described = flags.read_only
        || flags.squash.is_some()
        || flags.anonuid.is_some()
        || flags.anongid.is_some()
        || flags.privileged_port.is_some()
        || flags.manage_gids
        || !flags.sec.is_empty();
    if !described && flags.allow.is_empty() {
        return Vec::new();
    }
    vec![DraftClient {
        origin: Origin::flag("--allow"),
        networks: each("--allow", &flags.allow, problems, parse_clients),
        access: flags.read_only.then_some(Access::ReadOnly),
        squash: flags.squash,
        anonuid: flags.anonuid,
        anongid: flags.anongid,
        privileged_port: flags.privileged_port,
        manage_gids: flags.manage_gids,
        sec: flags.sec.clone(),
    }]
}

/// Parses every value of a flag.
fn each<T>(
    flag: &str,
    texts: &[String],
    problems: &mut Collector<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<Located<T>> {
    let mut values = Vec::new();
    for text in texts {
        match parse(text) {
            Ok(value) => values.push(Located::flag(value, flag)),
            Err(message) => problems.add(&Origin::flag(flag), message),
        }
    }
    values
}

/// Returns the settings of a file with this text, or its mistakes.
#[cfg(test)]
pub(crate) fn resolved_from(text: &str) -> Result<Settings, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let flags = Flags {
        dir: Some(dir.path().to_owned()),
        config: Some(dir.path().join("f.toml")),
        ..Flags::default()
    };
    let resolved = resolve_text(&flags, Some(text));
    resolved.map(|resolved| resolved.settings).map_err(|problems| problems.to_string())
}
