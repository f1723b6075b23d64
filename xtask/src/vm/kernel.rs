//! Debian's kernels for emulated machines and for user-mode Linux, with the modules that the guests need.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::{Machine, user_mode};
use crate::process::{command, output, rigs_dir, run};

/// Modules for the devices of an emulated machine.
const EMULATED: [&str; 7] =
    ["virtio_pci", "virtio_console", "virtio_net", "virtio_blk", "virtio-rng", "9pnet_virtio", "9p"];

/// Modules that the guest loads. `depmod` finds their dependencies.
const MODULES: [&str; 18] = [
    "overlay",
    "nfs",
    "nfsv3",
    "nfsv4",
    // File systems in images, with quotas. Their checksums request crc32c by name, which depmod does not know.
    "loop",
    "crc32c_generic",
    "ext4",
    "xfs",
    "quota_v2",
    // Kerberos and TLS, whose ciphers the kernel requests by name as well.
    "rpcsec_gss_krb5",
    "cts",
    "tls",
    "gcm",
    "ghash-generic",
    "ctr",
    "chacha20poly1305",
    "chacha_generic",
    "poly1305_generic",
];

/// Modules for Kerberos and TLS, with the modules that only these need. A guest that needs them loads them itself.
const SECURITY: [&str; 14] = [
    "auth_rpcgss",
    "rpcsec_gss_krb5",
    "cts",
    "tls",
    "crypto_null",
    "gcm",
    "gf128mul",
    "ghash-generic",
    "ctr",
    "chacha20poly1305",
    "libchacha",
    "chacha_generic",
    "libpoly1305",
    "poly1305_generic",
];

/// Modules for file systems in images and for NFSv4, with the modules that only these need. A guest that only mounts
/// with NFSv3 does without them: to load them takes an emulated machine longer than to boot.
const RARE: [&str; 13] = [
    "virtio_blk",
    "nfsv4",
    "dns_resolver",
    "loop",
    "crc32c_generic",
    "jbd2",
    "mbcache",
    "crc16",
    "ext4",
    "libcrc32c",
    "xfs",
    "quota_tree",
    "quota_v2",
];

/// Ciphers and checksums that are parts of newer kernels without a name of their own.
const FORMER: [&str; 4] = ["crc32c_generic", "ghash-generic", "chacha_generic", "poly1305_generic"];

/// Modules for block volumes. A guest that needs them loads them itself. The emulated kernel of Debian 12 is without
/// them, and user-mode Linux without ublk.
const BLOCK: [&str; 12] = [
    "ublk_drv",
    "nbd",
    "btrfs",
    "dm-mod",
    "md-mod",
    "raid1",
    "bcache",
    "dm-cache-smq",
    "dm-writecache",
    "dm-flakey",
    "dm-log-writes",
    "dm-thin-pool",
];

/// Modules of the kernel's NFS server. A guest that needs them loads them itself.
const SERVER: [&str; 1] = ["nfsd"];

/// Modules for a SCSI disk in memory, for user-mode Linux, whose own disks have no identity. A guest that needs them
/// loads them itself.
const SCSI: [&str; 2] = ["sd_mod", "scsi_debug"];

/// The modules that [`SCSI`] needs.
const BELOW_SCSI: [&str; 5] = ["scsi_common", "scsi_mod", "crc64", "crc64-rocksoft", "t10-pi"];

/// The modules that only those of [`BLOCK`] need.
const BELOW_BLOCK: [&str; 9] = [
    "blake2b_generic",
    "raid6_pq",
    "xor",
    "zstd_compress",
    "crc64",
    "dm-bio-prison",
    "dm-bufio",
    "dm-cache",
    "dm-persistent-data",
];

/// Writes the kernel in the second argument, a file in the format "bzImage" with an xz or zstd stream, as the third
/// one. An emulated machine would take seconds at every boot to unpack it.
const UNPACK: &str = "
import lzma, struct, subprocess, sys
image = open(sys.argv[1], 'rb').read()
# The kernel's boot.rst: setup_sects, payload_offset and payload_length.
start, length = struct.unpack_from('<II', image, 0x248)
start += (image[0x1f1] + 1) * 512
packed = image[start:start + length]
with open(sys.argv[2], 'wb') as out:
    if packed.startswith(bytes.fromhex('28b52ffd')):
        # The last four bytes are the unpacked length.
        subprocess.run(['zstd', '-dc'], input=packed[:-4], stdout=out, check=True)
    else:
        out.write(lzma.LZMADecompressor().decompress(packed))
";

/// Parts of the package with these modules and all possible dependencies.
const PARTS: [&str; 12] = [
    "boot/vmlinuz-*",
    "*lib/modules/*/modules.*",
    "*lib/modules/*/kernel/fs/*",
    "*lib/modules/*/kernel/net/*",
    "*lib/modules/*/kernel/lib/*",
    "*lib/modules/*/kernel/crypto/*",
    "*lib/modules/*/kernel/drivers/virtio/*",
    // The kernel of Debian 12 has no ublk_drv, and tar fails for a pattern that matches nothing.
    "*lib/modules/*/kernel/drivers/block/*",
    "*lib/modules/*/kernel/drivers/md/*",
    "*lib/modules/*/kernel/drivers/net/*failover.ko*",
    "*lib/modules/*/kernel/drivers/net/virtio_net.ko*",
    "*lib/modules/*/kernel/drivers/char/*virtio*",
];

/// A kernel of Debian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Release {
    /// The kernel of Debian 12, from the sources of this machine.
    #[default]
    #[value(name = "6.1")]
    V6_1,
    /// The kernel of Debian 13.
    #[value(name = "6.12")]
    V6_12,
    /// The newest kernel: that of Debian's next release.
    #[value(name = "newest")]
    Newest,
}

impl Release {
    /// Returns the name of the kernel's directory.
    fn dir(self, machine: Machine) -> &'static str {
        match (machine, self) {
            (Machine::Emulated, Release::V6_1) => "kernel",
            (Machine::Emulated, Release::V6_12) => "kernel-6.12",
            (Machine::Emulated, Release::Newest) => "kernel-newest",
            (Machine::UserMode, Release::V6_1) => "user-mode",
            (Machine::UserMode, Release::V6_12) => "user-mode-6.12",
            (Machine::UserMode, Release::Newest) => "user-mode-newest",
        }
    }

    /// Returns the modules that a guest of the release may need.
    fn wanted(self, machine: Machine) -> Vec<&'static str> {
        let (devices, block) = match (machine, self) {
            (Machine::Emulated, Release::V6_1) => (&EMULATED[..], &[][..]),
            (Machine::Emulated, _) => (&EMULATED[..], &BLOCK[..]),
            (Machine::UserMode, _) => (&SCSI[..], &BLOCK[..]),
        };
        let is_there = |module: &&str| {
            !(self == Release::Newest && FORMER.contains(module)
                || machine == Machine::UserMode && *module == "ublk_drv")
        };
        let server = if self == Release::V6_12 { &SERVER[..] } else { &[] };
        [devices, &MODULES, block, server].concat().into_iter().filter(is_there).collect()
    }

    /// Returns Debian's name of the release; `None` for that of this machine.
    fn suite(self) -> Option<&'static str> {
        match self {
            Release::V6_1 => None,
            Release::V6_12 => Some("trixie"),
            Release::Newest => Some("forky"),
        }
    }
}

/// Returns the options by which apt knows the packages of another release of Debian than that of this machine. Apt gets
/// sources and lists of its own below `work`.
fn apt_options(suite: &str, work: &Path) -> Result<Vec<OsString>> {
    let source = format!(
        "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] https://deb.debian.org/debian {suite} main\n"
    );
    fs::write(work.join("sources.list"), source)?;
    fs::create_dir_all(work.join("lists/partial"))?;
    let option = |name: &str, value: &Path| {
        let mut option = OsString::from(format!("-o{name}="));
        option.push(value);
        option
    };
    let options = vec![
        option("Dir::Etc::SourceList", &work.join("sources.list")),
        option("Dir::Etc::SourceParts", Path::new("/dev/null")),
        option("Dir::State::Lists", &work.join("lists")),
        option("Dir::Cache", &work.join("cache")),
    ];
    run(command("apt-get", ["-q", "-oAPT::Sandbox::User=root", "update"]).args(&options))?;
    Ok(options)
}

/// Returns the directory `name` with the files of packages of a release of Debian, which are not installed. They are
/// fetched once.
pub(crate) fn unpacked(suite: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let dir = rigs_dir()?.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    let work = tempfile::tempdir_in(rigs_dir()?)?;
    download(packages, &apt_options(suite, work.path())?, work.path())?;
    unpack(work.path())?;
    fs::rename(work.path().join("files"), &dir)?;
    Ok(dir)
}

/// Unpacks the packages in `work` into `work/files`.
pub(super) fn unpack(work: &Path) -> Result<()> {
    let unpack = "for package in *.deb; do dpkg-deb -x \"$package\" files || exit 1; done";
    run(command("sh", ["-c", unpack]).current_dir(work))
}

/// A kernel that is ready to boot.
pub(crate) struct Kernel {
    pub(crate) image: PathBuf,
    /// Module files, in the order in which they have to be loaded.
    modules: Vec<PathBuf>,
}

/// Name of the kernel's file.
pub(super) const IMAGE: &str = "vmlinux";
/// Name of the list of modules that are part of it.
const BUILT_IN: &str = "modules.builtin";

impl Kernel {
    /// Returns the kernel that was fetched before, or fetches the current one of the release.
    pub(crate) fn ready(release: Release, machine: Machine) -> Result<Self> {
        let dir = rigs_dir()?.join(release.dir(machine));
        let wanted = release.wanted(machine);
        if let Some(modules) = kept(&wanted, &dir)? {
            return Ok(Self { image: dir.join(IMAGE), modules });
        }
        let new = tempfile::tempdir_in(rigs_dir()?)?;
        let options = release.suite().map_or(Ok(Vec::new()), |suite| apt_options(suite, new.path()))?;
        match machine {
            Machine::Emulated => fetch(&options, &wanted, new.path()),
            Machine::UserMode => {
                user_mode::fetch(&options, &wanted, release.suite().is_some(), new.path(), &dir)
            }
        }
        .context("cannot fetch Debian's kernel (try `cargo x setup`)")?;
        if dir.is_dir() {
            fs::rename(&dir, new.path().join("old"))?;
        }
        fs::rename(new.path().join("kernel"), &dir)?;
        let modules = kept(&wanted, &dir)?.context("the kernel lacks modules")?;
        Ok(Self { image: dir.join(IMAGE), modules })
    }

    /// Returns the modules of a guest: all but those of Kerberos, TLS, block volumes and the NFS server, or only
    /// those for NFSv3.
    pub(crate) fn modules(&self, all: bool) -> impl Iterator<Item = &Path> {
        let special = [&SECURITY[..], &BLOCK, &BELOW_BLOCK, &SERVER, &SCSI, &BELOW_SCSI];
        let is_special = move |name: &str| special.iter().any(|names| names.contains(&name));
        let is_wanted = move |name: &str| !is_special(name) && (all || !RARE.contains(&name));
        let wanted = move |module: &&PathBuf| name(module).is_none_or(is_wanted);
        self.modules.iter().filter(wanted).map(PathBuf::as_path)
    }

    /// Returns the modules for block volumes.
    pub(crate) fn block_modules(&self) -> impl Iterator<Item = &Path> {
        let is_wanted = |name: &str| BLOCK.contains(&name) || BELOW_BLOCK.contains(&name);
        let wanted = move |module: &&PathBuf| name(module).is_some_and(is_wanted);
        self.modules.iter().filter(wanted).map(PathBuf::as_path)
    }

    /// Returns the modules of the kernel's NFS server.
    pub(crate) fn server_modules(&self) -> impl Iterator<Item = &Path> {
        let is_wanted = |name: &str| SERVER.contains(&name) || name == "auth_rpcgss";
        let wanted = move |module: &&PathBuf| name(module).is_some_and(is_wanted);
        self.modules.iter().filter(wanted).map(PathBuf::as_path)
    }

    /// Returns the modules for a SCSI disk in memory. The last one makes the disk.
    pub(crate) fn scsi_modules(&self) -> impl Iterator<Item = &Path> {
        let is_wanted = |name: &str| SCSI.contains(&name) || BELOW_SCSI.contains(&name);
        let wanted = move |module: &&PathBuf| name(module).is_some_and(is_wanted);
        self.modules.iter().filter(wanted).map(PathBuf::as_path)
    }

    /// Returns the modules for Kerberos and TLS.
    pub(crate) fn security_modules(&self) -> impl Iterator<Item = &Path> {
        let wanted = |module: &&PathBuf| name(module).is_some_and(|name| SECURITY.contains(&name));
        self.modules.iter().filter(wanted).map(PathBuf::as_path)
    }
}

/// Returns the modules of the kernel in `dir`; `None` if there is no unpacked kernel, or if it lacks modules that
/// are needed now.
fn kept(wanted: &[&str], dir: &Path) -> Result<Option<Vec<PathBuf>>> {
    if !dir.join(IMAGE).is_file() {
        return Ok(None);
    }
    let mut modules: Vec<_> =
        fs::read_dir(dir.join("modules"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    modules.sort();
    let built_in = fs::read_to_string(dir.join(BUILT_IN)).unwrap_or_default();
    Ok(has_all(wanted, &modules, &built_in).then_some(modules))
}

/// Returns true if the kernel has every module that its guests need, as a file or built in.
fn has_all(wanted: &[&str], modules: &[PathBuf], built_in: &str) -> bool {
    let is_there = |wanted: &str| modules.iter().any(|module| name(module) == Some(wanted));
    wanted.iter().all(|wanted| is_built_in(wanted, built_in) || is_there(wanted))
}

/// Returns true if the text of `modules.builtin` has a module.
fn is_built_in(wanted: &str, text: &str) -> bool {
    text.lines().any(|line| line.ends_with(&format!("/{wanted}.ko")))
}

/// Returns the name of a module. File names begin with the module's place in the order.
fn name(module: &Path) -> Option<&str> {
    Some(module.file_stem()?.to_str()?.split_once('-')?.1)
}

/// Fetches packages into `work`. `options` are those of [`apt_options`].
pub(super) fn download(packages: &[&str], options: &[OsString], work: &Path) -> Result<()> {
    eprintln!("fetching {}", packages.join(" and "));
    // The sandbox user of apt may be unable to write here. The package's signature is checked in any case.
    let mut download = command("apt-get", ["-q", "-oAPT::Sandbox::User=root", "download"]);
    run(download.args(packages).args(options).current_dir(work))
}

/// Puts `kernel/vmlinux` and `kernel/modules/NN-NAME.ko` into `work`.
fn fetch(options: &[OsString], wanted: &[&str], work: &Path) -> Result<()> {
    let depends = output(command("apt-cache", ["depends", "linux-image-amd64"]).args(options))?;
    let is_versioned = |word: &&str| {
        word.strip_prefix("linux-image-")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let package = depends.split_whitespace().find(is_versioned).context("no such package")?;
    download(&[package], options, work)?;
    let patterns: Vec<_> = PARTS.iter().map(|part| format!("./{part}")).collect();
    run(command(
        "sh",
        ["-c", "dpkg-deb --fsys-tarfile linux-image-*.deb | tar -x --wildcards \"$@\"", "sh"],
    )
    .args(patterns)
    .current_dir(work))?;

    if work.join("usr/lib").exists() {
        // Where Debian 13 has its modules.
        std::os::unix::fs::symlink("usr/lib", work.join("lib"))?;
    }
    run(command("sh", ["-c", "find -L lib -name '*.ko.xz' -exec xz -d {} +"]).current_dir(work))?;
    let version = fs::read_dir(work.join("lib/modules"))?.next().context("the package has no modules")??;
    run(command("/sbin/depmod", ["-b"]).arg(work).arg(version.file_name()))?;
    take_modules(wanted, &version.path(), work)?;
    let image = fs::read_dir(work.join("boot"))?.next().context("the package has no kernel")??;
    run(command("python3", ["-c", UNPACK]).arg(image.path()).arg(work.join("kernel").join(IMAGE)))
}

/// Copies the wanted modules of a package to `kernel/modules/NN-NAME.ko`, and the list of those that are built in.
/// `version` is the package's directory `lib/modules/VERSION`.
pub(super) fn take_modules(wanted: &[&str], version: &Path, work: &Path) -> Result<()> {
    let depends = fs::read_to_string(version.join("modules.dep"))?;
    let built_in = fs::read_to_string(version.join(BUILT_IN))?;
    fs::create_dir_all(work.join("kernel/modules"))?;
    fs::write(work.join("kernel").join(BUILT_IN), &built_in)?;
    for (place, module) in load_order(wanted, &depends, &built_in)?.iter().enumerate() {
        let name = Path::new(module).file_name().context("a module without a name")?.to_string_lossy();
        fs::copy(version.join(module), work.join(format!("kernel/modules/{place:02}-{name}")))?;
    }
    Ok(())
}

/// Returns the wanted modules and their dependencies, each after its dependencies, from the texts of `modules.dep` and
/// `modules.builtin`. Modules that are built in are left out.
fn load_order<'a>(wanted: &[&str], depends: &'a str, built_in: &str) -> Result<Vec<&'a str>> {
    let mut order: Vec<&str> = Vec::new();
    for wanted in wanted.iter().filter(|wanted| !is_built_in(wanted, built_in)) {
        let (module, needs) = depends
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(module, _)| module.ends_with(&format!("/{wanted}.ko")))
            .with_context(|| format!("the kernel has no module {wanted}"))?;
        // In depmod's output the deepest dependency comes last.
        for module in needs.split_whitespace().rev().chain([module]) {
            if !order.contains(&module) {
                order.push(module);
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Kernel, Machine, Release, has_all, load_order};

    #[test]
    fn modules_come_after_what_they_need() {
        let depends = "a/virtio.ko:\na/virtio_ring.ko: a/virtio.ko\na/virtio_pci.ko: a/virtio_ring.ko a/virtio.ko\n\
            a/virtio_console.ko: a/virtio_ring.ko a/virtio.ko\na/virtio_net.ko:\na/virtio_blk.ko:\na/virtio-rng.ko:\n\
            a/9pnet_virtio.ko:\na/9p.ko:\na/overlay.ko:\na/nfs.ko:\na/nfsv3.ko: a/nfs.ko\na/nfsv4.ko: a/nfs.ko\n\
            a/loop.ko:\na/crc32c_generic.ko:\na/ext4.ko: a/jbd2.ko\na/jbd2.ko:\na/xfs.ko:\na/quota_v2.ko:\n\
            a/rpcsec_gss_krb5.ko: a/auth_rpcgss.ko\na/auth_rpcgss.ko:\na/cts.ko:\na/tls.ko:\na/gcm.ko:\n\
            a/ghash-generic.ko:\na/ctr.ko:\na/chacha20poly1305.ko:\na/chacha_generic.ko:\na/poly1305_generic.ko:\n";
        let order = load_order(&Release::V6_1.wanted(Machine::Emulated), depends, "").unwrap();
        assert_eq!(order[..4], ["a/virtio.ko", "a/virtio_ring.ko", "a/virtio_pci.ko", "a/virtio_console.ko"]);
        assert_eq!(order.iter().filter(|module| **module == "a/virtio.ko").count(), 1);
    }

    #[test]
    fn a_kernel_fetched_for_fewer_modules_is_not_kept() {
        let [old, new] = [Release::V6_1, Release::V6_12].map(|release| release.wanted(Machine::Emulated));
        let mut modules: Vec<_> =
            old.iter().map(|name| PathBuf::from(format!("/k/modules/07-{name}.ko"))).collect();
        assert!(has_all(&old, &modules, "") && !has_all(&new, &modules, ""));
        modules.pop();
        assert!(!has_all(&old, &modules, ""));
        assert!(has_all(&old, &modules, "kernel/crypto/poly1305_generic.ko\n"));
    }

    #[test]
    fn user_mode_linux_needs_no_emulated_device() {
        let wanted = Release::Newest.wanted(Machine::UserMode);
        assert!(wanted.contains(&"nfsv4") && wanted.contains(&"nbd"));
        assert!(["9p", "ublk_drv", "ghash-generic"].iter().all(|module| !wanted.contains(module)));
    }

    #[test]
    fn a_guest_of_nfs_loads_no_file_systems_of_images() {
        let modules = [
            "00-virtio.ko",
            "01-nfsv3.ko",
            "02-jbd2.ko",
            "03-ext4.ko",
            "04-tls.ko",
            "05-xor.ko",
            "06-nbd.ko",
            "07-scsi_mod.ko",
            "08-scsi_debug.ko",
        ]
        .map(PathBuf::from)
        .into();
        let kernel = Kernel { image: PathBuf::new(), modules };
        let special = (kernel.security_modules().count(), kernel.block_modules().count());
        assert_eq!((kernel.modules(true).count(), special), (4, (1, 2)));
        let scsi: Vec<_> = kernel.scsi_modules().map(|module| module.to_str().unwrap()).collect();
        assert_eq!(scsi, ["07-scsi_mod.ko", "08-scsi_debug.ko"]);
        let few: Vec<_> = kernel.modules(false).map(|module| module.to_str().unwrap()).collect();
        assert_eq!(few, ["00-virtio.ko", "01-nfsv3.ko"]);
    }

    #[test]
    fn a_missing_module_is_named() {
        assert!(load_order(&["nfs"], "", "").unwrap_err().to_string().contains("nfs"));
    }
}
