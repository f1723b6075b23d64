//! Installs the programs that the machine lacks: Debian packages, cargo tools, the guest's kernel.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::{
    leftovers,
    process::{command, output, run},
    vm::{Kernel, Machine, Release},
};

const PACKAGES: &[&str] = &[
    "acl",
    "btrfs-progs",
    "busybox-static",
    // The browser that opens the page, and the program that drives it.
    "chromium",
    "chromium-driver",
    "dpkg-dev",
    "e2fsprogs",
    "fio",
    "g++",
    "gcc",
    "git",
    "iproute2",
    "kmod",
    "krb5-admin-server",
    "krb5-kdc",
    "libc6-dev",
    "libnbd-bin",
    "libnfs-utils",
    "linux-libc-dev",
    "lintian",
    "make",
    // Mount.nfs looks up `tcp` in /etc/protocols.
    "netbase",
    "nbd-client",
    // Servers for the tests of the NBD client.
    "nbdkit",
    "nfs-common",
    "openssl",
    "patchelf",
    "prometheus",
    "python3",
    "python3-libnbd",
    "qemu-system-x86",
    "qemu-utils",
    "rpm",
    "slirp4netns",
    "systemd",
    "udev",
    "umoci",
    "xfsprogs",
];

/// Packages for comparisons with nfs-ganesha only.
const PEERS: [&str; 3] = ["nfs-ganesha", "nfs-ganesha-vfs", "rpcbind"];

struct Tool {
    name: &'static str,
    version: &'static str,
    /// True if an unoptimized build suffices, which compiles several times faster.
    unoptimized: bool,
}

const TOOLS: [Tool; 4] = [
    Tool { name: "cargo-deny", version: "0.20.2", unoptimized: true },
    Tool { name: "cargo-fuzz", version: "0.13.2", unoptimized: true },
    Tool { name: "fsx", version: "0.3.2", unoptimized: false },
    Tool { name: "pjdfstest", version: "0.2.2", unoptimized: false },
];

/// The tool for `cargo x mutants` only.
const MUTANTS: Tool = Tool { name: "cargo-mutants", version: "27.1.0", unoptimized: true };

/// Installs everything that `cargo x ci` needs, and removes what would disturb it. With `peers`, also the servers to
/// compare with; with `mutants`, also cargo-mutants.
pub(crate) fn setup(peers: bool, mutants: bool) -> Result<()> {
    let mut packages = PACKAGES.to_vec();
    if peers {
        packages.extend(PEERS);
    }
    install_packages(&packages)?;
    leftovers::remove()?;
    install_tools(mutants.then_some(MUTANTS))?;
    install_nightly();
    Kernel::ready(Release::default(), Machine::here())?;
    Kernel::ready(Release::default(), Machine::Emulated)?;
    Ok(())
}

/// Installs the Debian packages that are missing. Without root, fails with the command that an administrator has to
/// run.
fn install_packages(wanted: &[&str]) -> Result<()> {
    let installed = output(&mut command("dpkg-query", ["-W", "-f", "${db:Status-Status} ${Package}\n"]))?;
    let missing: Vec<_> = wanted
        .iter()
        .filter(|package| !installed.lines().any(|line| line == format!("installed {package}")))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        let names = missing.into_iter().copied().collect::<Vec<_>>().join(" ");
        bail!("these packages are missing; as root: apt-get install --no-install-recommends {names}");
    }
    let apt = |arguments: &[&str]| {
        run(command("apt-get", ["-q", "-y", "-o", "DPkg::Lock::Timeout=600"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"])?;
    let names: Vec<_> = missing.into_iter().copied().collect();
    apt(&[&["install", "--no-install-recommends"], names.as_slice()].concat())
}

/// Installs the cargo tools that are missing or have another version.
fn install_tools(more: Option<Tool>) -> Result<()> {
    let installed = output(&mut command("cargo", ["install", "--list"]))?;
    for Tool { name, version, unoptimized } in TOOLS.into_iter().chain(more) {
        if installed.lines().any(|line| line == format!("{name} v{version}:")) {
            continue;
        }
        let mut install = command("cargo", ["install", "--locked", "--force", "--version", version, name]);
        if unoptimized {
            install.args(["--profile", "dev"]);
        }
        run(&mut install)?;
    }
    Ok(())
}

/// Installs a nightly compiler for fuzzing. If this fails, CI reports that fuzzing is skipped.
fn install_nightly() {
    if !has_nightly() {
        let _ = run(&mut command("rustup", ["toolchain", "install", "nightly", "--profile", "minimal"]));
    }
}

/// Returns true if rustup has a nightly toolchain.
pub(crate) fn has_nightly() -> bool {
    output(&mut command("rustup", ["toolchain", "list"]))
        .is_ok_and(|list| list.lines().any(|line| line.starts_with("nightly")))
}

/// Returns the path of a cargo tool.
pub(crate) fn tool(name: &str) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let path = home.join("bin").join(name);
    if !path.is_file() {
        bail!("{} is missing: run `cargo x setup`", path.display());
    }
    Ok(path)
}
