//! The protection of a mount: certificates for TLS, and a realm of Kerberos with its KDC.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::{
    process::{Guarded, bounded, command, output, run},
    vm::unpacked,
};

/// The name of the server in certificates and principals. Guests find its address in `/etc/hosts`.
const SERVER: &str = "forebay.test";
const CLIENT: &str = "guest.test";
const REALM: &str = "FOREBAY.TEST";
/// Packages of Debian 13 with tlshd, and with all libraries that it needs beyond those of the C library.
const TLSHD: [&str; 22] = [
    "ktls-utils",
    "libatomic1",
    "libblkid1",
    "libc6",
    "libffi8",
    "libgcc-s1",
    "libglib2.0-0t64",
    "libgmp10",
    "libgnutls30t64",
    "libhogweed6t64",
    "libidn2-0",
    "libkeyutils1",
    "libmount1",
    "libnettle8t64",
    "libnl-3-200",
    "libnl-genl-3-200",
    "libp11-kit0",
    "libpcre2-8-0",
    "libselinux1",
    "libtasn1-6",
    "libunistring5",
    "zlib1g",
];

/// The protection of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Security {
    /// None.
    Plain,
    /// TLS with a certificate of the server (`xprtsec=tls`). Needs kernel 6.12.
    Tls,
    /// TLS with certificates of both sides (`xprtsec=mtls`). Needs kernel 6.12.
    Mtls,
    /// Kerberos with encryption (`sec=krb5p`).
    Krb5p,
}

/// The flags and the environment of a server, and the processes that it needs.
#[derive(Default)]
pub(crate) struct Protection {
    pub(crate) flags: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    _kdc: Option<Guarded>,
}

impl Security {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Security::Plain => "plain",
            Security::Tls => "tls",
            Security::Mtls => "mtls",
            Security::Krb5p => "krb5p",
        }
    }

    /// Fetches the programs that the client needs. They are fetched once. Returns their directory.
    pub(crate) fn programs(self) -> Result<Option<PathBuf>> {
        match self {
            Security::Tls | Security::Mtls => unpacked("trixie", "ktls", &TLSHD).map(Some),
            Security::Plain | Security::Krb5p => Ok(None),
        }
    }

    /// Puts the files of server and client into `dir`. Starts a KDC at `address` if it is needed.
    pub(crate) fn prepare(self, dir: &Path, address: &str) -> Result<Protection> {
        match self {
            Security::Plain => Ok(Protection::default()),
            Security::Tls => {
                Ok(Protection { flags: certificates(dir, "required")?, ..Protection::default() })
            }
            Security::Mtls => {
                let mut flags = certificates(dir, "mutual")?;
                flags.extend(["--tls-client-ca".into(), dir.join("ca.pem").into_os_string()]);
                Ok(Protection { flags, ..Protection::default() })
            }
            Security::Krb5p => realm(dir, address),
        }
    }
}

/// Makes an authority, and a certificate of each side. Returns the flags of the server.
fn certificates(dir: &Path, tls: &str) -> Result<Vec<OsString>> {
    let openssl = |words: &str| {
        output(command("openssl", words.split(' ')).current_dir(dir))
            .map(drop)
            .context("is openssl installed?")
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
    openssl(&format!("req -x509 {key} -subj /CN=authority -keyout ca.key -out ca.pem"))?;
    for name in [SERVER, CLIENT] {
        openssl(&format!("req {key} -subj /CN={name} -keyout {name}.key -out {name}.csr"))?;
        fs::write(dir.join("names"), format!("subjectAltName=DNS:{name}\n"))?;
        openssl(&format!(
            "x509 -req -days 30 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out {name}.pem"
        ))?;
    }
    let file = |ending: &str| dir.join(format!("{SERVER}.{ending}")).into_os_string();
    Ok(["--tls".into(), tls.into(), "--tls-cert".into(), file("pem"), "--tls-key".into(), file("key")].into())
}

/// Makes a realm with the principals of server and client, and starts its KDC.
fn realm(dir: &Path, address: &str) -> Result<Protection> {
    let path = |name: &str| dir.join(name).display().to_string();
    let conf = format!(
        "[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
         dns_canonicalize_hostname = false\n[realms]\n{REALM} = {{\nkdc = {address}\n}}\n\
         [domain_realm]\n.test = {REALM}\n"
    );
    let profile = format!(
        "[kdcdefaults]\nkdc_listen = {address}:88\nkdc_tcp_listen = {address}:88\n[realms]\n{REALM} = {{\n\
         database_name = {}\nkey_stash_file = {}\nacl_file = {}\n}}\n",
        path("database"),
        path("stash"),
        path("acl")
    );
    fs::write(dir.join("krb5.conf"), conf)?;
    fs::write(dir.join("kdc.conf"), profile)?;
    let with = |command: &mut Command| {
        command.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
    };
    let tool = |name: &str, words: &[&str]| {
        let mut tool = command(name, words);
        with(&mut tool);
        run(&mut tool).context("are krb5-kdc and krb5-admin-server installed?")
    };
    tool("kdb5_util", &["create", "-s", "-P", "master", "-r", REALM])?;
    for name in [SERVER, CLIENT] {
        tool("kadmin.local", &["-q", &format!("addprinc -randkey nfs/{name}")])?;
        tool("kadmin.local", &["-q", &format!("ktadd -k {} nfs/{name}", path(&format!("{name}.keytab")))])?;
    }
    let mut kdc = bounded(None, "krb5kdc", ["-n", "-r", REALM]);
    with(&mut kdc);
    let kdc = Guarded(kdc.stderr(Stdio::null()).spawn().context("cannot start the KDC")?);
    let keytab = dir.join(format!("{SERVER}.keytab")).into_os_string();
    let flags = vec!["--sec".into(), "krb5p".into(), "--keytab".into(), keytab];
    Ok(Protection { flags, environment: vec![("KRB5_CONFIG", dir.join("krb5.conf"))], _kdc: Some(kdc) })
}
