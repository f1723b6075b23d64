//! The paths that a configuration names. A unit that runs the server needs to reach them.

use std::path::{Path, PathBuf};

use forebay_common::nbd_url::{NbdServer, NbdUrl};

use crate::file::{self, Draft};
use crate::notify::{Notify, NotifyWay};
use crate::problem::Collector;
use crate::resolve::Flags;

/// The paths in a configuration, as they are written there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedPaths {
    /// Exported directories.
    pub exports: Vec<PathBuf>,
    /// Cache devices and cache files that are no NBD exports.
    pub cache: Vec<PathBuf>,
    /// The state directory, if the configuration names one.
    pub state_dir: Option<PathBuf>,
    /// Backing devices of volumes, programs, Unix sockets, certificates, keys and files with secrets.
    pub others: Vec<PathBuf>,
    /// True if events start programs, which need files that the configuration does not name.
    pub has_programs: bool,
    /// True if the text has mistakes. The server then does not start, and some paths may be missing here.
    pub has_mistakes: bool,
}

impl NamedPaths {
    /// Returns the paths in the text of a configuration. Looks at no path: at a boot nothing is mounted yet. Returns
    /// `None` if the text is not TOML.
    pub fn in_text(text: &str) -> Option<Self> {
        let mut problems = Collector::new(Some((Path::new(""), text)));
        let draft = file::read(text, &Flags::default(), &mut problems)?;
        Some(NamedPaths { has_mistakes: !problems.into_problems().0.is_empty(), ..Self::of(&draft) })
    }

    /// Returns the paths of a draft.
    pub(crate) fn of(draft: &Draft) -> Self {
        let devices = draft.cache.devices.iter().map(|device| &device.value);
        let volumes = draft.volumes.iter().map(|(_, volume)| &volume.backing);
        let (urls, paths): (Vec<_>, Vec<_>) =
            devices.clone().chain(volumes).partition(|path| NbdUrl::is_meant(path));
        let is_cache = |path: &&PathBuf| devices.clone().any(|device| device == *path);
        let (cache, volumes): (Vec<_>, Vec<_>) = paths.into_iter().partition(is_cache);
        let tls = [&draft.tls.certificate, &draft.tls.key, &draft.tls.client_ca];
        let tls = tls.into_iter().flatten().map(|file| file.value.clone());
        let token = draft.http.iter().filter_map(|http| http.token_file.clone());
        let others = volumes.into_iter().cloned().chain(urls.into_iter().filter_map(|url| socket_of(url)));
        let others =
            others.chain(tls).chain(token).chain(draft.keytab.clone()).chain(draft.nbd.sockets.clone());
        NamedPaths {
            exports: draft
                .exports
                .iter()
                .filter_map(|export| Some(export.path.as_ref()?.value.clone()))
                .collect(),
            cache: cache.into_iter().cloned().collect(),
            state_dir: draft.state_dir.as_ref().map(|path| path.value.clone()),
            others: others.chain(draft.notify.iter().flat_map(|(_, target)| paths_of(target))).collect(),
            has_programs: draft.notify.iter().any(|(_, target)| target.kind.way() == NotifyWay::Program),
            has_mistakes: false,
        }
    }

    /// Returns all paths but the exported directories.
    pub fn beside_exports(&self) -> impl Iterator<Item = &Path> {
        self.cache.iter().chain(&self.state_dir).chain(&self.others).map(PathBuf::as_path)
    }
}

/// Returns the Unix socket in the URL of an NBD export.
fn socket_of(url: &Path) -> Option<PathBuf> {
    match NbdUrl::of(url)?.server() {
        NbdServer::Unix(socket) => Some(socket.clone()),
        NbdServer::Tcp(..) => None,
    }
}

/// Returns the paths of a target of notifications: its program, its files and its socket.
fn paths_of(target: &Notify) -> impl Iterator<Item = PathBuf> + use<> {
    let words = target.command.first().into_iter().chain([&target.url]).map(PathBuf::from);
    let files = [&target.token_file, &target.ca_file, &target.socket].into_iter().flatten().cloned();
    let paths: Vec<_> = words.chain(files).filter(|path| path.is_absolute()).collect();
    paths.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_a_configuration_is_found_though_nothing_exists() {
        let text = r#"
            state_dir = "/a"
            cache = ["/b", "nbd+unix:///leg?socket=/c", "nbd://host/leg"]
            keytab = "/d"
            [tls]
            certificate = "/e"
            key = "/f"
            client_ca = "/g"
            [http]
            token_file = "/h"
            [nbd]
            listen = ["127.0.0.1:10809", "/i"]
            [[export]]
            path = "/j"
            name = "/"
            [[volume]]
            name = "v"
            backing = "/k"
            [[notify]]
            name = "p"
            kind = "program"
            command = ["/l", "/argument"]
            [[notify]]
            name = "s"
            kind = "slack"
            url = "/m"
            ca_file = "/n"
            token_file = "/o"
            [[notify]]
            name = "y"
            kind = "syslog"
            socket = "/p"
            [[notify]]
            name = "w"
            kind = "webhook"
            url = "https://example.org/home"
        "#;
        let named = NamedPaths::in_text(text).unwrap();
        assert_eq!((named.exports.clone(), named.cache.clone()), (vec!["/j".into()], vec!["/b".into()]));
        assert_eq!((named.has_programs, named.has_mistakes), (true, false), "{named:?}");
        let mut beside: Vec<_> = named.beside_exports().map(|path| path.to_str().unwrap()).collect();
        beside.sort_unstable();
        assert_eq!(beside.concat(), "/a/b/c/d/e/f/g/h/i/k/l/m/n/o/p");
    }

    #[test]
    fn a_text_with_mistakes_says_so() {
        let has_mistakes = |text: &str| NamedPaths::in_text(text).map(|named| named.has_mistakes);
        assert_eq!(has_mistakes("cache = ["), None);
        assert_eq!(has_mistakes("cash = []"), Some(true));
        assert_eq!(has_mistakes(""), Some(false));
    }
}
