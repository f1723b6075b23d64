//! Fuzzes arguments and results of NLM, NSM, NFSACL and rpcbind.
#![no_main]

use forebay_fuzz::check;
use forebay_wire::{nfsacl3, nlm4, nsm, rpcbind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check!(bytes, nlm4::TestArgs<'_>, nlm4::LockArgs<'_>, nlm4::CancelArgs<'_>, nlm4::UnlockArgs<'_>);
    check!(
        bytes,
        nlm4::TestRes<'_>,
        nlm4::Res<'_>,
        nlm4::ShareArgs<'_>,
        nlm4::ShareRes<'_>,
        nlm4::Notify<'_>
    );
    check!(bytes, nsm::Name<'_>, nsm::Mon<'_>, nsm::MonId<'_>, nsm::MyId<'_>, nsm::StatChange<'_>);
    check!(bytes, nsm::State, nsm::StatRes, nsm::Status<'_>);
    check!(bytes, nfsacl3::GetaclArgs, nfsacl3::GetaclRes<'_>, nfsacl3::SetaclArgs<'_>, nfsacl3::SetaclRes);
    check!(bytes, rpcbind::Rpcb<'_>, rpcbind::RpcbList<'_>, rpcbind::Text<'_>);
    if let Some(address) = rpcbind::parse_universal(bytes) {
        let text = rpcbind::universal(&address);
        assert_eq!(rpcbind::parse_universal(text.as_bytes()), Some(address));
    }
});
