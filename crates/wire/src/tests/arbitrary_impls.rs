//! Implementations of `Arbitrary` for types whose invariants a derived implementation would violate.

use std::sync::LazyLock;

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::array::{Array, Opaque};
use crate::mount3::{MountRes, Mountstat3};
use crate::nfs3::{EntryList, Failed, FileHandle, Nfsstat3};
use crate::nfs4::{Attributes, Bitmap, Fattr, GssInfo, Nfsstat4, RPCSEC_GSS, Secinfo};
use crate::rpc::{Auth, AuthSys, CallHeader, Gids, OpaqueAuth};
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

impl<'a> Arbitrary<'a> for AuthSys<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let machine_name: &[u8] = u.arbitrary()?;
        let machine_name = &machine_name[..machine_name.len().min(255)];
        let [stamp, uid, gid] = u.arbitrary()?;
        Ok(Self { stamp, machine_name, uid, gid, gids: u.arbitrary()? })
    }
}

impl<'a> Arbitrary<'a> for Auth<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.int_in_range(0..=2)? {
            0 => Auth::None,
            1 => Auth::Sys(u.arbitrary()?),
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

impl<'a, const MAX: usize> Arbitrary<'a> for Opaque<'a, MAX> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let len = u.int_in_range(0..=MAX.min(40))?;
        u.bytes(len).map(Self)
    }
}

impl<'a, T: Arbitrary<'a> + Encode, const MAX: usize> Arbitrary<'a> for Array<'a, T, MAX> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let len = u.int_in_range(0..=MAX.min(4))?;
        let items: Vec<T> = (0..len).map(|_| u.arbitrary()).collect::<Result<_>>()?;
        Ok(Self::encoded(Box::leak(Box::default()), &items).unwrap())
    }
}

/// Never success, and never a failure that has a body in some result.
impl<'a> Arbitrary<'a> for Nfsstat4 {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        static ALL: LazyLock<Vec<Nfsstat4>> =
            LazyLock::new(|| (1..11_000).filter_map(|number| Nfsstat4::try_from(number).ok()).collect());
        Ok(match *u.choose(&ALL)? {
            Nfsstat4::Denied
            | Nfsstat4::Toosmall
            | Nfsstat4::Layouttrylater
            | Nfsstat4::OffloadNoReqs
            | Nfsstat4::ClidInuse => Nfsstat4::Io,
            status => status,
        })
    }
}

impl<'a> Arbitrary<'a> for Secinfo<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        Ok(match u.int_in_range(0..=7)? {
            RPCSEC_GSS => Secinfo::Gss(GssInfo { service: 1, ..u.arbitrary()? }),
            flavor => Secinfo::Flavor(flavor),
        })
    }
}

/// Half of the containers have valid values.
impl<'a> Arbitrary<'a> for Fattr<'a> {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        if u.arbitrary()? {
            let attributes = Attributes::arbitrary(u)?;
            return Ok(Fattr::encoded(Box::leak(Box::default()), &attributes));
        }
        Ok(Self { mask: Bitmap::arbitrary(u)?, unknown: u.arbitrary()?, values: u.arbitrary()? })
    }
}
