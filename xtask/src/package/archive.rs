//! The archive and the image with the static binary.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use super::tree::{Places, Tree};
use crate::process::{command, output, root, run};

const PLACES: Places = Places { zsh: "usr/share/zsh/site-functions" };

/// Returns the time of the last commit, in seconds since 1970: the time of every file in a package.
pub(super) fn commit_time() -> Result<String> {
    let time = output(command("git", ["log", "-1", "--format=%ct"]).current_dir(root()))?;
    Ok(time.trim().to_owned())
}

/// Makes the archive and returns its path. It has one directory, to be copied to `/`.
pub(super) fn tar(binary: &Path, version: &str, out: &Path) -> Result<PathBuf> {
    let tree = Tree::new(binary, &PLACES)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        tree.copy(&root().join(licence), &format!("usr/share/doc/forebay/{licence}"), 0o644)?;
    }
    let name = format!("forebay-{version}-{}-linux", std::env::consts::ARCH);
    let path = out.join(format!("{name}.tar.xz"));
    run(command("tar", ["--create", "--xz", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", commit_time()?))
        .arg(format!("--transform=s,^\\.,{name},"))
        .arg("--file")
        .arg(&path)
        .arg("--directory")
        .arg(tree.path())
        .arg("."))?;
    Ok(path)
}

/// Makes the image, a directory in OCI layout, and returns its path. Its one layer has the binary, its configuration,
/// and the directories of state and export.
pub(super) fn image(binary: &Path, version: &str, out: &Path) -> Result<PathBuf> {
    let found = command("umoci", ["--version"]).output().is_ok();
    ensure!(found, "umoci is missing: apt-get install umoci");
    let layout = out.join(format!("forebay-{version}-image"));
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| format!("cannot replace {}", layout.display()))?;
    }
    let umoci = |words: &[&str]| run(&mut command("umoci", words));
    let (layout_name, work) = (layout.to_string_lossy().into_owned(), tempfile::tempdir()?);
    let image = format!("{layout_name}:{version}");
    let bundle = work.path().join("bundle");
    let bundle_name = bundle.to_string_lossy().into_owned();
    umoci(&["init", "--layout", &layout_name])?;
    umoci(&["new", "--image", &image])?;
    umoci(&["unpack", "--rootless", "--image", &image, &bundle_name])?;
    let files = bundle.join("rootfs");
    for dir in ["usr/bin", "etc/forebay", "var/lib/forebay", "srv", "tmp"] {
        fs::create_dir_all(files.join(dir))?;
    }
    fs::copy(binary, files.join("usr/bin/forebay"))?;
    fs::copy(root().join("packaging/image/forebay.toml"), files.join("etc/forebay/forebay.toml"))?;
    umoci(&["repack", "--image", &image, &bundle_name])?;
    umoci(&[
        "config",
        "--image",
        &image,
        "--config.entrypoint=/usr/bin/forebay",
        "--config.cmd=serve",
        "--config.cmd=--config=/etc/forebay/forebay.toml",
        "--config.exposedports=2049/tcp",
        "--config.volume=/srv",
        "--config.volume=/var/lib/forebay",
        "--config.label=org.opencontainers.image.title=forebay",
        &format!("--config.label=org.opencontainers.image.version={version}"),
        "--config.label=org.opencontainers.image.licenses=MIT OR Apache-2.0",
    ])?;
    Ok(layout)
}
