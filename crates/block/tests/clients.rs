//! The door and the clients that people use: libnbd's programs, QEMU's, and fio (`cargo x setup` installs them).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is the assertion")]

#[path = "../../tls/tests/common/authority.rs"]
#[allow(dead_code, reason = "written for several tests")]
mod authority;
mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use authority::Authority;
use common::memory::Memory;
use common::*;
use forebay_tls::{Credentials, Keyring};
use forebay_volume::disk::Disk;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Runs a program; returns its output if it succeeds, else all that it said.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    // Debian's nbdsh needs Debian's Python.
    let output = Command::new(program).args(arguments).env("PATH", "/usr/bin:/bin").output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program} (run cargo x setup): {error}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(format!(
        "{program} {arguments:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    ))
}

fn done(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).unwrap_or_else(|said| panic!("{said}"))
}

/// Runs a script of nbdsh with the handle `h` connected.
fn script(uri: &str, text: &str) -> String {
    done("nbdsh", &["--base-allocation", "-u", uri, "-c", text])
}

fn contents(disk: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; disk.size.load(SeqCst) as usize];
    assert!(disk.try_read(0, &mut bytes).unwrap());
    bytes
}

#[test]
fn nbdinfo_shows_size_abilities_and_contexts() {
    let rig = Rig::new(Memory::shaped(8 * MIB, |shape| {
        (shape.minimum_block, shape.rotational, shape.maximum_payload) = (512, true, 1 << 20);
    }));
    let info: Value = serde_json::from_str(&done("nbdinfo", &["--json", &rig.uri()])).unwrap();
    assert_eq!((&info["structured"], &info["TLS"]), (&Value::Bool(true), &Value::Bool(false)));
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], 8 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation", "forebay:cache"]));
    for able in ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim"]
    {
        assert_eq!(export[able], true, "{able}");
    }
    assert_eq!((&export["can_zero"], &export["is_rotational"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(export["is_read_only"], false);
    let blocks = ["block_size_minimum", "block_size_preferred", "block_size_maximum"].map(|key| &export[key]);
    assert_eq!(blocks, [512, 4096, 1 << 20]);
    let list: Value = serde_json::from_str(&done("nbdinfo", &["--list", "--json", &rig.uri()])).unwrap();
    assert_eq!(list["exports"][0]["export-name"], "disk");
    assert!(run("nbdinfo", &[&rig.uri().replace("/disk?", "/other?")]).is_err());
    rig.stop();
}

#[test]
fn maps_show_holes_and_what_is_cached_and_dirty() {
    let rig = Rig::new(Memory::new(MIB));
    let uri = rig.uri();
    let map = |context: &str| {
        let argument = format!("--map={context}");
        let json: Value = serde_json::from_str(&done("nbdinfo", &["--json", &argument, &uri])).unwrap();
        let extents = json.as_array().unwrap().clone();
        extents
            .iter()
            .map(|one| [&one["offset"], &one["length"], &one["type"]].map(|n| n.as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    rig.disk.store(4096, &[1; 8192]);
    assert_eq!(map("base:allocation"), [[0, 4096, 3], [4096, 8192, 0], [12_288, MIB - 12_288, 3]]);
    assert_eq!(map("forebay:cache"), [[0, 4096, 0], [4096, 8192, 3], [12_288, MIB - 12_288, 0]]);
    script(&uri, "h.flush()");
    assert_eq!(map("forebay:cache")[1], [4096, 8192, 1]);
    // One extent for each context, no longer than the request.
    let one = "seen = []\nh.block_status(65536, 4096, lambda c, o, e, err: seen.append((c, o, e)), nbd.CMD_FLAG_REQ_ONE)\nprint(seen)";
    assert_eq!(script(&uri, one).trim(), "[('base:allocation', 4096, [8192, 0])]");
    rig.stop();
}

#[test]
fn an_image_passes_in_and_out_over_many_connections() {
    let size = 24 * MIB + 512;
    let rig = Rig::new(Memory::new(size));
    let path = |name: &str| rig.dir.path().join(name).display().to_string();
    let mut image = pattern(5, size as usize);
    image[(2 * MIB) as usize..(5 * MIB) as usize].fill(0);
    std::fs::write(path("in"), &image).unwrap();
    done("nbdcopy", &["--connections=4", "--requests=64", "--flush", &path("in"), &rig.uri()]);
    assert!(contents(&rig.disk) == image);
    assert!(rig.disk.flushes.load(SeqCst) > 0);
    rig.disk.is_slow.store(true, SeqCst);
    done("nbdcopy", &["--connections=4", "--requests=64", &rig.uri(), &path("out")]);
    assert!(std::fs::read(path("out")).unwrap() == image);
    done("qemu-img", &["compare", "-f", "raw", "-F", "raw", &path("in"), &rig.uri()]);
    done("qemu-img", &["convert", "-f", "raw", "-O", "raw", &rig.uri(), &path("qemu")]);
    assert!(std::fs::read(path("qemu")).unwrap() == image);
    rig.stop();
}

#[test]
fn patterns_of_qemu_io_are_read_again() {
    let rig = Rig::new(Memory::shaped(64 * MIB, |shape| shape.minimum_block = 512));
    let commands = [
        "write -P 0xaa 0 1M",
        "write -f -P 0xbb 512 1536",
        "read -P 0xbb 512 1536",
        "read -P 0xaa 2048 1046528",
        "write -z 4096 8192",
        "read -P 0 4096 8192",
        "write -z -u 65536 4096",
        "write -zun 131072 4096",
        "read -P 0 131072 4096",
        "discard 262144 65536",
        "read -P 0 262144 65536",
        "write -P 0xcc 10M 32M",
        "read -P 0xcc 10M 32M",
        "aio_write -P 1 50M 64k",
        "aio_write -P 2 51M 64k",
        "aio_flush",
        "read -P 1 50M 64k",
        "read -P 2 51M 64k",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    let uri = rig.uri();
    arguments.push(&uri);
    let said = done("qemu-io", &arguments);
    assert!(!said.contains("verification failed") && !said.contains("error"), "{said}");
    rig.stop();
}

#[test]
fn fio_verifies_what_it_wrote_at_depth() {
    let rig = Rig::new(Memory::new(16 * MIB));
    for is_slow in [false, true] {
        rig.disk.is_slow.store(is_slow, SeqCst);
        let uri = format!("--uri={}", rig.uri());
        let job =
            ["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=512-128k", "--iodepth=64"];
        let rest =
            ["--size=16m", "--verify=crc32c", "--fsync=50", "--do_verify=1", "--verify_fatal=1", "--minimal"];
        let aux = format!("--aux-path={}", rig.dir.path().display());
        done("fio", &[&job[..], &rest, &[&aux]].concat());
    }
    rig.stop();
}

#[test]
fn libnbd_gets_the_errors_that_the_protocol_names() {
    let rig = Rig::new(Memory::shaped(MIB, |shape| (shape.read_only, shape.minimum_block) = (true, 512)));
    let text = "
import errno
h.set_strict_mode(0)
def fails(call):
    try:
        call()
    except nbd.Error as error:
        return errno.errorcode[error.errnum]
print([
    fails(lambda: h.pwrite(bytes(512), 0)),
    fails(lambda: h.trim(512, 0)),
    fails(lambda: h.zero(512, 0)),
    fails(lambda: h.pread(512, 1 << 20)),
    fails(lambda: h.pread(512, 1)),
    fails(lambda: h.pread(512, 0)),
])";
    assert_eq!(script(&rig.uri(), text).trim(), "['EPERM', 'EPERM', 'EPERM', 'EINVAL', 'EINVAL', None]");
    rig.stop();
}

#[test]
fn a_thousand_requests_are_in_flight_and_each_gets_its_own_data() {
    let rig = Rig::new(Memory::new(4 * MIB));
    rig.disk.is_slow.store(true, SeqCst);
    let block = |number: u64| number.to_be_bytes().repeat(512);
    (0..1024).for_each(|number| rig.disk.store(4096 * number, &block(number)));
    let text = "
buffers = [nbd.Buffer(4096) for _ in range(1024)]
cookies = [h.aio_pread(buffers[n], 4096 * n) for n in range(1024)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
assert all(bytes(buffers[n].to_bytearray()) == n.to_bytes(8, 'big') * 512 for n in range(1024))
h.shutdown()
print('done')";
    assert_eq!(script(&rig.uri(), text).trim(), "done");
    rig.stop();
}

#[test]
fn tls_with_certificates_of_clients_and_plain_clients_refused() {
    let authority = Authority::new();
    let server = authority.issue("server", &["localhost"]);
    let client = authority.issue("client", &["client.example"]);
    let keyring = |pair: &authority::Pair| {
        let credentials = Credentials::load(&pair.certificate, &pair.key, Some(&authority.file())).unwrap();
        Arc::new(Keyring::new(Some(credentials)))
    };
    let rig = Rig::with(Memory::new(8 * MIB), |config| {
        config.tls = Some(keyring(&server));
        config.client_certificate = true;
    });
    // The names that libnbd expects in a directory of certificates.
    let credentials = |name: &str| {
        let dir = rig.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(authority.file(), dir.join("ca-cert.pem")).unwrap();
        dir
    };
    let (named, anonymous) = (credentials("named"), credentials("anonymous"));
    std::fs::copy(&client.certificate, named.join("client-cert.pem")).unwrap();
    std::fs::copy(&client.key, named.join("client-key.pem")).unwrap();
    let uri = |scheme: &str, dir: &std::path::Path| {
        format!("{scheme}://localhost:{}/disk?tls-certificates={}", rig.port(), dir.display())
    };
    let secure = uri("nbds", &named);
    let info: Value = serde_json::from_str(&done("nbdinfo", &["--json", &secure])).unwrap();
    assert_eq!(info["TLS"], true);
    let image = pattern(9, 8 << 20);
    let path = rig.dir.path().join("image").display().to_string();
    std::fs::write(&path, &image).unwrap();
    done("nbdcopy", &[&path, &secure]);
    assert!(contents(&rig.disk) == image);
    rig.disk.is_slow.store(true, SeqCst);
    let out = rig.dir.path().join("out").display().to_string();
    done("nbdcopy", &[&secure, &out]);
    assert!(std::fs::read(&out).unwrap() == image);
    // QEMU looks for the files under the same names.
    let qemu = |dir: &std::path::Path, words: &[&str]| {
        let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", dir.display());
        let disk = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls", rig.port());
        let words = words.iter().map(|word| word.replace("DISK", &disk)).collect::<Vec<_>>();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        run("qemu-img", &[&words[..1], &["--object", &object, "--image-opts"], &words[1..]].concat())
    };
    let again = rig.dir.path().join("again").display().to_string();
    qemu(&named, &["convert", "-O", "raw", "DISK", &again]).unwrap_or_else(|said| panic!("{said}"));
    assert!(std::fs::read(&again).unwrap() == image);
    let file = format!("driver=file,filename={path}");
    qemu(&named, &["compare", "DISK", &file]).unwrap_or_else(|said| panic!("{said}"));
    assert!(qemu(&anonymous, &["info", "DISK"]).is_err(), "QEMU without a certificate");
    let strange = credentials("strange");
    let elsewhere = Authority::new();
    let other = elsewhere.issue("client", &["client.example"]);
    std::fs::copy(&other.certificate, strange.join("client-cert.pem")).unwrap();
    std::fs::copy(&other.key, strange.join("client-key.pem")).unwrap();
    assert!(run("nbdinfo", &[&uri("nbds", &strange)]).is_err(), "a certificate of another authority");
    let plain = format!("nbd://localhost:{}/disk", rig.port());
    assert!(run("nbdinfo", &[&plain]).is_err(), "a plain client on TCP");
    assert!(run("nbdinfo", &[&uri("nbds", &anonymous)]).is_err(), "a client without a certificate");
    assert!(run("nbdinfo", &[&rig.uri()]).is_ok(), "a plain client of the Unix socket");
    rig.stop();
}
