//! Seeds of NLM, NSM, NFSACL and rpcbind.

use forebay_wire::nfs3::FileHandle;
use forebay_wire::rpcbind::Rpcb;
use forebay_wire::{Array, Encode, Opaque, nfsacl3, nlm4, nsm};

fn encoded(value: &dyn Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// Returns a message of each kind.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let cookie = Opaque(b"cookie".as_slice());
    let alock = nlm4::Lock {
        caller_name: Opaque(b"client"),
        fh: Opaque(&[5; 32]),
        oh: Opaque(b"7@client"),
        svid: 7,
        offset: 0,
        length: 0,
    };
    let holder = nlm4::Holder { exclusive: true, svid: 1, oh: Opaque(b"1@b"), offset: 0, length: 9 };
    let share = nlm4::Share {
        caller_name: alock.caller_name,
        fh: alock.fh,
        oh: alock.oh,
        mode: nlm4::ShareMode::Write,
        access: nlm4::ShareAccess::Read,
    };
    let my_id = nsm::MyId { my_name: Opaque(b"localhost"), my_prog: 100_021, my_vers: 4, my_proc: 16 };
    let mon_id = nsm::MonId { mon_name: Opaque(b"client"), my_id };
    // The tag of the owner (acl(5)).
    const USER_OBJ: u32 = 1;
    let entry = nfsacl3::Entry { tag: USER_OBJ, id: 0, perm: 6 };
    let mut entries = Vec::new();
    let acl = nfsacl3::Secattr {
        mask: nfsacl3::mask::ALL,
        acl_count: 1,
        acl: Array::encoded(&mut entries, &[entry]).unwrap_or_default(),
        ..nfsacl3::Secattr::default()
    };
    let fh = FileHandle::new(&[5; 32]).unwrap_or_else(|| unreachable!("32 bytes fit"));
    let (netid, addr, owner) =
        (Opaque(b"tcp".as_slice()), Opaque(b"0.0.0.0.8.1".as_slice()), Opaque(b"root".as_slice()));
    vec![
        encoded(&nlm4::LockArgs { cookie, block: true, exclusive: true, alock, reclaim: false, state: 3 }),
        encoded(&nlm4::TestArgs { cookie, exclusive: true, alock }),
        encoded(&nlm4::CancelArgs { cookie, block: true, exclusive: true, alock }),
        encoded(&nlm4::UnlockArgs { cookie, alock }),
        encoded(&nlm4::TestRes { cookie, stat: nlm4::TestReply::Denied(holder) }),
        encoded(&nlm4::ShareArgs { cookie, share, reclaim: false }),
        encoded(&nlm4::Notify { name: Opaque(b"client"), state: 3 }),
        encoded(&nsm::Mon { mon_id, private: [1; 16] }),
        encoded(&nsm::Status { mon_name: Opaque(b"client"), state: 5, private: [1; 16] }),
        encoded(&nfsacl3::SetaclArgs { fh, acl }),
        encoded(&Rpcb { prog: 100_003, vers: 4, netid, addr, owner }),
        b"127.0.0.1.8.1".to_vec(),
    ]
}
