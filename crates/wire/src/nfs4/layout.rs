//! pNFS (RFC 8881, sections 18.40 to 18.44; RFC 7862, sections 15.6 and 15.7). The server has no layouts: it decodes
//! the arguments to refuse them. Contents of layouts stay opaque.

use super::bitmap::Bitmap;
use super::status::Nfsstat4;
use super::types::{DeviceId, Nfstime4, Stateid, Verifier};
use crate::array::Array;

/// Most devices of GETDEVICELIST; decoding fails above it.
pub const MAX_DEVICES: usize = 1024;
/// Most layouts of LAYOUTGET; decoding fails above it.
pub const MAX_LAYOUTS: usize = 256;
/// Most errors of LAYOUTERROR; decoding fails above it.
pub const MAX_DEVICE_ERRORS: usize = 1024;

xdr_enum! {
    /// `layoutiomode4`: the purpose of a layout.
    pub enum LayoutIomode("layoutiomode4") {
        /// Read.
        Read = 1,
        /// Read and write.
        Rw = 2,
        /// Any purpose.
        Any = 3,
    }
}

xdr_struct! {
    /// `layout_content4`, `device_addr4` and `layoutupdate4`: bytes whose format depends on the layout type.
    pub struct LayoutBody<'a> {
        /// Number of the layout type.
        pub layout_type: u32,
        /// The bytes.
        pub body: &'a [u8],
    }
}

xdr_struct! {
    /// `layout4`: a layout of a range of a file.
    pub struct Layout<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// Purpose.
        pub iomode: LayoutIomode,
        /// Content.
        pub content: LayoutBody<'a>,
    }
}

xdr_struct! {
    /// `GETDEVICEINFO4args`: the arguments of GETDEVICEINFO.
    pub struct GetdeviceinfoArgs {
        /// The device.
        pub device: DeviceId,
        /// Number of the layout type.
        pub layout_type: u32,
        /// Most bytes of the result.
        pub maxcount: u32,
        /// Notifications wanted.
        pub notify_types: Bitmap,
    }
}

xdr_struct! {
    /// `GETDEVICEINFO4resok`: the successful result of GETDEVICEINFO.
    pub struct GetdeviceinfoOk<'a> {
        /// Addresses of the device.
        pub address: LayoutBody<'a>,
        /// Notifications that the server sends.
        pub notification: Bitmap,
    }
}

xdr_struct! {
    /// `GETDEVICELIST4args`: the arguments of GETDEVICELIST.
    pub struct GetdevicelistArgs {
        /// Number of the layout type.
        pub layout_type: u32,
        /// Most devices of the result.
        pub maxdevices: u32,
        /// 0 in the first request, then the cookie of the last result.
        pub cookie: u64,
        /// Zero in the first request, then the verifier of the last result.
        pub cookieverf: Verifier,
    }
}

xdr_struct! {
    /// `GETDEVICELIST4resok`: the successful result of GETDEVICELIST.
    pub struct GetdevicelistOk<'a> {
        /// Cookie with which the client goes on.
        pub cookie: u64,
        /// Verifier of the cookie.
        pub cookieverf: Verifier,
        /// The devices.
        pub devices: Array<'a, DeviceId, MAX_DEVICES>,
        /// True if there are no more devices.
        pub eof: bool,
    }
}

xdr_struct! {
    /// `LAYOUTCOMMIT4args`: the arguments of LAYOUTCOMMIT.
    pub struct LayoutcommitArgs<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// True if the client reclaims after a restart of the server.
        pub reclaim: bool,
        /// The layout.
        pub stateid: Stateid,
        /// Offset of the last byte written.
        pub last_write_offset: Option<u64>,
        /// New time of the last change of the content.
        pub time_modify: Option<Nfstime4>,
        /// Changes of the layout.
        pub update: LayoutBody<'a>,
    }
}

xdr_struct! {
    /// `LAYOUTCOMMIT4resok`: the successful result of LAYOUTCOMMIT.
    pub struct LayoutcommitOk {
        /// New size of the file.
        pub newsize: Option<u64>,
    }
}

xdr_struct! {
    /// `LAYOUTGET4args`: the arguments of LAYOUTGET.
    pub struct LayoutgetArgs {
        /// True if the server shall signal that a layout is available.
        pub signal_available: bool,
        /// Number of the layout type.
        pub layout_type: u32,
        /// Purpose.
        pub iomode: LayoutIomode,
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// Fewest bytes.
        pub minlength: u64,
        /// The open, or earlier layouts.
        pub stateid: Stateid,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// `LAYOUTGET4resok`: the successful result of LAYOUTGET.
    pub struct LayoutgetOk<'a> {
        /// True if the client returns the layouts at CLOSE.
        pub return_on_close: bool,
        /// Identity of the layouts.
        pub stateid: Stateid,
        /// The layouts.
        pub layouts: Array<'a, Layout<'a>, MAX_LAYOUTS>,
    }
}

xdr_struct! {
    /// `layoutreturn_file4`: a range of a file.
    pub struct LayoutreturnFile<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// The layouts.
        pub stateid: Stateid,
        /// Bytes whose format depends on the layout type.
        pub body: &'a [u8],
    }
}

xdr_union! {
    /// `layoutreturn4`: the layouts that a client returns.
    pub enum Layoutreturn<'a>("layoutreturn_type4") {
        /// Layouts of a file.
        File(file: LayoutreturnFile<'a>) = 1,
        /// Layouts of a file system.
        Fsid = 2,
        /// All layouts.
        All = 3,
    }
}

xdr_struct! {
    /// `LAYOUTRETURN4args`: the arguments of LAYOUTRETURN.
    pub struct LayoutreturnArgs<'a> {
        /// True if the client reclaims after a restart of the server.
        pub reclaim: bool,
        /// Number of the layout type.
        pub layout_type: u32,
        /// Purpose.
        pub iomode: LayoutIomode,
        /// The layouts.
        pub layouts: Layoutreturn<'a>,
    }
}

xdr_struct! {
    /// `device_error4`: an error of a device.
    pub struct DeviceError {
        /// The device.
        pub device: DeviceId,
        /// The error.
        pub status: Nfsstat4,
        /// Number of the operation that failed.
        pub opnum: u32,
    }
}

xdr_struct! {
    /// `LAYOUTERROR4args`: the arguments of LAYOUTERROR.
    pub struct LayouterrorArgs<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: Array<'a, DeviceError, MAX_DEVICE_ERRORS>,
    }
}

xdr_struct! {
    /// `io_info4`: a number of requests and of bytes.
    pub struct IoInfo {
        /// Requests.
        pub count: u64,
        /// Bytes.
        pub bytes: u64,
    }
}

xdr_struct! {
    /// `LAYOUTSTATS4args`: the arguments of LAYOUTSTATS.
    pub struct LayoutstatsArgs<'a> {
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// Reads.
        pub read: IoInfo,
        /// Writes.
        pub write: IoInfo,
        /// The device.
        pub device: DeviceId,
        /// Details.
        pub update: LayoutBody<'a>,
    }
}
