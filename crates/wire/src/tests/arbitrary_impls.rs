//! Implementations of `Arbitrary` for types whose invariants a derived implementation would violate.

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::mount3::{MountRes, Mountstat3};
use crate::nfs3::{EntryList, Failed, FileHandle, Nfsstat3};
use crate::rpc::{Auth, CallHeader, Gids, OpaqueAuth};
use crate::xdr::{Decode, Encode, List, Reader};

impl<'a> Arbitrary<'a> for FileHandle {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let len = u.int_in_range(0..=Self::MAX_SIZE)?;
        Ok(Self::new(u.bytes(len)?).unwrap())
    }
}

impl<'a> Arbitrary<'a> for Gids {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let ids: [u32; 16] = u.arbitrary()?;
        Ok(Self::new(&ids[..u.int_in_range(0..=16)?]).unwrap())
    }
}

impl<'a> Arbitrary<'a> for OpaqueAuth<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let body: &[u8] = u.arbitrary()?;
        Ok(Self { flavor: u.arbitrary()?, body: &body[..body.len().min(400)] })
    }
}

impl<'a> Arbitrary<'a> for Auth<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.int_in_range(0..=2)? {
            0 => Auth::None,
            1 => {
                let mut sys: crate::rpc::AuthSys<'a> = u.arbitrary()?;
                sys.machine_name = &sys.machine_name[..sys.machine_name.len().min(255)];
                Auth::Sys(sys)
            }
            _ => {
                let opaque = OpaqueAuth::arbitrary(u)?;
                Auth::Other(OpaqueAuth { flavor: opaque.flavor.max(2), ..opaque })
            }
        })
    }
}

impl<'a> Arbitrary<'a> for CallHeader<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let [xid, prog, vers, proc] = u.arbitrary()?;
        Ok(Self { xid, prog, vers, proc, cred: u.arbitrary()?, verf: u.arbitrary()? })
    }
}

impl<'a, F: Arbitrary<'a>> Arbitrary<'a> for Failed<F> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let status = match u.arbitrary()? {
            Nfsstat3::Ok => Nfsstat3::Io,
            status => status,
        };
        Ok(Self { status, attributes: u.arbitrary()? })
    }
}

/// Returns an arbitrary [`MountRes`], never with [`Mountstat3::Ok`] as its error.
pub(crate) fn mount_res<'a>(u: &mut Unstructured<'a>) -> Result<MountRes> {
    let mut result: MountRes = u.arbitrary()?;
    if let Ok(mount) = &mut result {
        mount.auth_flavors.truncate(crate::mount3::MAX_FLAVORS);
    }
    Ok(match result {
        Err(Mountstat3::Ok) => Err(Mountstat3::Io),
        other => other,
    })
}

impl<'a, E: Arbitrary<'a> + Encode + Decode<'a>> Arbitrary<'a> for EntryList<'a, E> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut raw = Vec::new();
        List::<E>::arbitrary(u)?.encode(&mut raw);
        Ok(Self::decode(&mut Reader::new(raw.leak())).unwrap())
    }
}
