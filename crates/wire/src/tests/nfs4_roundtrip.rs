//! Properties of every operation of NFSv4 and of its callbacks, and of file attributes.

use arbitrary::{Arbitrary, Unstructured};
use proptest::prelude::*;

use super::roundtrip::{bytes_hold, holds, message};
use crate::nfs4::{Attributes, CbOp, CbOpcode, CbResult, Fattr, Op, OpResult, Opcode, Operation, Outcome};
use crate::xdr::{Decode, Encode, Reader};

fn entropy() -> impl Strategy<Value = &'static [u8]> {
    prop::collection::vec(any::<u8>(), 0..700).prop_map(|entropy| &*entropy.leak())
}

macro_rules! every_operation {
    ($($test:ident: $args:ident, $res:ident, $number:ident;)*) => {$(
        mod $test {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]

                #[test]
                fn arbitrary_values(entropy in entropy()) {
                    for &number in $number::ALL {
                        if let Ok(operation) = $args::arbitrary_of(number, &mut Unstructured::new(entropy)) {
                            prop_assert_eq!(operation.number(), number);
                            holds(&operation);
                        }
                        if let Ok(result) = $res::arbitrary_of(number, &mut Unstructured::new(entropy)) {
                            prop_assert_eq!(result.number(), number);
                            let mut bytes = Vec::new();
                            result.encode(&mut bytes);
                            prop_assert_eq!(&bytes[4..8], &(result.status() as u32).to_be_bytes());
                            holds(&result);
                        }
                    }
                }

                #[test]
                fn arbitrary_bytes(message in message()) {
                    for &number in $number::ALL {
                        let bytes = [&(number as u32).to_be_bytes(), message.as_slice()].concat();
                        bytes_hold::<$args<'_>>(bytes.clone().leak());
                        bytes_hold::<$res<'_>>(bytes.leak());
                    }
                }
            }
        }
    )*};
}

every_operation! {
    operations: Op, OpResult, Opcode;
    callbacks: CbOp, CbResult, CbOpcode;
}

proptest! {
    #[test]
    fn attributes_survive(entropy in prop::collection::vec(any::<u8>(), 0..2500)) {
        let Ok(attributes) = Attributes::arbitrary(&mut Unstructured::new(&entropy)) else { return Ok(()) };
        let mut out = Vec::new();
        let mask = attributes.encode(&crate::nfs4::attr::KNOWN, &mut out);
        prop_assert_eq!(mask, attributes.mask());
        let fattr = Fattr::decode(&mut Reader::new(&out)).unwrap();
        prop_assert_eq!(fattr.mask, mask);
        prop_assert_eq!(&fattr.attributes().unwrap(), &attributes);
        prop_assert_eq!(attributes.matches(&fattr, &mut Vec::new()), Some(true));
        for len in 0..fattr.values.len() {
            let shorter = Fattr { values: &fattr.values[..len], ..fattr };
            prop_assert!(shorter.attributes().is_err());
        }
        let longer = [fattr.values, &[0; 4]].concat();
        let longer = Fattr { values: &longer, ..fattr };
        prop_assert!(longer.attributes().is_err());
    }

    #[test]
    fn attributes_from_any_bytes(message in message()) {
        let Ok(fattr) = Fattr::decode(&mut Reader::new(&message)) else { return Ok(()) };
        let Ok(attributes) = fattr.attributes() else { return Ok(()) };
        let mut out = Vec::new();
        attributes.encode(&fattr.mask, &mut out);
        let again = Fattr::decode(&mut Reader::new(&out)).unwrap();
        prop_assert_eq!(again.attributes().unwrap(), attributes);
    }
}
