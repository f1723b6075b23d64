//! Fuzzes arguments and results of MOUNT v3 and of the port mapper.
#![no_main]

use forebay_fuzz::check;
use forebay_wire::mount3::{DirPath, ExportList, MountList, MountRes};
use forebay_wire::portmap::{Mapping, MappingList};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check!(bytes, DirPath<'_>, MountRes, MountList<'_>, ExportList<'_>, Mapping, MappingList);
});
