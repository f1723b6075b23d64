//! Options of a load. The command line and job files have the same options.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use forebay_wire::nfs3::StableHow;
use serde::{Deserialize, Serialize};

/// The load of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Write files from front to back; COMMIT at the end is timed.
    Seqwrite,
    /// Read files from front to back.
    Seqread,
    /// Write records at random places of existing files.
    Randwrite,
    /// Read records at random places.
    Randread,
    /// Read and write records at random places.
    Mixed,
    /// GETATTR of one file after the other.
    Getattr,
    /// LOOKUP of one name after the other.
    Lookup,
    /// ACCESS of one file after the other.
    Access,
    /// Phases mkdir, create, stat, read, open+read+close, setattr, rename (not with --verify), remove, rmdir; as many
    /// directories as files.
    Meta,
    /// CREATE, WRITE, COMMIT of one small file after the other; in NFSv4 OPEN, WRITE, COMMIT, CLOSE.
    Smallfile,
    /// List a big directory with attributes, repeatedly.
    Readdirplus,
    /// The operations of a trace; only `bench replay` has them.
    #[value(skip)]
    Replay,
}

impl Pattern {
    /// Returns true if the pattern reads or writes the data files.
    #[must_use]
    pub const fn is_data(self) -> bool {
        self.is_sequential() || matches!(self, Pattern::Randwrite | Pattern::Randread | Pattern::Mixed)
    }

    /// Returns true if the pattern passes through the data once and ends.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Pattern::Seqwrite | Pattern::Seqread)
    }

    /// Returns true if the data files have to be filled before.
    #[must_use]
    pub const fn needs_data(self) -> bool {
        self.is_data() && !matches!(self, Pattern::Seqwrite)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("replay", |value| value.get_name()))
    }
}

/// The durability that a WRITE asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stable {
    /// UNSTABLE, made durable by COMMIT.
    Unstable,
    /// DATA_SYNC.
    DataSync,
    /// FILE_SYNC.
    FileSync,
}

impl From<Stable> for StableHow {
    fn from(stable: Stable) -> Self {
        match stable {
            Stable::Unstable => StableHow::Unstable,
            Stable::DataSync => StableHow::DataSync,
            Stable::FileSync => StableHow::FileSync,
        }
    }
}

/// The way in which clients share one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Each client has one contiguous piece.
    Segmented,
    /// Records of the clients alternate.
    Strided,
}

/// A number of bytes, written with K, M, G or T for powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SizeText", into = "u64")]
pub struct Size(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum SizeText {
    Number(u64),
    Text(String),
}

impl TryFrom<SizeText> for Size {
    type Error = anyhow::Error;

    fn try_from(text: SizeText) -> Result<Self> {
        match text {
            SizeText::Number(bytes) => Ok(Size(bytes)),
            SizeText::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> u64 {
        size.0
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift =
            match text[digits.len()..].to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
                "" => 0,
                "k" => 10,
                "m" => 20,
                "g" => 30,
                "t" => 40,
                _ => bail!("{text} is not a size; write a number with K, M, G or T, such as 4K"),
            };
        match digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)) {
            Some(bytes) => Ok(Size(bytes)),
            None => bail!("{text} is not a size; write a number with K, M, G or T, such as 4K"),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        match units.iter().find(|(shift, _)| self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The options of one group of clients.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Clients, each with a connection and an identity of its own.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub clients: u32,
    /// Requests that each client keeps in flight.
    #[arg(long, short = 'd', default_value_t = 1)]
    pub depth: u16,
    /// Bytes of each READ and WRITE [default: 1M sequential, 4K random].
    #[arg(long, short = 'r')]
    pub record: Option<Size>,
    /// Bytes of data per client, over all its files.
    #[arg(long, short = 's', default_value = "64M")]
    pub size: Size,
    /// Files per client that the data is spread over.
    #[arg(long, default_value_t = 1)]
    pub files: u32,
    /// One file for all clients, with this layout.
    #[arg(long, value_name = "LAYOUT")]
    pub shared: Option<Layout>,
    /// Durability that each WRITE asks for [default: unstable sequential, file-sync random].
    #[arg(long)]
    pub stable: Option<Stable>,
    /// Unstable random WRITEs of a client before it sends a COMMIT.
    #[arg(long, default_value_t = 64)]
    pub commit_every: u32,
    /// Share of reads in the pattern `mixed`, in per cent.
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// Exponent of a zipf distribution of random places, such as 1.1 [default: uniform].
    #[arg(long)]
    pub zipf: Option<f64>,
    /// Small files or names per client, in patterns that make some.
    #[arg(long, default_value_t = 1000)]
    pub items: u32,
    /// Small files per directory.
    #[arg(long, default_value_t = 1000)]
    pub items_per_dir: u32,
    /// Bytes of a small file; 0 makes empty files.
    #[arg(long, default_value = "0")]
    pub item_size: Size,
    /// Put the small files of all clients into the same directories.
    #[arg(long)]
    pub shared_dirs: bool,
    /// Operations after which a client stops.
    #[arg(long)]
    pub count: Option<u64>,
    /// Operations per second over all clients (open loop) [default: as many as possible].
    #[arg(long)]
    pub rate: Option<f64>,
    /// User id of the first client.
    #[arg(long, default_value_t = 0)]
    pub uid: u32,
    /// Give each client its own user id, counting up from --uid.
    #[arg(long)]
    pub distinct_uids: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clients: 1,
            depth: 1,
            record: None,
            size: Size(64 << 20),
            files: 1,
            shared: None,
            stable: None,
            commit_every: 64,
            read_percent: 70,
            zipf: None,
            items: 1000,
            items_per_dir: 1000,
            item_size: Size(0),
            shared_dirs: false,
            count: None,
            rate: None,
            uid: 0,
            distinct_uids: false,
        }
    }
}

impl Options {
    /// Returns the bytes of each READ and WRITE.
    #[must_use]
    pub fn record_for(&self, pattern: Pattern) -> u32 {
        let default = if pattern.is_sequential() { 1 << 20 } else { 4096 };
        self.record.map_or(default, |size| size.0 as u32)
    }

    /// Returns the durability that each WRITE asks for.
    #[must_use]
    pub fn stable_for(&self, pattern: Pattern) -> StableHow {
        let unstable = pattern == Pattern::Seqwrite || pattern == Pattern::Smallfile;
        self.stable.unwrap_or(if unstable { Stable::Unstable } else { Stable::FileSync }).into()
    }

    /// Checks that the options fit each other and the pattern.
    ///
    /// # Errors
    /// One sentence about the first conflict.
    pub fn check(&self, pattern: Pattern) -> Result<()> {
        let record = self.record_for(pattern);
        if self.clients == 0 || self.depth == 0 || self.files == 0 {
            bail!("--clients, --depth and --files must be at least 1");
        }
        if self.record.is_some_and(|size| size.0 > 16 << 20) {
            bail!("--record {} is too large; use at most 16M", Size(record.into()));
        }
        if !pattern.is_data() {
            if self.items == 0 || self.items_per_dir == 0 {
                bail!("--items and --items-per-dir must be at least 1");
            }
            if self.item_size.0 != 0 && !self.item_size.0.is_multiple_of(8) || self.item_size.0 > 1 << 20 {
                bail!("--item-size must be a multiple of 8 up to 1M");
            }
            return Ok(());
        }
        let unit = unit_of(record);
        if record < crate::content::MIN_UNIT as u32
            || !record.is_multiple_of(8)
            || !record.is_multiple_of(unit)
        {
            bail!("--record {record} is not possible; use a multiple of 4K, or of 8 from 32 to 4088");
        }
        if self.shared.is_some() && self.files != 1 {
            bail!("--shared and --files exclude each other");
        }
        let piece = u64::from(record) * u64::from(self.files);
        if self.size.0 < piece || !self.size.0.is_multiple_of(piece) {
            bail!("--size {} must be a multiple of --record times --files ({})", self.size, Size(piece));
        }
        if self.zipf.is_some_and(|exponent| !(exponent > 0.0 && exponent < 10.0)) {
            bail!("--zipf must be between 0 and 10");
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate < 1e9)) {
            bail!("--rate must be a positive number of operations per second");
        }
        Ok(())
    }
}

/// Returns the unit of content for a record size.
pub(crate) const fn unit_of(record: u32) -> u32 {
    let unit = crate::content::UNIT as u32;
    if record < unit { record } else { unit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, printed) in [
            ("4096", 4096, "4K"),
            ("4K", 4096, "4K"),
            ("64MiB", 64 << 20, "64M"),
            ("3g", 3 << 30, "3G"),
            ("100", 100, "100"),
            ("0", 0, "0"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!(size, Size(bytes));
            assert_eq!(size.to_string(), printed);
        }
        for text in ["", "K", "4x", "-1", "1.5G", "99999999999T"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn options_that_do_not_fit_together_are_refused() {
        let options = Options::default();
        assert!(options.check(Pattern::Randread).is_ok());
        let refused = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.check(Pattern::Randread).is_err()
        };
        assert!(refused(|options| options.clients = 0));
        assert!(refused(|options| options.record = Some(Size(5000))));
        assert!(refused(|options| options.record = Some(Size(u64::MAX))));
        assert!(refused(|options| options.size = Size(5000)));
        assert!(refused(|options| options.zipf = Some(f64::NAN)));
        assert!(refused(|options| {
            options.files = 2;
            options.shared = Some(Layout::Strided);
        }));
    }

    #[test]
    fn a_job_file_uses_the_same_names() {
        let options: Options =
            serde_json::from_str(r#"{"clients": 4, "record": "8K", "stable": "file-sync"}"#).unwrap();
        assert_eq!((options.clients, options.record, options.depth), (4, Some(Size(8192)), 1));
        assert!(serde_json::from_str::<Options>(r#"{"client": 4}"#).is_err());
    }
}
