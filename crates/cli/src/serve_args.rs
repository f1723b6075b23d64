//! The flags of `forebay serve`.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use forebay_config::{
    ClientRule, Flags, Flavor, LIMITS, Limits, LogFormat, LogLevel, Mode, Portmap, Sandbox, Squash,
    TlsPolicy, parse_group, parse_size, parse_user,
};

use crate::args::one_of;

#[derive(Debug, Args)]
#[command(after_help = "\
DIR is served as `/`; if only its last component is missing, it is made. A directory on the command line replaces \
the exports of the file; any other flag overrides the setting in the file.

Examples:
  forebay serve ./data                                      # two cache files are made for it
  forebay serve /srv/data --cache /dev/nvme0n1p4 --cache /dev/nvme1n1p4
  forebay serve ./data --cache /ssd1/cache --cache /ssd2/cache --cache-size 100GiB
  forebay serve ./data --mode pass-through                  # no cache
  forebay serve ./data --listen 127.0.0.1:12049            # without root
  forebay serve /srv/data --export /data --listen 0.0.0.0 --allow 192.168.0.0/24,fd00::/8
  forebay serve /srv/data --read-only --squash all --anonuid 1000 --anongid 1000
  forebay serve --config /etc/forebay/forebay.toml
  forebay serve --config /etc/forebay/forebay.toml --check-config")]
pub(crate) struct ServeArgs {
    /// Directory to serve
    #[arg(required_unless_present = "config", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Report every mistake in flags and configuration, or print the resulting settings; do not serve
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Address for NFS and MOUNT, port 2049 unless given; may be repeated [default: both loopback addresses]
    #[arg(long, value_name = "ADDR[:PORT]")]
    listen: Vec<String>,
    /// Address for NBD clients of block volumes, port 10809 unless given, or path of a Unix socket; may be repeated
    /// [default: none]
    #[arg(long, value_name = "ADDR[:PORT]|PATH")]
    nbd: Vec<String>,
    /// Further name of the export of DIR, in addition to `/`
    #[arg(long, value_name = "/NAME")]
    export: Option<String>,
    /// Directory for the control socket, keys and logs [default: one per served directory under /var/lib/forebay for
    /// root, else ~/.local/state/forebay]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    state_dir: Option<PathBuf>,
    /// Mode in which writes reach the backing store; write-back needs two cache devices [default: write-back]
    #[arg(long, value_name = "MODE", value_parser = one_of(Mode::ALL))]
    mode: Option<Mode>,
    /// Block device or file on an SSD to cache on, or an NBD export (nbd://HOST:PORT/NAME); may be repeated. A file
    /// is made if nothing exists at the path.
    /// [default: two files in the state directory; none in mode pass-through]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    cache: Vec<PathBuf>,
    /// Size of each cache file that has to be made [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    cache_size: Option<u64>,
    /// Memory for cached blocks [default: an eighth of the memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    ram: Option<u64>,
    /// Make a new cache on the devices, EVEN IF THEY HOLD DATA that exists nowhere else
    #[arg(long)]
    format_cache: bool,
    /// Recreate cache files that are missing from their pool, and fill them; without it, the cache continues without
    /// them
    #[arg(long)]
    make_missing: bool,
    /// Accept cache files in memory (tmpfs): a power cut loses acknowledged writes
    #[arg(long)]
    cache_in_memory: bool,
    /// Answer to clients that ask port 111 for the port of NFS, MOUNT or locks: off, register with the running
    /// rpcbind, answer from the server, or auto (register if rpcbind runs, else answer; off if all addresses are
    /// loopback); `--portmap` alone means answer [default: auto]
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "answer",
          value_parser = one_of(Portmap::ALL))]
    portmap: Option<Portmap>,
    /// Serve locks of NFSv3 clients (NLM and NSM), on the port of NFS; false is for clients that mount with nolock
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    locks: Option<bool>,
    /// Serve NFSv4.1 and 4.2, on the port of NFS; false serves NFSv3 only [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    nfs4: Option<bool>,
    /// File with the keys of nfs/HOST, for Kerberos [default: /etc/krb5.keytab]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    keytab: Option<PathBuf>,
    /// Realm whose users are this host's users, besides the host's default realm; may be repeated
    #[arg(long = "realm", value_name = "REALM")]
    realms: Vec<String>,
    /// Give NFSv4 clients no delegations: no client caches a file without asking the server. An export of the
    /// configuration can say otherwise (`delegations`)
    #[arg(long)]
    no_nfs4_delegations: bool,
    /// Filter for the process's own system calls: on (an unknown call fails, and an event reports it), strict (it
    /// ends the server) or off [default: on]
    #[arg(long, value_name = "HOW", value_parser = one_of(Sandbox::ALL))]
    sandbox: Option<Sandbox>,
    /// Certificate of the server for clients that mount with xprtsec=tls, in PEM form, with those of the authorities
    /// between it and the root
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM form; users other than its owner and group must have no access
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
    /// Authorities that sign the certificates of clients that mount with xprtsec=mtls, in PEM form
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_client_ca: Option<PathBuf>,
    /// Let the kernel encrypt connections with TLS, where it has TLS (module tls); false encrypts in user space
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tls_kernel: Option<bool>,
    /// Serve metrics and a page over HTTP, port 9049 unless given; `--http` alone listens on 127.0.0.1:9049. For an
    /// address that other hosts reach, the configuration names a token_file [default: no HTTP]
    #[arg(long, value_name = "ADDR[:PORT]", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1")]
    http: Option<String>,
    #[command(flatten, next_help_heading = "Access to DIR")]
    access: AccessArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten, next_help_heading = "Log")]
    log: LogArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Access to DIR")]
struct AccessArgs {
    /// Protection of connections: off (plain only), optional, required (TLS only) or mutual (TLS with a certificate of
    /// the client) [default: optional]
    #[arg(long, value_name = "HOW", value_parser = one_of(TlsPolicy::ALL))]
    tls: Option<TlsPolicy>,
    /// Networks whose clients may use the export, or * for all, or clients by their certificate: tls:NAME,
    /// tls:sha256:FINGERPRINT, tls:* [default: loopback]
    #[arg(long, value_name = "NETWORK[,...]", value_delimiter = ',')]
    allow: Vec<String>,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Users whose identity is replaced by the anonymous one [default: root]
    #[arg(long, value_name = "WHO", value_parser = one_of(Squash::ALL))]
    squash: Option<Squash>,
    #[arg(long, value_name = "USER", help = format!("Anonymous user: a number or a name [default: {}]", ClientRule::NOBODY),
          value_parser = parse_user)]
    anonuid: Option<u32>,
    #[arg(long, value_name = "GROUP", help = format!("Anonymous group: a number or a name [default: {}]", ClientRule::NOBODY),
          value_parser = parse_group)]
    anongid: Option<u32>,
    /// Accept only requests from source ports below 1024, which ordinary users of a client cannot use; false accepts
    /// all ports [default: if the server runs as root, required for clients on other hosts]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    privileged_port: Option<bool>,
    /// Take a user's groups from this host's user database, because AUTH_SYS carries at most sixteen
    #[arg(long)]
    manage_gids: bool,
    /// Flavours of authentication that requests may have, best first; all but sys need Kerberos [default: sys]
    #[arg(long, value_name = "FLAVOR[,...]", value_delimiter = ',', value_parser = one_of(Flavor::ALL))]
    sec: Vec<Flavor>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
struct LogArgs {
    /// Least severe messages shown [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = one_of(LogLevel::ALL))]
    log_level: Option<LogLevel>,
    /// Form of the log on stderr [default: text]
    #[arg(long, value_name = "FORM", value_parser = one_of(LogFormat::ALL))]
    log_format: Option<LogFormat>,
}

/// Flags for limits, one for each entry of [`LIMITS`], so that a limit is described in one place only.
#[derive(Debug)]
struct LimitArgs(Vec<(&'static str, String)>);

impl Args for LimitArgs {
    fn augment_args(command: Command) -> Command {
        let defaults = Limits::default();
        command.next_help_heading("Limits").args(LIMITS.iter().map(|limit| {
            let help = match limit.per_machine {
                true => limit.help.to_owned(),
                false => format!("{} [default: {}]", limit.help, limit.show(&defaults)),
            };
            Arg::new(limit.key).long(limit.key.replace('_', "-")).value_name(limit.value_name()).help(help)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |key| matches.get_one::<String>(key).map(|text| (key, text.clone()));
        Ok(Self(LIMITS.iter().filter_map(|limit| given(limit.key)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ServeArgs {
    /// Returns the flags for the settings.
    pub(crate) fn into_flags(self) -> Flags {
        Flags {
            dir: self.dir,
            export: self.export,
            config: self.config,
            listen: self.listen,
            nbd: self.nbd,
            state_dir: self.state_dir,
            mode: self.mode,
            cache: self.cache,
            cache_size: self.cache_size,
            ram: self.ram,
            format_cache: self.format_cache,
            make_missing: self.make_missing,
            cache_in_memory: self.cache_in_memory,
            portmap: self.portmap,
            locks: self.locks,
            nfs4: self.nfs4,
            no_nfs4_delegations: self.no_nfs4_delegations,
            sandbox: self.sandbox,
            tls_cert: self.tls_cert,
            tls_key: self.tls_key,
            tls_client_ca: self.tls_client_ca,
            tls_kernel: self.tls_kernel,
            http: self.http,
            tls: self.access.tls,
            allow: self.access.allow,
            read_only: self.access.read_only,
            squash: self.access.squash,
            anonuid: self.access.anonuid,
            anongid: self.access.anongid,
            privileged_port: self.access.privileged_port,
            manage_gids: self.access.manage_gids,
            sec: self.access.sec,
            keytab: self.keytab,
            realms: self.realms,
            limits: self.limits.0,
            log_level: self.log.log_level,
            log_format: self.log.log_format,
        }
    }
}
