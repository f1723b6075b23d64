//! The package for RHEL and its relatives, made with rpmbuild.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{
    archive::commit_time,
    tree::{Places, Tree},
};
use crate::process::{command, root, run};

const PLACES: Places = Places { zsh: "usr/share/zsh/site-functions" };

/// Makes the package and returns its path.
pub(super) fn make(binary: &Path, version: &str, out: &Path) -> Result<PathBuf> {
    let found = command("rpmbuild", ["--version"]).output().is_ok();
    ensure!(found, "rpmbuild is missing: apt-get install rpm");
    let tree = Tree::new(binary, &PLACES)?;
    let work = tempfile::tempdir()?;
    // A version of RPM has no hyphen.
    let name = format!("forebay-{}-1.{}.rpm", version.replace('-', "~"), std::env::consts::ARCH);
    run(command("rpmbuild", ["-bb", "--quiet"])
        .arg(format!("--define=_topdir {}", work.path().display()))
        .arg(format!("--define=_rpmdir {}", out.display()))
        .arg(format!("--define=_build_name_fmt {name}"))
        .arg(format!("--define=forebay_version {}", version.replace('-', "~")))
        .arg(format!("--define=staged {}", tree.path().display()))
        .arg(root().join("packaging/rpm/forebay.spec"))
        .env("SOURCE_DATE_EPOCH", commit_time()?))?;
    let package = out.join(&name);
    ensure!(package.is_file(), "rpmbuild ended without {}", package.display());
    Ok(package)
}
