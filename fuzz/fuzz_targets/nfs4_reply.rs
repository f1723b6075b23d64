//! Fuzzes the replies to COMPOUND and CB_COMPOUND, and the attributes in them.
#![no_main]

use forebay_fuzz::{Decode, Encode, Reader, check};
use forebay_wire::nfs4::{CbResult, CompoundRes, Fattr, ObjectAttributes, OpResult};
use libfuzzer_sys::fuzz_target;

/// Decodes all values of `fattr`. Decoded values must survive encoding and decoding.
fn attributes(fattr: &Fattr<'_>) {
    let Ok(attributes) = fattr.attributes() else { return };
    let mut out = Vec::new();
    attributes.encode(&fattr.mask, &mut out);
    let again = Fattr::decode(&mut Reader::new(&out)).map(|fattr| fattr.attributes());
    assert_eq!(again, Ok(Ok(attributes)));
}

/// Decodes the results of a reply. Each result must survive encoding and decoding.
macro_rules! walk {
    ($bytes:expr, $result:ident) => {
        if let Ok(reply) = CompoundRes::<$result<'_>>::decode(&mut Reader::new($bytes)) {
            for result in reply.results {
                let Ok(result) = result else { break };
                let mut out = Vec::new();
                result.encode(&mut out);
                assert_eq!($result::decode(&mut Reader::new(&out)), Ok(result));
                match result {
                    $result::Getattr(Ok(ObjectAttributes { attributes: fattr })) => attributes(&fattr),
                    _ => {}
                }
            }
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    walk!(bytes, OpResult);
    walk!(bytes, CbResult);
    check!(bytes, OpResult<'_>, CbResult<'_>);
});
