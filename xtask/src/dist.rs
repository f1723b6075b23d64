//! `cargo x dist`: makes the release binary that is installed. Debug information is three quarters of its size. It
//! goes into a file of its own, which is needed only to read a core, or a backtrace with line numbers.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::process::{command, output, run, target_dir};

/// The arguments of `cargo x dist`.
#[derive(Args)]
pub(crate) struct Dist {
    /// Directory for `forebay` and `forebay.debug`, made if missing [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Variables for the makefile of jemalloc. Without them the makefile makes a second archive that nothing links, runs
/// the compiler again for dependencies of objects that are built once, and writes ten times the debug information.
const MAKE: &str = "STATIC_LIBS=lib/libjemalloc_pic.a CC_MM= EXTRA_CFLAGS=-g1";

/// The optimisation of the release binary across crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linked {
    /// As the profile `release` says. The machine code is that of `cargo build --release`.
    Optimised,
    /// None, for CI: the optimisation of the whole program takes a fifth of the processor time of the build.
    Plain,
}

/// Returns the command that builds the release binary.
pub(crate) fn build(linked: Linked) -> Command {
    let mut command = command("cargo", ["build", "--release", "--bin", "forebay"]);
    if linked == Linked::Plain {
        command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    }
    // The build script of tikv-jemalloc-sys passes them on. Cargo does not build the script again when they change.
    command.env("MAKEFLAGS", MAKE);
    command
}

impl Dist {
    /// Builds the release binary, and writes it and its debug information to the output directory. Prints both paths.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let out = self.out.unwrap_or_else(|| target_dir().join("dist"));
        // Cargo runs in the workspace's root, but this program may run elsewhere, so the path is made absolute.
        let out = std::path::absolute(&out).with_context(|| format!("cannot use {}", out.display()))?;
        run(&mut build(Linked::Optimised))?;
        split(&target_dir().join("release/forebay"), &out)?;
        println!("{} and {}", out.join("forebay").display(), out.join("forebay.debug").display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes `forebay` without debug information, and `forebay.debug` with it, into `out`. Function names stay in the
/// binary.
pub(crate) fn split(built: &Path, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let (binary, debug) = (out.join("forebay"), out.join("forebay.debug"));
    run(command("objcopy", ["--only-keep-debug"]).arg(built).arg(&debug))?;
    let link = format!("--add-gnu-debuglink={}", debug.display());
    run(command("objcopy", ["--strip-debug", &link]).arg(built).arg(&binary))?;
    let sizes = [built, &binary].map(|path| path.metadata().map_or(0, |metadata| metadata.len()));
    ensure!(sizes[1] > 0 && sizes[1] * 2 < sizes[0], "{} is as large as before", binary.display());
    output(&mut command(&binary.to_string_lossy(), ["--version"])).map(drop)
}
