use std::sync::atomic::Ordering::Relaxed;

use crate::buffer::Buffer;

use super::*;

#[test]
fn blank() {
    let ram = Ram::new("a", 64 * MIB);
    assert_eq!(contents(&ram), Contents::Blank);
    ram.poke(MIB, b"old data behind the first MiB");
    assert_eq!(contents(&ram), Contents::Blank);
    assert_eq!(contents(&Ram::new("nothing", 0)), Contents::Blank);
    assert_eq!(contents(&Ram::new("tiny", 5000)), Contents::Blank);
}

#[test]
fn signatures() {
    let size = 64 * MIB + 512;
    let end_of_zfs = 64 * MIB;
    for (what, offset, magic) in [
        ("an XFS file system", 0, &b"XFSB"[..]),
        ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
        ("a Btrfs file system", 65_600, b"_BHRfS_M"),
        ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
        ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe\0\x02"),
        ("swap space", 4086, b"SWAPSPACE2"),
        ("swap space", 8182, b"SWAPSPACE2"),
        ("swap space", 16_374, b"SWAPSPACE2"),
        ("swap space", 65_526, b"SWAPSPACE2"),
        ("a member of an MD RAID array", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a member of an MD RAID array", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a member of an MD RAID array", 64 * MIB - 8192, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a member of an MD RAID array", 64 * MIB - 65_536, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("a bcache device", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
        ("a bcachefs file system", 4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
        ("a member of a ZFS pool", 131_072, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
        ("a member of a ZFS pool", 262_144 + 131_072 + 5 * 1024, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]),
        ("a member of a ZFS pool", end_of_zfs - 131_072, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
        ("a member of a ZFS pool", end_of_zfs - 393_216, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
        ("an NTFS file system", 3, b"NTFS    "),
        ("an exFAT file system", 3, b"EXFAT   "),
        ("a FAT file system", 54, b"FAT16   "),
        ("a FAT file system", 82, b"FAT32   "),
        ("a partition table (GPT)", 512, b"EFI PART"),
        ("a partition table (GPT)", 4096, b"EFI PART"),
        ("a partition table or boot sector (MBR)", 510, &[0x55, 0xaa]),
        ("data of an unknown kind", 700_000, &[1]),
        // This place is before the ring of the uberblocks.
        ("data of an unknown kind", 65_536, &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0]),
    ] {
        let ram = Ram::new("a", size);
        ram.poke(offset, magic);
        assert_eq!(contents(&ram), Contents::Foreign(what), "at {offset}");
    }
}

#[test]
fn signatures_of_two_parts() {
    let lvm = Ram::new("a", 64 * MIB);
    lvm.poke(512, b"LABELONE");
    lvm.poke(536, b"LVM2 001");
    assert_eq!(contents(&lvm), Contents::Foreign("an LVM physical volume"));
    for sector in [512, 4096] {
        let gpt = Ram::new("a", 64 * MIB);
        gpt.poke(64 * MIB - sector, b"EFI PART");
        assert_eq!(contents(&gpt), Contents::Foreign("a partition table (GPT)"), "only the backup is left");
    }
    let fat = Ram::new("a", 64 * MIB);
    fat.poke(82, b"FAT32   ");
    fat.poke(510, &[0x55, 0xaa]);
    assert_eq!(contents(&fat), Contents::Foreign("a FAT file system"), "the more telling one");
}

#[test]
fn a_part_of_something_larger_is_known_and_a_file_system_is_none() {
    let part_of = |pokes: &[(u64, &[u8])]| {
        let ram = Ram::new("a", 64 * MIB);
        pokes.iter().for_each(|(offset, bytes)| ram.poke(*offset, bytes));
        let read = |range: std::ops::Range<u64>| {
            let blocks = (range.end - range.start) as usize / BLOCK;
            block_on(ram.read(range.start, Buffer::zeroed(blocks))).0
        };
        part(&Ends::new(64 * MIB, Ends::ranges(64 * MIB).map(read)))
    };
    let md: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    assert_eq!(part_of(&[]), None);
    assert_eq!(part_of(&[(1080, &[0x53, 0xef]), (510, &[0x55, 0xaa])]), None, "ext4");
    assert_eq!(part_of(&[(512, b"EFI PART")]), None);
    assert_eq!(
        part_of(&[(0, b"XFSB"), (64 * MIB - 8192, md)]),
        Some(Part::Foreign("a member of an MD RAID array"))
    );
    assert_eq!(part_of(&[(0, b"FOREBAY\0")]), Some(Part::OfPool { is_whole: true }));
    assert_eq!(part_of(&[(0, b"other"), (LAST, b"FOREBAY\0")]), Some(Part::OfPool { is_whole: false }));
    assert_eq!(part_of(&[(0, b"XFSB"), (LAST, b"FOREBAY\0")]), None, "a file system that was made since");
}

#[test]
fn an_unfinished_format_is_no_data_of_another_program() {
    for (magic, place) in [(&b"FOREBAY\0"[..], 0), (b"FOR", 0), (b"\0\0\0EBAY", 0), (b"FOREBAY\0", LAST)] {
        let ram = Ram::new("a", 64 * MIB);
        ram.poke(place, magic);
        assert_eq!(contents(&ram), Contents::Unfinished, "{magic:?}");
        ram.poke(700_000, &[1]);
        assert_eq!(contents(&ram), Contents::Foreign("data of an unknown kind"), "{magic:?} and more");
    }
    for (place, other) in [(0, &b"FORE casts"[..]), (0, b"ORE"), (9, b"x"), (4095, b"x")] {
        let ram = Ram::new("a", 64 * MIB);
        ram.poke(LAST, b"FOREBAY\0");
        ram.poke(place, other);
        assert_eq!(contents(&ram), Contents::Foreign("data of an unknown kind"), "{other:?}");
    }
    let ram = Ram::new("a", 64 * MIB);
    ram.poke(0, b"FOREBAY\0");
    ram.poke(4096, &[0xfc, 0x4e, 0x2b, 0xa9]);
    assert_eq!(contents(&ram), Contents::Foreign("a member of an MD RAID array"));
}

const LAST: u64 = 64 * MIB - BLOCK as u64;

#[test]
fn one_superblock_is_enough() {
    for (offset, junk) in [(0, 0xff), (LAST, 0xff), (0, 0), (LAST, 0)] {
        let [ram] = used();
        let whole = superblock(&ram);
        ram.poke(offset, &[junk; BLOCK]);
        assert_eq!(superblock(&ram), whole, "{junk:#x} at {offset}");
        ram.poke(LAST - offset, &[0xff; BLOCK]);
        assert!(!matches!(contents(&ram), Contents::Pool(_)));
    }
}

#[test]
fn a_member_of_which_two_blocks_are_left_is_known_as_one() {
    let [ram] = used();
    let left = |blocks: u64| contents(&ram.copy("short", blocks * BLOCK as u64));
    assert!(matches!(left(2), Contents::Pool(_)));
    assert_eq!(left(1), Contents::Foreign("data of an unknown kind"), "too small for two superblocks");
}

#[test]
fn two_damaged_superblocks() {
    let [ram] = used();
    ram.poke(100, &[0xff]);
    ram.poke(LAST + 100, &[0xff]);
    assert_eq!(contents(&ram), Contents::Damaged);
    ram.poke(0, &[0; BLOCK]);
    assert_eq!(contents(&ram), Contents::Damaged, "one of them is enough to tell");
}

#[test]
fn the_newer_superblock_counts() {
    let [ram] = used();
    let old = superblock(&ram);
    for (at, generation) in [(0, 100), (LAST, 101), (0, 102)] {
        let newer = Superblock { generation, epoch: generation, ..old.clone() };
        ram.poke(at, &newer.encode());
        assert_eq!(superblock(&ram), newer);
    }
}

#[test]
fn a_last_block_of_another_device_does_not_count() {
    let [ram] = used();
    let own = superblock(&ram);
    let mut other = Superblock { generation: 100, device: 77, ..own.clone() };
    other.members[0].uuid = 77;
    ram.poke(LAST, &other.encode());
    assert_eq!(superblock(&ram), own);
}

#[test]
fn a_file_system_made_over_a_member_is_not_a_member() {
    let [ram] = used();
    ram.poke(0, &[0; BLOCK]);
    ram.poke(1080, &[0x53, 0xef]);
    assert_eq!(contents(&ram), Contents::Foreign("an ext2, ext3 or ext4 file system"));
    let [ram] = used();
    ram.poke(1080, &[0x53, 0xef]);
    assert!(matches!(contents(&ram), Contents::Foreign(_)), "the magic number in front of it is still there");
}

#[test]
fn a_member_that_somebody_else_took_is_not_a_member() {
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    for offset in [4096, 64 * MIB - 8192, 64 * MIB - 65_536] {
        let [ram] = used();
        ram.poke(offset, &md);
        assert_eq!(contents(&ram), Contents::Foreign("a member of an MD RAID array"), "at {offset}");
    }
    let [ram] = used();
    let data: Vec<_> = md.iter().copied().cycle().take(1 << 20).collect();
    ram.poke(62 * MIB, &data);
    superblock(&ram);
}

#[test]
fn nothing_in_a_superblock_is_a_signature() {
    let [ram] = used();
    let mut strange = superblock(&ram);
    let entry = |uuid| Entry { uuid, segments: 62, state: State::Removed, since_epoch: 0 };
    strange.members.extend((100..115).map(entry));
    // The boot sector's magic number is at the place of this field.
    strange.members[12].since_epoch = 0xaa55 << 48;
    (strange.epoch, strange.generation) = (u64::MAX, u64::MAX);
    for offset in [0, LAST] {
        ram.poke(offset, &strange.encode());
        assert_eq!(superblock(&ram), strange);
    }
}

#[test]
fn a_device_that_cannot_be_read() {
    let [ram] = used();
    ram.gone.store(true, Relaxed);
    assert_eq!(block_on(super::super::identify(ram.as_ref())), Err(DeviceError::Gone));
}

#[test]
fn formatting_wipes_every_signature() {
    let ram = Ram::new("a", 64 * MIB);
    ram.poke(65_600, b"_BHRfS_M");
    ram.poke(4096, &[0xfc, 0x4e, 0x2b, 0xa9]);
    ram.poke(64 * MIB - 8192, &[0xfc, 0x4e, 0x2b, 0xa9]);
    block_on(Pool::format(vec![ram.clone()], &mut random(1), true)).unwrap();
    let blocks: Vec<_> = ram.image().into_keys().collect();
    assert_eq!(blocks, [0, LAST / BLOCK as u64], "nothing but the superblocks");
}

#[test]
fn a_device_is_discarded_between_its_ends_when_it_is_formatted_and_never_when_refused() {
    let [blank, used] = [Ram::new("a", 64 * MIB + 4096), Ram::new("b", 64 * MIB)];
    used.poke(0, b"XFSB");
    let refused = block_on(Pool::format(devices(&[blank.clone(), used.clone()]), &mut random(1), false));
    assert!(refused.is_err());
    assert!(blank.discarded.lock().is_empty() && used.discarded.lock().is_empty());
    format(std::slice::from_ref(&blank));
    assert_eq!(*blank.discarded.lock(), [(MIB, 62 * MIB + 4096)]);
}
