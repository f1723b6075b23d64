//! The contents of devices, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_engine::buffer::BLOCK;

const LINE: usize = 16;
/// Bytes of each device.
pub(super) const SIZE: u64 = 64 << 20;

/// The blocks of two devices that are not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Image(pub(super) [BTreeMap<u64, Vec<u8>>; 2]);

/// Returns the path of a golden file.
pub(super) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!(" {byte:02x}")).collect()
}

impl Image {
    /// Returns the bytes of a line, and makes its block if needed.
    pub(super) fn line(&mut self, device: usize, offset: u64) -> &mut [u8] {
        let block = self.0[device].entry(offset / BLOCK as u64).or_insert_with(|| vec![0; BLOCK]);
        let at = (offset % BLOCK as u64) as usize / LINE * LINE;
        &mut block[at..at + LINE]
    }

    /// Returns every line that differs from `base`: device, offset, bytes.
    fn lines(&self, base: &Image) -> Vec<(usize, u64, &[u8])> {
        let zeros = vec![0; BLOCK];
        let mut lines = Vec::new();
        for (device, blocks) in self.0.iter().enumerate() {
            for (number, block) in blocks {
                let old = base.0[device].get(number).unwrap_or(&zeros);
                let here = block.chunks(LINE).zip(old.chunks(LINE)).enumerate();
                let changed = here.filter(|(_, (new, old))| new != old);
                lines.extend(
                    changed.map(|(at, (new, _))| (device, number * BLOCK as u64 + (at * LINE) as u64, new)),
                );
            }
        }
        lines
    }

    /// Returns the text that [`Image::load`] reads.
    pub(super) fn text(&self, base: Option<(&str, &Image)>) -> String {
        let mut out = base.map(|(name, _)| format!("base {name}\n")).unwrap_or_default();
        let blank = Image::default();
        let lines = self.lines(base.map_or(&blank, |(_, image)| image));
        let mut at = 0;
        let mut device = None;
        while let Some((number, offset, bytes)) = lines.get(at).copied() {
            if device.replace(number) != Some(number) {
                writeln!(out, "device {number}").unwrap();
            }
            let next = |n: usize| Some((number, offset + (n * LINE) as u64, bytes));
            let alike = (1..).take_while(|n| lines.get(at + n).copied() == next(*n)).count();
            let times = if alike > 0 { format!(" x {}", alike + 1) } else { String::new() };
            writeln!(out, "{offset:07x}{}{times}", hex(bytes)).unwrap();
            at += 1 + alike;
        }
        out
    }

    /// Reads the image in file `name`.
    pub(super) fn load(name: &str) -> Self {
        let text = std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut image = Image::default();
        let mut device = 0;
        for line in text.lines() {
            match line.split_once(' ').unwrap() {
                ("base", base) => image = Image::load(base),
                ("device", number) => device = number.parse().unwrap(),
                (offset, rest) => {
                    let offset = u64::from_str_radix(offset, 16).unwrap();
                    let (bytes, times) = rest.split_once(" x ").unwrap_or((rest, "1"));
                    let bytes = bytes.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap());
                    let bytes: Vec<u8> = bytes.collect();
                    for n in 0..times.parse().unwrap() {
                        image.line(device, offset + n * LINE as u64).copy_from_slice(&bytes);
                    }
                }
            }
        }
        image
    }

    /// Writes the file that [`Image::load`] reads.
    pub(super) fn save(&self, name: &str, base: Option<(&str, &Image)>) {
        std::fs::write(path(name), self.text(base)).unwrap();
    }
}
