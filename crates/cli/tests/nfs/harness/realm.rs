//! A realm of Kerberos for one test: a KDC on loopback, keytabs, and clients that call with RPCSEC_GSS.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_gss::client;
use forebay_wire::rpcsec_gss::{GssProcedure, GssService};
use tempfile::TempDir;

use super::Client;

pub(crate) const REALM: &str = "TEST.FOREBAY";
/// The null procedure of NFSv3.
pub(crate) const NULL: (u32, u32, u32) = (100_003, 3, 0);

/// A realm with its KDC, which ends with this value.
pub(crate) struct Realm {
    dir: TempDir,
    kdc: Child,
}

impl Realm {
    /// Makes a realm with the server's principal and these principals, each with a keytab of its name. Returns `None`
    /// on a host without a KDC. Panics there if `CI` is set: the tests of a change have to include Kerberos.
    pub(crate) fn start(principals: &[&str]) -> Option<Self> {
        if Command::new("krb5kdc").arg("-h").output().is_err() {
            let lacks = "it needs krb5-kdc and krb5-admin-server";
            assert!(std::env::var_os("CI").is_none(), "not run: {lacks}");
            eprintln!("not run: {lacks}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let port = free_port();
        let conf = format!(
            "[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
             dns_canonicalize_hostname = false\nqualify_shortname = \"\"\n[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n\
             [domain_realm]\nlocalhost = {REALM}\n"
        );
        let profile = format!(
            "[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n{REALM} = {{\n\
             database_name = {}\nkey_stash_file = {}\nacl_file = {}\n}}\n[logging]\nkdc = STDERR\n",
            path("database"),
            path("stash"),
            path("acl")
        );
        std::fs::write(path("krb5.conf"), conf).unwrap();
        std::fs::write(path("kdc.conf"), profile).unwrap();
        run(dir.path(), "kdb5_util", &["create", "-s", "-P", "master", "-r", REALM]);
        for principal in principals.iter().chain(&["nfs/localhost"]) {
            let keytab = dir.path().join(keytab_name(principal));
            run(dir.path(), "kadmin.local", &["-q", &format!("addprinc -randkey {principal}")]);
            run(dir.path(), "kadmin.local", &["-q", &format!("ktadd -k {} {principal}", keytab.display())]);
        }
        let mut command = command(dir.path(), "krb5kdc");
        let mut kdc = command.args(["-n", "-r", REALM]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(kdc.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("commencing operation")), "the KDC has ended");
        // Its further messages have to be read, or it would wait.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Realm { dir, kdc })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the configuration for `KRB5_CONFIG`.
    pub(crate) fn config(&self) -> PathBuf {
        self.dir.path().join("krb5.conf")
    }

    pub(crate) fn keytab(&self, principal: &str) -> PathBuf {
        self.dir.path().join(keytab_name(principal))
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        let _ = self.kdc.kill();
        let _ = self.kdc.wait();
    }
}

fn keytab_name(principal: &str) -> String {
    format!("{}.keytab", principal.replace('/', "-"))
}

fn free_port() -> u16 {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn command(dir: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("KRB5_CONFIG", dir.join("krb5.conf")).env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[track_caller]
fn run(dir: &Path, program: &str, words: &[&str]) {
    let output = command(dir, program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A context of a client, with the protection of its calls. Clones share the sequence numbers.
pub(crate) struct Context {
    pub(crate) client: client::Client,
    next: AtomicU32,
}

impl fmt::Debug for Context {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a context of Kerberos")
    }
}

impl Context {
    /// Makes a context for the principal whose keytab lies in `dir`. The process needs `KRB5_CONFIG`.
    pub(crate) fn establish(connection: &mut Client, dir: &Path, principal: &str) -> Self {
        let user = client::User::new(&dir.join(keytab_name(principal)), &format!("MEMORY:{principal}"));
        let user = user.unwrap_or_else(|error| panic!("{principal}: {error}"));
        let exchange = |record: &[u8]| connection.exchange(record);
        let client = client::Client::establish(&user, "nfs@localhost", NULL, exchange).unwrap();
        Context { client, next: AtomicU32::new(1) }
    }

    pub(crate) fn sequence(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a call of a procedure, with its sequence number.
    pub(crate) fn record(
        &self,
        xid: u32,
        procedure: (u32, u32, u32),
        service: GssService,
        arguments: &[u8],
    ) -> (u32, Vec<u8>) {
        let sequence = self.sequence();
        let purpose = GssProcedure::Data;
        let call = client::Call { xid, procedure, purpose, sequence, service, arguments };
        (sequence, self.client.call(&call).unwrap())
    }
}
