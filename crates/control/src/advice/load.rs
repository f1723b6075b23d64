//! Advice from the load of exports and of network links: another mode of an export, an export that keeps others out of
//! the cache, and larger frames.

use forebay_config::Mode;

use super::{Gain, Measured, percent};

/// The part of all bytes that clients move from which on an export is worth a sentence.
const MUCH: f64 = 0.1;
/// The part of an export's WRITEs that continue the one before, from which on it writes streams.
const STREAMS: f64 = 0.8;
/// The part of what an export writes up to which clients hardly read it back.
const HARDLY: f64 = 0.1;
/// The size of jumbo frames in bytes.
const JUMBO: u64 = 9000;
/// The speed in Mbit/s from which on small frames cost processors.
const FAST: u64 = 10_000;
/// The rate in bytes per second from which on the number of frames matters.
const BUSY: f64 = 50e6;

/// The load of an export since the start.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportLoad {
    /// The name of the export.
    pub name: String,
    /// The exported directory.
    pub path: String,
    /// The mode in force for the exported directory.
    pub mode: Mode,
    /// Bytes of READs.
    pub bytes_read: u64,
    /// Bytes of WRITEs.
    pub bytes_written: u64,
    /// The part of WRITEs that continue the one before them, 0 to 1.
    pub sequential: f64,
    /// True if a rule already gives the data a low priority, or keeps it out of the cache.
    pub gives_way: bool,
}

/// A network interface of the server that is hardware and up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The name of the interface.
    pub name: String,
    /// The largest frame in bytes.
    pub mtu: u64,
    /// The speed in Mbit/s.
    pub speed: u64,
}

/// Says for each export whose own mode makes WRITEs wait for the backing store what write-back would change.
pub(super) fn other_modes(measured: &Measured<'_>) -> Vec<Gain> {
    let all = (measured.bytes_written + measured.bytes_read).max(1) as f64;
    let slow = measured.exports.iter().filter(|export| {
        measured.mode == Mode::WriteBack
            && export.mode != Mode::WriteBack
            && export.bytes_written > export.bytes_read
    });
    let gain = |export: &ExportLoad| {
        let part = export.bytes_written as f64 / all;
        let ExportLoad { name, path, mode, .. } = export;
        let sentence = format!(
            "WRITEs to {name} are {} of the bytes that clients move, and wait for the backing store in mode {mode}. In mode \
             write-back they wait for the SSDs only; `forebay policy show {path}` says which rule sets the mode.",
            percent(part)
        );
        (part >= MUCH).then_some(Gain { worth: part, sentence })
    };
    slow.filter_map(gain).collect()
}

/// Says for each export that writes streams and hardly reads them how much of the SSDs' writes they are.
pub(super) fn excluded(measured: &Measured<'_>) -> Vec<Gain> {
    let all = measured.bytes_written.max(1) as f64;
    let streams = measured.exports.iter().filter(|export| {
        export.mode == Mode::WriteBack
            && !export.gives_way
            && export.sequential >= STREAMS
            && (export.bytes_read as f64) <= HARDLY * export.bytes_written as f64
    });
    let gain = |export: &ExportLoad| {
        let part = export.bytes_written as f64 / all;
        let ExportLoad { name, path, .. } = export;
        let sentence = format!(
            "Clients write streams to {name}, {} of all bytes written, and hardly read them. With \
             `forebay policy set {path} --priority low` other data stays longer, and with `--mode write-around` the SSDs are \
             spared up to {} of their writes.",
            percent(part),
            percent(part)
        );
        (part >= MUCH).then_some(Gain { worth: part / 4.0, sentence })
    };
    streams.filter_map(gain).collect()
}

/// Says for each fast interface with small frames how many fewer jumbo frames would be.
pub(super) fn larger_frames(measured: &Measured<'_>) -> Vec<Gain> {
    let rate = (measured.bytes_written + measured.bytes_read) as f64 / measured.seconds.max(1.0);
    let small = measured.links.iter().filter(|link| link.speed >= FAST && link.mtu < JUMBO && link.mtu > 0);
    let gain = |link: &Link| {
        let frames = |size: u64| rate / size as f64;
        let sentence = format!(
            "Frames of {JUMBO} bytes on {} would be {:.0} a second, instead of {:.0} of {} bytes, if every switch and client \
             takes them; see `forebay doctor`.",
            link.name,
            frames(JUMBO),
            frames(link.mtu),
            link.mtu
        );
        (rate >= BUSY).then_some(Gain { worth: 0.05, sentence })
    };
    small.filter_map(gain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::CacheCounters;

    const MIB: u64 = 1 << 20;

    fn export(name: &str, mode: Mode, read: u64, written: u64) -> ExportLoad {
        ExportLoad {
            name: name.to_owned(),
            path: format!("/srv{name}"),
            mode,
            bytes_read: read * MIB,
            bytes_written: written * MIB,
            sequential: 0.5,
            gives_way: false,
        }
    }

    /// Returns the sentences about a server whose clients have moved 400 MiB for each of 10 seconds.
    fn sentences(
        of: fn(&Measured<'_>) -> Vec<Gain>,
        mode: Mode,
        exports: &[ExportLoad],
        links: &[Link],
    ) -> Vec<String> {
        let counters = CacheCounters::default();
        let measured = Measured {
            mode,
            counters: &counters,
            bytes_written: 2000 * MIB,
            bytes_read: 2000 * MIB,
            write_ns: 1,
            seconds: 10.0,
            exports,
            links,
        };
        of(&measured).into_iter().map(|gain| gain.sentence).collect()
    }

    #[test]
    fn an_export_whose_own_mode_is_slow_is_named_if_it_writes_much() {
        let exports = [
            export("/a", Mode::WriteThrough, 10, 1000),
            export("/b", Mode::WriteBack, 10, 900),
            export("/c", Mode::WriteThrough, 0, 50),
            export("/d", Mode::WriteAround, 1000, 900),
        ];
        let said = sentences(other_modes, Mode::WriteBack, &exports, &[]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("WRITEs to /a are 25 % of the bytes")
                && said[0].contains("`forebay policy show /srv/a` says")
        );
        assert_eq!(
            sentences(other_modes, Mode::WriteThrough, &exports, &[]),
            [""; 0],
            "the server's own mode"
        );
    }

    #[test]
    fn streams_that_nobody_reads_are_named_unless_they_give_way_already() {
        let stream = |name| ExportLoad { sequential: 0.9, ..export(name, Mode::WriteBack, 10, 1000) };
        let exports = [
            stream("/a"),
            export("/b", Mode::WriteBack, 10, 1000),
            ExportLoad { bytes_read: 900 * MIB, ..stream("/c") },
            ExportLoad { gives_way: true, ..stream("/d") },
            ExportLoad { mode: Mode::WriteAround, ..stream("/e") },
            ExportLoad { bytes_written: 100 * MIB, ..stream("/f") },
        ];
        let said = sentences(excluded, Mode::WriteBack, &exports, &[]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("Clients write streams to /a, 50 % of all bytes written,"), "{said:?}");
        assert!(said[0].contains("`forebay policy set /srv/a --priority low`"), "{said:?}");
    }

    #[test]
    fn small_frames_on_a_fast_link_are_named_with_their_number() {
        let link = |name: &str, mtu, speed| Link { name: name.to_owned(), mtu, speed };
        let links = [link("eth0", 1500, 25_000), link("eth1", 9000, 100_000), link("eth2", 1500, 1000)];
        let said = sentences(larger_frames, Mode::WriteBack, &[], &links);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with(
                "Frames of 9000 bytes on eth0 would be 46603 a second, instead of 279620 of 1500 bytes"
            ),
            "{said:?}"
        );
    }
}
