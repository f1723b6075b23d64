//! Checks that memory modules are spread evenly over the channels of the processors, from the host's SMBIOS tables.

use std::collections::BTreeMap;

use forebay_config::format_size;

use super::Check;

/// The tables of the firmware (SMBIOS), which root may read.
const TABLES: &str = "/sys/firmware/dmi/tables/DMI";
/// The type of a structure that describes a slot for a memory module, "Memory Device".
const MEMORY_DEVICE: u8 = 17;

/// A slot for a memory module.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    /// Size of its module in bytes; 0 for an empty slot.
    size: u64,
    /// The channel, as the names of the slot tell it, with its processor.
    channel: Option<String>,
}

/// Checks the memory modules. Returns `None` if the firmware does not tell, as in most virtual machines.
pub(super) fn check() -> Option<Check> {
    judge(&slots(&std::fs::read(TABLES).ok()?))
}

/// Returns the slots of SMBIOS tables (DSP0134). A structure has a type, a length, a handle of two bytes, fields, and
/// its strings, each with a zero byte at its end. Another zero byte ends the strings.
fn slots(tables: &[u8]) -> Vec<Slot> {
    let (mut found, mut rest) = (Vec::new(), tables);
    while let [kind, length, ..] = *rest {
        let Some((fields, behind)) = rest.split_at_checked(usize::from(length).max(4)) else { break };
        let end = behind.windows(2).position(|pair| pair == [0, 0]);
        let Some((strings, next)) = end.and_then(|end| behind.split_at_checked(end + 2)) else { break };
        if kind == MEMORY_DEVICE {
            found.extend(slot(fields, strings));
        }
        rest = next;
    }
    found
}

/// Returns a slot from the fields and strings of its structure.
fn slot(fields: &[u8], strings: &[u8]) -> Option<Slot> {
    let word = |at: usize| Some(u16::from_le_bytes(fields.get(at..at + 2)?.try_into().ok()?));
    let size = match word(0x0c)? {
        // The size is unknown.
        0xffff => return None,
        // The size is in another field, in MiB.
        0x7fff => u64::from(u32::from_le_bytes(fields.get(0x1c..0x20)?.try_into().ok()?)) << 20,
        kib if kib & 0x8000 != 0 => u64::from(kib & 0x7fff) << 10,
        mib => u64::from(mib) << 20,
    };
    let text = |at: usize| {
        let number = usize::from(*fields.get(at)?).checked_sub(1)?;
        let text = strings.split(|byte| *byte == 0).nth(number)?;
        Some(String::from_utf8_lossy(text).to_ascii_uppercase())
    };
    let names = format!("{} {}", text(0x11).unwrap_or_default(), text(0x10).unwrap_or_default());
    Some(Slot { size, channel: channel(&names) })
}

/// Returns the channel from the names of a slot, such as `P0 CHANNEL A DIMM 0`, `CPU1_DIMM_B2` or `NODE 0 DIMM_C1`.
/// Firmware is free in these names, so there may be none.
fn channel(names: &str) -> Option<String> {
    let words: Vec<&str> =
        names.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let after = |wanted: &str| {
        let at = words.iter().position(|word| *word == wanted)?;
        words.get(at + 1).map(|word| (*word).to_owned())
    };
    let letter = |word: &str| -> Option<String> {
        let mut chars = word.trim_start_matches("DIMM").chars();
        let first = chars.next().filter(char::is_ascii_alphabetic)?;
        chars.all(|c| c.is_ascii_digit()).then(|| first.to_string())
    };
    let channel = after("CHANNEL").or_else(|| {
        let at = words.iter().position(|word| word.starts_with("DIMM"))?;
        letter(words[at]).or_else(|| letter(words.get(at + 1)?))
    })?;
    let is_processor = |word: &&&str| {
        let number = word.strip_prefix("CPU").or_else(|| word.strip_prefix('P'));
        number.is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
    };
    let processor = words.iter().find(is_processor).map(|word| (*word).to_owned());
    let processor = processor.or_else(|| after("NODE").map(|node| format!("node {node}")));
    Some(processor.map_or_else(|| channel.clone(), |processor| format!("{processor} {channel}")))
}

/// Judges the modules of a host. Returns `None` without modules, and with a single one whose channels are not known.
fn judge(slots: &[Slot]) -> Option<Check> {
    let subject = "memory channels";
    let modules: Vec<u64> = slots.iter().map(|slot| slot.size).filter(|size| *size > 0).collect();
    let sum = format_size(modules.iter().sum());
    let mut channels: BTreeMap<&str, u64> = BTreeMap::new();
    for slot in slots {
        *channels.entry(slot.channel.as_deref()?).or_default() += slot.size;
    }
    let (least, most) = (channels.values().min()?, channels.values().max()?);
    if modules.is_empty() || channels.len() < 2 {
        return None;
    }
    if least == most {
        let finding =
            format!("{sum} in {} modules, the same on all {} channels", modules.len(), channels.len());
        return Some(Check::ok(subject, finding));
    }
    let empty: Vec<&str> = channels.iter().filter(|(_, size)| **size == 0).map(|(name, _)| *name).collect();
    let finding = match &empty[..] {
        [] => format!("from {} to {} on a channel", format_size(*least), format_size(*most)),
        empty => {
            format!("no module on {} of {} channels ({})", empty.len(), channels.len(), empty.join(", "))
        }
    };
    let finding = format!("{finding}: copies of data, which the server makes many of, get less bandwidth");
    Some(Check::warn(subject, finding).mend(
        "put equal modules on every channel; dmidecode -t memory lists them",
        "the host has to be opened",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// Returns a structure of SMBIOS.
    fn structure(kind: u8, fields: &[(usize, &[u8])], strings: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 0x28];
        (bytes[0], bytes[1]) = (kind, 0x28);
        for (at, value) in fields {
            bytes[*at..at + value.len()].copy_from_slice(value);
        }
        for text in strings {
            bytes.extend(text.bytes().chain([0]));
        }
        bytes.extend(if strings.is_empty() { &[0, 0][..] } else { &[0] });
        bytes
    }

    fn module(mib: u16, device: &str, bank: &str) -> Vec<u8> {
        structure(17, &[(0x0c, &mib.to_le_bytes()), (0x10, &[1]), (0x11, &[2])], &[device, bank])
    }

    #[test]
    fn slots_are_read_from_the_tables_of_the_firmware() {
        let large = structure(
            17,
            &[(0x0c, &[0xff, 0x7f]), (0x1c, &(64_u32 << 10).to_le_bytes()), (0x10, &[1])],
            &["CPU1_DIMM_B2"],
        );
        let tables = [
            structure(4, &[], &["a processor"]),
            module(16 << 10, "DIMM 0", "P0 CHANNEL A"),
            structure(19, &[], &[]),
            module(0, "DIMM_C1", "NODE 1"),
            large,
            structure(127, &[], &[]),
        ]
        .concat();
        let slot = |gib: u64, channel: &str| Slot { size: gib << 30, channel: Some(channel.to_owned()) };
        assert_eq!(slots(&tables), [slot(16, "P0 A"), slot(0, "node 1 C"), slot(64, "CPU1 B")]);
        // Tables that are cut short yield what is whole.
        for end in 0..tables.len() {
            assert!(slots(&tables[..end]).len() <= 3);
        }
        assert_eq!(channel("BANK 0 DIMM 1"), None);
    }

    #[test]
    fn channels_without_a_module_are_a_warning() {
        let judged = |sizes: &[(&str, u64)]| {
            let slots = sizes.iter().map(|(name, gib)| {
                let channel = (!name.is_empty()).then(|| (*name).to_owned());
                Slot { size: gib << 30, channel }
            });
            judge(&slots.collect::<Vec<_>>()).map(|check| (check.state, check.finding))
        };
        let even = judged(&[("A", 16), ("B", 16), ("A", 0), ("B", 0)]).unwrap();
        assert_eq!(even, (State::Ok, "32 GiB in 2 modules, the same on all 2 channels".to_owned()));
        let (state, finding) = judged(&[("A", 16), ("B", 16), ("C", 0), ("D", 0)]).unwrap();
        assert!(
            state == State::Warn && finding.starts_with("no module on 2 of 4 channels (C, D)"),
            "{finding}"
        );
        let (state, finding) = judged(&[("A", 16), ("B", 32)]).unwrap();
        assert!(
            state == State::Warn && finding.starts_with("from 16 GiB to 32 GiB on a channel"),
            "{finding}"
        );
        assert_eq!(judged(&[("", 16), ("B", 16)]), None, "the firmware does not tell");
        assert_eq!(judged(&[("A", 16)]), None);
        assert_eq!(judged(&[]), None);
    }
}
