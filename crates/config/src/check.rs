//! Checks that involve several settings, and the step from a draft to the settings.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_common::hidden::Hidden;
use ipnet::IpNet;
use rustix::fs::{CWD, Mode, OFlags};

use crate::cache;
use crate::client_rule::{ClientRule, PrivilegedPort};
use crate::clients::{Clients, loopback};
use crate::export::{Export, TlsPolicy};
use crate::file::{Draft, DraftClient, DraftExport, DraftTls};
use crate::hash::{fnv1a, fold32};
use crate::http;
use crate::listen::{default_listen, is_loopback, overlap};
use crate::named::NamedPaths;
use crate::notify::check_notify;
use crate::path_policy::complete_policies;
use crate::problem::{Collector, Origin};
use crate::rate_limit::check_rate_limits;
use crate::settings::{Kerberos, Limits, Portmap, Sandbox, Settings, TlsFiles};
use crate::state::{instance_name, resolved, state_base};
use crate::table::Located;
use crate::volume::check_volumes;

/// Completes the draft. The settings are usable only if `problems` is empty afterwards.
pub(crate) fn settings(mut draft: Draft, problems: &mut Collector<'_>) -> Settings {
    let default = || default_listen().into_iter().map(|address| Located::flag(address, "--listen")).collect();
    let listen = draft.listen.take().unwrap_or_else(default);
    check_listen(&listen, problems);
    check_limits(&draft.limits, draft.connection_memory.as_ref(), problems);
    if draft.exports.is_empty() {
        problems.add(
            &Origin::flag("DIR"),
            "nothing to serve; name a directory, or add [[export]] to a file given with --config",
        );
    }
    check_names(&draft.exports, problems);
    let hidden = Hidden::of_this_process();
    check_visible(&draft, &hidden, problems);
    check_volumes(&draft.volumes, problems);
    check_notify(&draft.notify, problems);
    let names: Vec<&str> = draft
        .exports
        .iter()
        .flat_map(|export| export.name.iter().chain(&export.aliases))
        .map(|name| name.value.as_str())
        .collect();
    check_rate_limits(&draft.rate_limits, &names, problems);
    let tls = tls_files(std::mem::take(&mut draft.tls), problems);
    check_tls(&draft.exports, tls.as_ref(), problems);
    let http = draft.http.take().map(|draft| http::complete(draft, &listen, tls.is_some(), problems));
    let outside = listen.iter().find(|address| !is_loopback(&address.value));
    let written = draft.exports.iter().filter_map(|export| Some(export.path.as_ref()?.value.clone()));
    let written: Vec<PathBuf> = written.collect();
    let exports = complete_exports(&mut draft, outside, &hidden, problems);
    let policies = complete_policies(std::mem::take(&mut draft.policies), &written, &exports, problems);
    let state_dir = state_dir(draft.state_dir.take(), &exports, problems);
    let (mode, cache) = cache::complete(&mut draft, &exports, problems);
    Settings {
        listen: listen.into_iter().map(|address| address.value).collect(),
        state_dir,
        mode,
        cache,
        exports,
        nbd: draft.nbd,
        volumes: draft.volumes.into_iter().map(|(_, volume)| volume).collect(),
        locks: draft.locks.unwrap_or(true),
        nfs4: draft.nfs4.unwrap_or(true),
        nfs4_delegations: draft.nfs4_delegations.unwrap_or(true),
        profile: draft.profile.unwrap_or(true),
        portmap: draft.portmap.map_or(Portmap::Auto, |portmap| portmap.value),
        kerberos: Kerberos {
            keytab: draft.keytab.unwrap_or_else(|| Kerberos::KEYTAB.into()),
            realms: draft.realms,
        },
        idmap_domain: draft.idmap_domain,
        sandbox: draft.sandbox.unwrap_or(Sandbox::On),
        tls,
        kernel_tls: draft.kernel_tls.unwrap_or(true),
        http,
        notify: draft.notify.into_iter().map(|(_, target)| target).collect(),
        rate_limits: draft.rate_limits.into_iter().map(|(_, limit)| limit).collect(),
        policies,
        limits: draft.limits,
        log: draft.log,
        sources: draft.sources,
    }
}

/// Reports each address that overlaps with an earlier one: the server could not listen on both.
fn check_listen(listen: &[Located<SocketAddr>], problems: &mut Collector<'_>) {
    for (index, address) in listen.iter().enumerate() {
        if let Some(earlier) = listen[..index].iter().find(|earlier| overlap(&earlier.value, &address.value))
        {
            let place = problems.describe(&earlier.origin);
            let message =
                format!("{} overlaps with {} ({place}); keep one of them", address.value, earlier.value);
            problems.add(&address.origin, message);
        }
    }
}

/// Reports limits that contradict each other. Each limit alone was checked when it was read.
fn check_limits(limits: &Limits, connection_memory: Option<&Origin>, problems: &mut Collector<'_>) {
    if limits.connection_memory > limits.memory {
        let origin = connection_memory.cloned().unwrap_or(Origin::flag("--memory"));
        problems.add(
            &origin,
            "`connection_memory` is more than `memory`, the memory of all connections together",
        );
    }
}

/// Checks that the unit of this process hides none of the paths. An export is checked with its directory.
fn check_visible(draft: &Draft, hidden: &Hidden, problems: &mut Collector<'_>) {
    for message in NamedPaths::of(draft).beside_exports().filter_map(|path| hidden.refusal(path)) {
        problems.add(&Origin::flag("configuration"), message);
    }
}

/// Checks that names, aliases and ids are unique over all exports.
fn check_names(exports: &[DraftExport], problems: &mut Collector<'_>) {
    let mut seen: HashMap<&str, &Origin> = HashMap::new();
    for name in exports.iter().flat_map(|export| export.name.iter().chain(&export.aliases)) {
        if let Some(earlier) = seen.insert(&name.value, &name.origin) {
            let message =
                format!("the export name {} is already used ({})", name.value, problems.describe(earlier));
            problems.add(&name.origin, message);
        }
    }
    let mut ids: HashMap<u32, &Origin> = HashMap::new();
    for id in exports.iter().filter_map(|export| export.id.as_ref()) {
        if let Some(earlier) = ids.insert(id.value, &id.origin) {
            let message =
                format!("the export id {} is already used ({})", id.value, problems.describe(earlier));
            problems.add(&id.origin, message);
        }
    }
}

/// Returns the files of TLS, if a certificate and a key are named.
fn tls_files(draft: DraftTls, problems: &mut Collector<'_>) -> Option<TlsFiles> {
    let DraftTls { certificate, key, client_ca } = draft;
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let client_ca = client_ca.map(|path| path.value);
            return Some(TlsFiles { certificate: certificate.value, key: key.value, client_ca });
        }
        (Some(certificate), None) => {
            problems.add(
                &certificate.origin,
                "the certificate has no key; name it with `key` under [tls], or --tls-key",
            );
        }
        (None, Some(key)) => {
            problems.add(
                &key.origin,
                "the key has no certificate; name it with `certificate` under [tls], or --tls-cert",
            );
        }
        (None, None) => {
            if let Some(client_ca) = client_ca {
                let message = "clients show certificates in TLS only; name `certificate` and `key` of the server under [tls], or --tls-cert and --tls-key";
                problems.add(&client_ca.origin, message);
            }
        }
    }
    None
}

/// Checks that the files are named which the exports need.
fn check_tls(exports: &[DraftExport], files: Option<&TlsFiles>, problems: &mut Collector<'_>) {
    let has_authorities = files.is_some_and(|files| files.client_ca.is_some());
    for tls in exports.iter().filter_map(|export| export.tls.as_ref()) {
        let lacks = match tls.value {
            TlsPolicy::Off | TlsPolicy::Optional => None,
            TlsPolicy::Required if files.is_some() => None,
            TlsPolicy::Mutual if has_authorities => None,
            TlsPolicy::Mutual if files.is_some() => Some("`client_ca` under [tls], or --tls-client-ca"),
            TlsPolicy::Required | TlsPolicy::Mutual => {
                Some("`certificate` and `key` under [tls], or --tls-cert and --tls-key")
            }
        };
        if let Some(lacks) = lacks {
            problems.add(&tls.origin, format!("`tls` is {}, but a file is missing; name {lacks}", tls.value));
        }
    }
    let entries = exports.iter().flat_map(|export| &export.clients).flat_map(|client| &client.networks);
    for entry in entries {
        if let (Clients::Certificate(certificate), false) = (&entry.value, has_authorities) {
            let message = format!(
                "no client can show {certificate}: no authority for clients is named; name `client_ca` under [tls], or --tls-client-ca"
            );
            problems.add(&entry.origin, message);
        }
    }
}

/// Takes the exports of the draft, and returns them with real directories, ids and complete client rules.
fn complete_exports(
    all: &mut Draft,
    outside: Option<&Located<SocketAddr>>,
    hidden: &Hidden,
    problems: &mut Collector<'_>,
) -> Vec<Export> {
    let mut done: Vec<Located<Export>> = Vec::new();
    let delegations = all.nfs4_delegations.unwrap_or(true);
    for draft in std::mem::take(&mut all.exports) {
        let directory = draft.path.as_ref().and_then(|path| directory(path, hidden, problems));
        let name = draft.name.map_or_else(String::new, |name| name.value);
        let clients = complete_clients(&name, draft.clients, &draft.origin, outside, problems);
        let (Some(path), Some(directory)) = (draft.path, directory) else { continue };
        let id = draft.id.map_or_else(|| derived_id(&directory), |id| id.value);
        if let Some(earlier) = done.iter().find(|earlier| earlier.value.id == id) {
            let place = problems.describe(&earlier.origin);
            let message = if earlier.value.path == directory {
                format!(
                    "{} is already exported ({place}); use `aliases` there, or give one of them an `id`",
                    directory.display()
                )
            } else {
                format!(
                    "the id derived from this path is also the id of the export {} ({place}); give one of them an `id`",
                    earlier.value.name
                )
            };
            problems.add(&path.origin, message);
        }
        let aliases = draft.aliases.into_iter().map(|alias| alias.value).collect();
        let tls = draft.tls.map_or(TlsPolicy::Optional, |tls| tls.value);
        let delegations = draft.delegations.unwrap_or(delegations);
        let policy = draft.policy;
        let export = Export { path: directory, name, aliases, id, clients, tls, delegations, policy };
        done.push(Located { value: export, origin: path.origin });
    }
    done.into_iter().map(|export| export.value).collect()
}

/// Returns the id that file handles of an exported directory carry if none is configured.
pub fn derived_id(directory: &Path) -> u32 {
    fold32(fnv1a(&[directory.as_os_str().as_bytes()]))
}

/// Returns the directory without symbolic links, or notes why the directory cannot be served.
fn directory(path: &Located<PathBuf>, hidden: &Hidden, problems: &mut Collector<'_>) -> Option<PathBuf> {
    // In place of a hidden directory this process sees an empty one.
    if let Some(refusal) = hidden.refusal(&path.value) {
        problems.add(&path.origin, refusal);
        return None;
    }
    let shown = path.value.display();
    let message = match path.value.canonicalize() {
        Ok(real) if is_directory(&real) => return Some(real),
        Ok(_) => format!("{shown} is not a directory; name one"),
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_flag(&path.origin) => {
            match with_real_parent(&path.value) {
                Some(real) => return Some(real),
                None => {
                    format!("neither {shown} nor the directory it would be in exists; make that one first")
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("{shown} does not exist; make it, or correct the path")
        }
        Err(error) => format!("{shown} cannot be served: {error}"),
    };
    problems.add(&path.origin, message);
    None
}

/// Returns true if `path` leads to a directory. A file system that is mounted there is not asked: it may not answer,
/// and the server could not report that.
fn is_directory(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).is_ok()
}

/// Returns a path whose last component alone does not exist, with the symbolic links of the rest resolved. A symbolic
/// link that leads nowhere exists.
fn with_real_parent(path: &Path) -> Option<PathBuf> {
    let parent = path.parent()?.canonicalize().ok()?;
    let real = parent.join(path.file_name()?);
    real.symlink_metadata().is_err().then_some(real)
}

/// Returns the rules of an export with the defaults filled in. Adds a problem for a rule that never counts, and for an
/// export that any host could reach without a rule.
fn complete_clients(
    name: &str,
    drafts: Vec<DraftClient>,
    export: &Origin,
    outside: Option<&Located<SocketAddr>>,
    problems: &mut Collector<'_>,
) -> Vec<ClientRule> {
    let open =
        drafts.is_empty() || drafts.iter().any(|draft| draft.networks.is_empty() && is_flag(&draft.origin));
    if let (true, Some(address)) = (open, outside) {
        let mend = match export {
            Origin::Flag(_) => "add --allow NETWORK, such as --allow 192.168.0.0/24",
            Origin::File(_) => "add [[export.client]] with networks = [\"192.168.0.0/24\"] to it",
        };
        let message = format!(
            "other hosts can reach {}, but no rule says which may use the export {name}; {mend}",
            address.value
        );
        problems.add(&address.origin, message);
    }
    let mut rules: Vec<ClientRule> = Vec::new();
    for draft in drafts {
        let default = ClientRule::default();
        let (mut networks, mut certificates) = (Vec::new(), Vec::new());
        for entry in draft.networks {
            match entry.value {
                Clients::Networks(listed) => networks.extend(listed),
                Clients::Certificate(certificate) => certificates.push(certificate),
            }
        }
        let covered =
            |network: &IpNet| rules.iter().flat_map(|rule| &rule.networks).any(|wide| wide.contains(network));
        if !networks.is_empty() && certificates.is_empty() && networks.iter().all(covered) {
            problems.add(
                &draft.origin,
                "the rule is never used: earlier rules cover all of its networks; move it up",
            );
        }
        if networks.is_empty() && certificates.is_empty() {
            networks = loopback();
        }
        rules.push(ClientRule {
            networks,
            certificates,
            access: draft.access.unwrap_or(default.access),
            squash: draft.squash.unwrap_or(default.squash),
            anonuid: draft.anonuid.unwrap_or(default.anonuid),
            anongid: draft.anongid.unwrap_or(default.anongid),
            privileged_port: PrivilegedPort::said(draft.privileged_port),
            manage_gids: draft.manage_gids,
            sec: if draft.sec.is_empty() { default.sec } else { draft.sec },
        });
    }
    if rules.is_empty() {
        rules.push(ClientRule::default());
    }
    rules
}

fn is_flag(origin: &Origin) -> bool {
    matches!(origin, Origin::Flag(_))
}

/// Returns the state directory: the given one, or one derived from the exported directories.
fn state_dir(given: Option<Located<PathBuf>>, exports: &[Export], problems: &mut Collector<'_>) -> PathBuf {
    let paths: Vec<&Path> = exports.iter().map(|export| export.path.as_path()).collect();
    let (path, origin) = match (given, state_base()) {
        (Some(given), _) => (given.value, given.origin),
        (None, Some(base)) => (base.join(instance_name(&paths)), Origin::flag("--state-dir")),
        (None, None) => {
            let message = "neither HOME nor XDG_STATE_HOME says where state may be kept; name a directory";
            problems.add(&Origin::flag("--state-dir"), message);
            return PathBuf::new();
        }
    };
    let path = resolved(&path);
    if let Some(export) = exports.iter().find(|export| path.starts_with(&export.path)) {
        let message = format!(
            "the state directory {} lies inside the exported {}; name one outside, clients must not reach it",
            path.display(),
            export.path.display()
        );
        problems.add(&origin, message);
    }
    path
}
