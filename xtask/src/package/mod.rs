//! `cargo x package`: makes the packages that administrators install (docs/decisions/053-packages.md).

mod archive;
mod deb;
mod installed;
mod rpm;
mod tree;

pub(crate) use installed::check;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};

use self::deb::Packing;
use crate::{
    dist::{self, Linked},
    process::{command, output, run, target_dir},
};

/// The arguments of `cargo x package`.
#[derive(Args)]
pub(crate) struct Package {
    /// Packages to make, separated by commas [default: all]
    #[arg(value_enum, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Directory for the packages, made if missing [default: target/packages]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run the server of the archive and of the image, each in a root directory of its own (needs root)
    #[arg(long = "try")]
    tries: bool,
}

/// A kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// For Debian 12 and later, and Ubuntu 22.04 and later
    Deb,
    /// For RHEL 9 and its relatives
    Rpm,
    /// Archive of one directory with a static binary, for every distribution
    Tar,
    /// OCI image with the static binary, as a directory in OCI layout
    Image,
}

/// The newest C library that a distribution of a package has: RHEL 9 has 2.34.
const GLIBC: (u32, u32) = (2, 34);

/// Target of the static binary.
const STATIC: &str = "x86_64-unknown-linux-musl";

impl Package {
    /// Makes the packages of the chosen kinds, or of all kinds, and prints their paths. Packages of one kind of
    /// binary share a build.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let kinds = if self.kinds.is_empty() { Kind::value_variants() } else { &self.kinds };
        let out = self.out.unwrap_or_else(|| target_dir().join("packages"));
        let out = std::path::absolute(&out).with_context(|| format!("cannot use {}", out.display()))?;
        std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
        let version = version()?;
        let has = |wanted: &[Kind]| kinds.iter().any(|kind| wanted.contains(kind));
        if has(&[Kind::Deb, Kind::Rpm]) {
            let binary = dynamic(Linked::Optimised)?;
            if has(&[Kind::Deb]) {
                println!("{}", deb::make(&binary, &version, &out, Packing::Small)?.display());
            }
            if has(&[Kind::Rpm]) {
                println!("{}", rpm::make(&binary, &version, &out)?.display());
            }
        }
        let (mut tar, mut image) = (None, None);
        if has(&[Kind::Tar, Kind::Image]) {
            let binary = static_binary()?;
            if has(&[Kind::Tar]) {
                tar = Some(archive::tar(&binary, &version, &out)?);
            }
            if has(&[Kind::Image]) {
                image = Some(archive::image(&binary, &version, &out)?);
            }
        }
        for path in [&tar, &image].into_iter().flatten() {
            println!("{}", path.display());
        }
        match (self.tries, tar, image) {
            (false, ..) => Ok(ExitCode::SUCCESS),
            (true, Some(tar), Some(image)) => Ok(crate::status(&installed::try_in_roots(&tar, &image)?)),
            (true, ..) => bail!("--try needs the kinds tar and image"),
        }
    }
}

/// Returns the version of the workspace.
fn version() -> Result<String> {
    let id = output(&mut command("cargo", ["pkgid", "-p", "forebay-cli"]))?;
    let version = id.trim().rsplit(['#', '@']).next().unwrap_or_default();
    ensure!(!version.is_empty(), "cargo pkgid says nothing of a version: {id}");
    Ok(version.to_owned())
}

/// Builds the binary for packages of distributions, and returns its path. It uses the host's name service, which a
/// static binary cannot.
fn dynamic(linked: Linked) -> Result<PathBuf> {
    run(&mut dist::build(linked))?;
    let out = target_dir().join("dist");
    dist::split(&target_dir().join("release/forebay"), &out)?;
    let binary = out.join("forebay");
    let newest = newest_glibc(&binary)?;
    ensure!(
        newest <= GLIBC,
        "the binary needs glibc {}.{}, but RHEL 9 has {}.{}: `objdump -T {}` shows the symbols",
        newest.0,
        newest.1,
        GLIBC.0,
        GLIBC.1,
        binary.display()
    );
    Ok(binary)
}

/// Returns the newest version of glibc of which the binary uses a symbol.
fn newest_glibc(binary: &Path) -> Result<(u32, u32)> {
    let symbols = output(command("objdump", ["-T"]).arg(binary))?;
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut numbers = rest[..end].split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max().context("the binary uses no symbol of glibc")
}

/// Builds the static binary and returns its path, without debug information.
fn static_binary() -> Result<PathBuf> {
    let installed = output(&mut command("rustup", ["target", "list", "--installed"]))?;
    if !installed.lines().any(|target| target == STATIC) {
        run(&mut command("rustup", ["target", "add", STATIC]))?;
    }
    // Parts of the binary are C, for which musl has a compiler of its own.
    let found = command("musl-gcc", ["--version"]).output().is_ok();
    ensure!(found, "musl-gcc is missing: apt-get install musl-tools");
    run(dist::build(Linked::Optimised)
        .args(["--target", STATIC])
        .env("CC_x86_64_unknown_linux_musl", "musl-gcc"))?;
    let out = target_dir().join("dist-static");
    dist::split(&target_dir().join(STATIC).join("release/forebay"), &out)?;
    Ok(out.join("forebay"))
}
