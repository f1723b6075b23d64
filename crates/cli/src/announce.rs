//! The message of `serve` when it is ready: the exports, their clients, and the commands that mount them.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use forebay_config::{
    Access, ClientRule, DEFAULT_PORT, Export, Portmap, PrivilegedPort, Settings, Squash, TlsPolicy,
    is_loopback, state_base,
};
use forebay_control::HandleMode;
use forebay_server::Ready;

use crate::{output, service_manager};

/// Tells the person on stderr and, if systemd started the process, systemd.
pub(crate) fn ready(settings: &Settings, ready: &Ready) {
    let (listen, handles) = (&ready.listen, ready.handles);
    let mut lines = vec![format!("forebay {}, mode {}", env!("CARGO_PKG_VERSION"), ready.mode)];
    if !ready.cache.devices.is_empty() {
        lines.push(format!("Caching on {}", ready.cache.devices.join(" and ")));
    }
    lines.extend(ready.cache.notices.iter().map(|notice| format!("Note: {notice}.")));
    for export in &settings.exports {
        let names: Vec<&str> = export.names().collect();
        let tls = protection(export.tls);
        lines.push(format!("Serving {} as {}{tls}", export.path.display(), names.join(" and ")));
        lines.extend(export.clients.iter().map(|rule| format!("  {}", describe_rule(rule))));
        // Without privileges every client acts as this process's user, so squashing makes no difference.
        if rustix::process::geteuid().is_root() {
            lines.extend(squashed_out(export));
            lines.extend(unguarded_root(export));
        }
    }
    let addresses: Vec<String> = listen.iter().map(ToString::to_string).collect();
    lines.push(format!("Listening on {}", addresses.join(", ")));
    // An IPv4 address is preferred, because the mount options for it are the simplest.
    if let Some(address) = listen.iter().find(|address| address.is_ipv4()).or(listen.first()) {
        lines.push("Mount it with the kernel client, as root:".to_owned());
        lines.extend(
            settings.exports.iter().map(|export| format!("  {}", mount_command(address, export, settings))),
        );
        let plain: Vec<&Export> =
            settings.exports.iter().filter(|export| export.tls.admits(false, false)).collect();
        if !plain.is_empty() {
            lines.push("Or look at it without root, with the libnfs utilities:".to_owned());
            lines.extend(plain.iter().map(|export| format!("  {}", libnfs_command(address, export))));
        }
    }
    lines.push(format!("State is kept in {}", settings.state_dir.display()));
    if !state_base().is_some_and(|base| settings.state_dir.starts_with(base)) {
        lines.push(format!("  ask with: forebay status --state-dir {}", settings.state_dir.display()));
    }
    lines.extend(limits_of_privilege(handles));
    output::note(&lines.join("\n"));
    service_manager::keep(&ready.sockets);
    service_manager::ready();
}

/// Returns the TLS policy of an export as the end of a sentence. The text is empty if clients may choose.
fn protection(tls: TlsPolicy) -> &'static str {
    match tls {
        TlsPolicy::Off => ", without TLS only",
        TlsPolicy::Optional => "",
        TlsPolicy::Required => ", with TLS only",
        TlsPolicy::Mutual => ", with TLS and certificates of clients only",
    }
}

/// Returns a client rule in words: its networks, the access, the user that root acts as, and the ports.
fn describe_rule(rule: &ClientRule) -> String {
    let networks: Vec<String> = rule.clients().collect();
    let access = match rule.access {
        Access::ReadOnly => "read-only",
        Access::ReadWrite => "read-write",
    };
    let anonymous = format!("{}:{}", rule.anonuid, rule.anongid);
    let squash = match rule.squash {
        Squash::Root => format!("root acts as {anonymous}"),
        Squash::None => "root acts as root".to_owned(),
        Squash::All => format!("everyone acts as {anonymous}"),
    };
    let port = match rule.privileged_port {
        PrivilegedPort::Always => ", from ports below 1024",
        PrivilegedPort::Remote if rule.is_local() => "",
        PrivilegedPort::Remote => ", from ports below 1024 on other hosts",
        PrivilegedPort::Never => "",
    };
    format!("to {}: {access}, {squash}{port}", networks.join(", "))
}

/// Returns a warning for each rule that lets ordinary users of other hosts act as root.
fn unguarded_root(export: &Export) -> Vec<String> {
    let unguarded = |rule: &&ClientRule| {
        rule.squash == Squash::None && rule.privileged_port == PrivilegedPort::Never && !rule.is_local()
    };
    let warn = |rule: &ClientRule| {
        let networks: Vec<String> = rule.clients().collect();
        format!(
            "  warning: every user of {} can act as root in {}; set privileged_port = true, or squash = \"root\"",
            networks.join(", "),
            export.path.display()
        )
    };
    export.clients.iter().filter(unguarded).map(warn).collect()
}

/// Returns a note if a client's root cannot write, which is unexpected on a first try as root.
fn squashed_out(export: &Export) -> Option<String> {
    let squashed = |rule: &&ClientRule| rule.squash != Squash::None && rule.access == Access::ReadWrite;
    let rule = export.clients.iter().find(squashed)?;
    let directory = export.path.metadata().ok()?;
    let writable = match (directory.uid() == rule.anonuid, directory.gid() == rule.anongid) {
        (true, _) => directory.mode() & 0o200,
        (_, true) => directory.mode() & 0o020,
        _ => directory.mode() & 0o002,
    };
    (writable == 0).then(|| {
        let uid = rule.anonuid;
        format!(
            "  note: user {uid} may not write in {}; for root of trusted clients use --squash none",
            export.path.display()
        )
    })
}

/// Returns the address by which clients reach the server. For a wildcard address this is the host's name.
fn client_host(address: &SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_unspecified() => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Returns true if clients find the lock manager: they ask port 111 for it, whatever their mount options say.
fn clients_find_locks(settings: &Settings) -> bool {
    let is_found = match settings.portmap {
        Portmap::Off => false,
        Portmap::Auto => !settings.listen.iter().all(is_loopback),
        Portmap::Register | Portmap::Answer => true,
    };
    settings.locks && is_found
}

/// Returns the command for Linux's own client. NFSv4 needs no options on its own port.
fn mount_command(address: &SocketAddr, export: &Export, settings: &Settings) -> String {
    let ports = match (settings.nfs4, address.port()) {
        (true, DEFAULT_PORT) => None,
        (true, port) => Some(format!("port={port}")),
        (false, _) => Some(nfs3_options(address, clients_find_locks(settings))),
    };
    let tls = match export.tls {
        TlsPolicy::Off | TlsPolicy::Optional => None,
        TlsPolicy::Required => Some("xprtsec=tls".to_owned()),
        TlsPolicy::Mutual => Some("xprtsec=mtls".to_owned()),
    };
    let options: Vec<String> = ports.into_iter().chain(tls).collect();
    let options = if options.is_empty() { String::new() } else { format!(" -o {}", options.join(",")) };
    format!("mount -t nfs{options} {} /mnt", quoted(&format!("{}:{}", client_host(address), export.name)))
}

/// Returns the options for a mount with NFSv3. They name version and ports, so that no portmapper is asked for them
/// (nfs(5)). They have `nolock` if clients do not find the lock manager.
fn nfs3_options(address: &SocketAddr, finds_locks: bool) -> String {
    let by_address = !address.ip().is_unspecified();
    let proto = if address.is_ipv6() && by_address { "tcp6" } else { "tcp" };
    let port = address.port();
    let nolock = if finds_locks { "" } else { ",nolock" };
    format!("vers=3,proto={proto},port={port},mountport={port}{nolock}")
}

/// Returns the command of libnfs that lists the export.
fn libnfs_command(address: &SocketAddr, export: &Export) -> String {
    let port = address.port();
    let url =
        format!("nfs://{}{}?version=3&nfsport={port}&mountport={port}", client_host(address), export.name);
    format!("nfs-ls {}", quoted(&url))
}

/// Returns a word for the shell, in quotes if it has special characters.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-[]".contains(c);
    if word.chars().all(plain) && !word.contains('[') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a line for each function that is missing for lack of privileges.
fn limits_of_privilege(handles: HandleMode) -> Vec<String> {
    let mut lines = Vec::new();
    let user = rustix::process::geteuid();
    if !user.is_root() {
        lines.push(format!(
            "Not running as root: every client acts as user {user}, and changes of owner, device files and other users' files fail"
        ));
    }
    if handles == HandleMode::Fallback {
        lines.push(
            "Without CAP_DAC_READ_SEARCH files are found by inode number: the first use of an old handle after a restart walks the tree"
                .to_owned(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str) -> Export {
        Export {
            path: "/srv".into(),
            name: name.into(),
            aliases: vec![],
            id: 1,
            clients: vec![],
            tls: TlsPolicy::Optional,
            delegations: true,
            policy: forebay_config::Policy::default(),
        }
    }

    #[test]
    fn mounts_with_nfs4_name_a_port_that_is_not_the_usual_one() {
        let flags = forebay_config::Flags { dir: Some("/tmp".into()), ..forebay_config::Flags::default() };
        let settings = forebay_config::resolve(&flags).unwrap().settings;
        let at =
            |address: &str, name: &str| mount_command(&address.parse().unwrap(), &export(name), &settings);
        assert_eq!(at("127.0.0.1:2049", "/"), "mount -t nfs 127.0.0.1:/ /mnt");
        assert_eq!(at("[fd00::1]:12049", "/data"), "mount -t nfs -o port=12049 '[fd00::1]:/data' /mnt");
        let sealed = Export { tls: TlsPolicy::Required, ..export("/") };
        let command = mount_command(&"127.0.0.1:2049".parse().unwrap(), &sealed, &settings);
        assert_eq!(command, "mount -t nfs -o xprtsec=tls 127.0.0.1:/ /mnt");
        assert!(at("0.0.0.0:2049", "/it's").ends_with(r":/it'\''s' /mnt"));
    }

    #[test]
    fn mounts_with_nfs3_name_version_and_ports() {
        let options = |address: &str, finds_locks| nfs3_options(&address.parse().unwrap(), finds_locks);
        let expected = "vers=3,proto=tcp,port=12049,mountport=12049,nolock";
        assert_eq!(options("127.0.0.1:12049", false), expected);
        let expected = "vers=3,proto=tcp6,port=2049,mountport=2049,nolock";
        assert_eq!(options("[fd00::1]:2049", false), expected);
        assert_eq!(options("10.0.0.1:2049", true), "vers=3,proto=tcp,port=2049,mountport=2049");
    }

    #[test]
    fn libnfs_urls_name_version_and_ports() {
        let command = libnfs_command(&"127.0.0.1:12049".parse().unwrap(), &export("/data"));
        assert_eq!(command, "nfs-ls 'nfs://127.0.0.1/data?version=3&nfsport=12049&mountport=12049'");
    }
}
