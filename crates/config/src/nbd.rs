//! The NBD door in the configuration: `[nbd]`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::problem::{Collector, Origin};
use crate::table::TableReader;

/// The port of NBD.
const PORT: u16 = 10809;

/// The settings of the NBD door.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nbd {
    /// Addresses to listen on; without addresses and sockets there is no door.
    pub listen: Vec<SocketAddr>,
    /// Unix sockets to listen on.
    pub sockets: Vec<PathBuf>,
    /// True to serve clients at other addresses than loopback ones without TLS.
    pub insecure: bool,
    /// True if clients with TLS have to show a certificate.
    pub client_certificate: bool,
}

/// A place to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NbdPlace {
    Address(SocketAddr),
    Socket(PathBuf),
}

impl Nbd {
    /// Replaces the places to listen at.
    pub(crate) fn set_places(&mut self, places: impl IntoIterator<Item = NbdPlace>) {
        (self.listen, self.sockets) = (Vec::new(), Vec::new());
        for place in places {
            match place {
                NbdPlace::Address(address) => self.listen.push(address),
                NbdPlace::Socket(path) => self.sockets.push(path),
            }
        }
    }

    /// Returns the places to listen at, as they are written in the configuration.
    pub fn places(&self) -> Vec<String> {
        let addresses = self.listen.iter().map(ToString::to_string);
        addresses.chain(self.sockets.iter().map(|path| path.display().to_string())).collect()
    }
}

/// Parses `ADDR:PORT`, `ADDR` alone for port 10809, or the absolute path of a Unix socket.
pub(crate) fn parse_place(text: &str) -> Result<NbdPlace, String> {
    if text.starts_with('/') && !text.contains('\0') {
        return Ok(NbdPlace::Socket(PathBuf::from(text)));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(NbdPlace::Address(address));
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match bare.parse::<IpAddr>() {
        Ok(address) => Ok(NbdPlace::Address(SocketAddr::new(address, PORT))),
        Err(_) => Err(format!(
            "`{text}` is no place for NBD; write ADDR:PORT, such as 127.0.0.1:10809, or the absolute path of a Unix socket"
        )),
    }
}

/// Reads `[nbd]`.
pub(crate) fn read_nbd(mut table: TableReader<'_, '_>, problems: &mut Collector<'_>) -> Nbd {
    let mut nbd = Nbd::default();
    let places = table.list("listen", problems, parse_place).map_or(Vec::new(), |list| list.value);
    if !table.has("listen") {
        let message = "[nbd] has no `listen`; add listen = [\"127.0.0.1:10809\"]";
        problems.add(&Origin::flag("[nbd]"), message);
    }
    nbd.set_places(places.into_iter().map(|place| place.value));
    nbd.insecure = table.boolean("insecure", problems).is_some_and(|flag| flag.value);
    let certificate = table.boolean("client_certificate", problems);
    nbd.client_certificate = certificate.as_ref().is_some_and(|flag| flag.value);
    if let Some(flag) = certificate.filter(|flag| flag.value && nbd.insecure) {
        let message = "with `insecure = true`, clients without TLS need no certificate; remove `insecure` or \
                       `client_certificate`";
        problems.add(&flag.origin, message);
    }
    table.finish(problems);
    nbd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_socket() {
        assert_eq!(parse_place("127.0.0.1"), Ok(NbdPlace::Address(([127, 0, 0, 1], PORT).into())));
        assert_eq!(parse_place("[::1]:7"), Ok(NbdPlace::Address("[::1]:7".parse().unwrap())));
        assert_eq!(parse_place("/run/x.sock"), Ok(NbdPlace::Socket("/run/x.sock".into())));
        assert!(parse_place("run/x.sock").is_err() && parse_place("").is_err());
    }
}
