//! Messages that an independent implementation has decoded and encoded: `nfs4_golden.txt`. There is a line for each
//! operation, in both directions, and for each attribute.

use std::collections::BTreeSet;
use std::fmt::Debug;

use crate::nfs4::{Bitmap, CbOp, CbOpcode, CbResult, Fattr, Op, OpResult, Opcode, Operation, attr};
use crate::xdr::{Decode, Encode, Reader};

const MESSAGES: &str = include_str!("nfs4_golden.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Returns the value of `bytes` after it was checked to have these bytes.
fn repeated<'a, T: Encode + Decode<'a> + Debug>(bytes: &'a [u8]) -> T {
    let mut input = Reader::new(bytes);
    let value = T::decode(&mut input).unwrap();
    assert_eq!(input.remaining(), 0, "{value:?}");
    let mut out = Vec::new();
    value.encode(&mut out);
    assert_eq!(out, bytes, "{value:?}");
    value
}

/// Checks the value of one attribute.
fn attribute(number: u32, values: &[u8]) {
    let mask = Bitmap::of(&[number]);
    let attributes = Fattr { mask, unknown: false, values }.attributes().unwrap();
    assert_eq!(attributes.mask(), mask);
    let mut out = Vec::new();
    attributes.encode(&mask, &mut out);
    assert_eq!(Fattr::decode(&mut Reader::new(&out)).unwrap().values, values, "attribute {number}");
}

#[test]
fn messages_of_an_independent_implementation() {
    let mut seen = BTreeSet::new();
    for line in MESSAGES.lines().filter(|line| !line.starts_with('#')) {
        let [kind, name, hex] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let bytes = bytes(hex);
        let found = match (kind, name.starts_with("CB_")) {
            ("argument", false) => repeated::<Op<'_>>(&bytes).number().name(),
            ("argument", true) => repeated::<CbOp<'_>>(&bytes).number().name(),
            ("result", false) => repeated::<OpResult<'_>>(&bytes).number().name(),
            ("result", true) => repeated::<CbResult<'_>>(&bytes).number().name(),
            _ => {
                attribute(name.parse().unwrap(), &bytes);
                name
            }
        };
        assert_eq!(found, name);
        assert!(seen.insert((kind, name)));
    }
    let names = || {
        let callbacks = CbOpcode::ALL.iter().map(|number| number.name());
        Opcode::ALL.iter().map(|number| number.name()).chain(callbacks)
    };
    assert!(names().all(|name| seen.contains(&("argument", name)) && seen.contains(&("result", name))));
    let attributes = seen.iter().filter(|(kind, _)| *kind == "attribute").count();
    // The description has no attribute `mode_umask`.
    assert_eq!(attributes, attr::KNOWN.iter().count() - 1);
}
