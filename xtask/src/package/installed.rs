//! The step `packages`: makes the packages, and checks them with the distributions' own tools. Runs the archive and the
//! image in a root directory and a network of their own. Installs the package for Debian in a guest with real systemd,
//! by the commands of "In ten minutes" in `docs/operations.md`. There a client writes while the package is upgraded,
//! and while it is removed.

use std::{fs::File, path::Path, time::Duration};

use anyhow::{Result, bail};

use super::{
    archive,
    deb::{self, Packing},
    dynamic, rpm, version,
};
use crate::{
    dist::Linked,
    process::{command, output, quoted, rigs_dir, root, run},
    suites::{Counts, asset, count},
    vm::{Booted, Disk, Kernel, Machine, Release},
    watched::script,
};

/// Time for the guest.
const LIMIT: Duration = Duration::from_secs(600);

/// The disks of the guest, by serial number. The array is a SCSI disk in its memory.
const SSDS: [&str; 2] = ["ssd1", "ssd2"];

/// Makes and checks the packages, of the binary that the other steps test.
pub(crate) fn check() -> Result<Counts> {
    let work = tempfile::Builder::new().prefix("packages-").tempdir_in(rigs_dir()?)?;
    let (binary, version) = (dynamic(Linked::Plain)?, version()?);
    let old = deb::make(&binary, &version, work.path(), Packing::Fast)?;
    let new = deb::make(&binary, &format!("{version}+later"), work.path(), Packing::Light)?;
    let red_hat = rpm::make(&binary, &version, work.path())?;
    lint(&old)?;
    contains(&red_hat)?;
    let passed = 2;
    let mut told = install(&old, &new, work.path())?;
    let unpacked = in_roots(&binary, &version, work.path())?;
    (told.passed, told.failed) = (told.passed + unpacked.passed, told.failed + unpacked.failed);
    println!("packages: {} passed, {} failed", passed + told.passed, told.failed);
    Ok(Counts { passed: passed + told.passed, failed: told.failed, ..Counts::default() })
}

/// Makes the archive and the image with the binary of the packages, and runs both. A static binary would take a second
/// build; `cargo x package --try` runs both with it.
fn in_roots(binary: &Path, version: &str, work: &Path) -> Result<Counts> {
    let (tar, image) = (archive::tar(binary, version, work)?, archive::image(binary, version, work)?);
    try_in_roots(&tar, &image)
}

/// Runs the server of an archive and of an image, each in a root directory and a network of its own, without a
/// container daemon. Counts the cases that `unpacked.py` reports.
pub(super) fn try_in_roots(tar: &Path, image: &Path) -> Result<Counts> {
    Ok(count("unpacked", &script("unpacked.py", &[tar, image])?))
}

/// Checks a package for Debian with lintian(1).
fn lint(package: &Path) -> Result<()> {
    run(command("lintian", ["--no-cfg", "--allow-root", "--fail-on", "error,warning"])
        // A package of the project's own closes no bug of Debian.
        .arg("--suppress-tags=initial-upload-closes-no-bugs")
        .arg(package))
}

/// Checks that rpm(8) can read a package and that it has the files of a server.
fn contains(package: &Path) -> Result<()> {
    let files = output(command("rpm", ["--query", "--list", "--package"]).arg(package))?;
    for wanted in ["/usr/bin/forebay", "/etc/forebay/forebay.toml", "/usr/lib/systemd/system/forebay.service"]
    {
        if !files.lines().any(|file| file == wanted) {
            bail!("{} lacks {wanted}", package.display());
        }
    }
    Ok(())
}

/// Installs, upgrades and removes the package in a guest. Counts the cases that `package_judge.py` reports.
fn install(old: &Path, new: &Path, work: &Path) -> Result<Counts> {
    let disk = |serial: &str| Disk { image: work.join(serial), serial: serial.into() };
    for ssd in SSDS {
        File::create(work.join(ssd))?.set_len(128 << 20)?;
    }
    let machine = Machine::UserMode;
    let kernel = Kernel::ready(Release::default(), machine)?;
    let value = |path: &Path| quoted(&path.to_string_lossy());
    let modules: Vec<_> = kernel.scsi_modules().map(|module| module.to_string_lossy()).collect();
    let prepare = format!(
        "OLD={}\nNEW={}\nJUDGE={}\nMANUAL={}\nMODULES={}\n{}{}",
        value(old),
        value(new),
        value(&asset("package_judge.py")),
        value(&root().join("docs/operations.md")),
        quoted(&modules.join(" ")),
        include_str!("../../assets/guest_units.sh"),
        include_str!("../../assets/package_prepare.sh"),
    );
    let booted = Booted { disks: SSDS.map(disk).into(), prepare, limit: LIMIT, memory: 1536, machine };
    let mut counts = Counts::default();
    let mut ended = false;
    booted.run(|line| {
        match line.split_once(' ') {
            Some(("ok", _)) => counts.passed += 1,
            Some(("not", _)) => counts.failed += 1,
            _ => {}
        }
        ended |= line == "END";
        eprintln!("  {line}");
    })?;
    if !ended {
        bail!("the guest ended before the judge");
    }
    Ok(counts)
}
