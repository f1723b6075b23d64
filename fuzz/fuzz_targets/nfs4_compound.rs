//! Fuzzes the arguments of COMPOUND and CB_COMPOUND: every operation is decoded up to the end of the record.
#![no_main]

use forebay_fuzz::{Decode, Encode, Reader, check};
use forebay_wire::nfs4::{CbCompound, CbOp, Compound, Fattr, Op, Operation, Operations};
use libfuzzer_sys::fuzz_target;

/// Decodes the operations of a record. Each operation must be found again at its position, and must survive encoding
/// and decoding.
macro_rules! walk {
    ($record:expr, $operations:expr, $operation:ident) => {{
        let mut operations = $operations;
        loop {
            let (position, peeked, left) = (operations.position(), operations.peek(), operations.left());
            let Some(next) = operations.next() else { break };
            assert!(operations.left() < left);
            assert!(operations.position().offset($record.len()) <= $record.len());
            assert_eq!(Operations::<$operation<'_>>::resume($record, position).next(), Some(next));
            match next {
                Ok(operation) => {
                    assert_eq!(peeked, Some(operation.number()));
                    let mut out = Vec::new();
                    operation.encode(&mut out);
                    assert_eq!($operation::decode(&mut Reader::new(&out)), Ok(operation));
                }
                Err(_) => assert_eq!(operations.next(), None),
            }
        }
    }};
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(compound) = Compound::decode(&mut Reader::new(bytes)) {
        walk!(bytes, compound.operations, Op);
    }
    if let Ok(compound) = CbCompound::decode(&mut Reader::new(bytes)) {
        walk!(bytes, compound.operations, CbOp);
    }
    check!(bytes, Op<'_>, CbOp<'_>);
    if let Ok(fattr) = Fattr::decode(&mut Reader::new(bytes)) {
        let _ = fattr.attributes();
    }
});
