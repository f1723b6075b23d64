//! Names as clients send them.

use rustix::io::Errno;

use crate::error::{Error, Result};

/// Checks a name that a client sent (RFC 1813 filename3): any bytes but '/' and NUL, 1 to 255 of them.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Error::INVALID),
        name if name.len() > 255 => Err(Error::Os(Errno::NAMETOOLONG)),
        name if name.iter().any(|b| matches!(b, b'/' | 0)) => Err(Error::INVALID),
        _ => Ok(()),
    }
}

/// Returns a checked name for a system call that takes C strings.
pub(crate) fn c_name(name: &[u8]) -> std::ffi::CString {
    // A NUL was refused before; the empty name leads nowhere.
    std::ffi::CString::new(name).unwrap_or_default()
}
