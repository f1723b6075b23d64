//! Checks the contents of each image, and the reasons for refusing an image.

use std::sync::Arc;

use forebay_engine::Engine;
use forebay_oplog::Record;

use super::image::{Image, path};
use super::make::{BACKING, Refused, Rig, all_of, key, notes_kept, rot, superblocks, used};

/// The image of the present format. Then come the images of earlier formats: before the log named destaged blocks,
/// before superblocks named the newest segment of the log, and before there were user records.
const NOW: &str = "version-1-destaged.image";
const BEFORE_DESTAGED: &str = "version-1-newest.image";
const BEFORE_NEWEST: &str = "version-1-notes.image";
const BEFORE_NOTES: &str = "version-1.image";

const FRAME: &[u8; 8] = b"FBYFRAME";
const HEADER: &[u8; 8] = b"FBYSEGMT";

type Damage = fn(&mut Image);

/// Damaged images: the name, and the damage done to [`NOW`].
const DAMAGED: [(&str, Damage); 7] = [
    ("header-rotten.image", |image| {
        // The header is that of a segment of the log, on one of its devices.
        let header = *all_of(image, 0, HEADER).last().unwrap();
        rot(image, 0, header);
    }),
    ("last-frame-torn.image", |image| {
        let frame = newest(image, 1, FRAME);
        image.0[1].insert(frame / 4096 + 1, vec![0; 4096]);
    }),
    ("frame-rotten.image", |image| {
        let frame = all_of(image, 0, FRAME)[0];
        rot(image, 0, frame);
    }),
    ("hole.image", |image| {
        // The acknowledged frame is on no device any more, though later frames are.
        for device in 0..2 {
            let newest = newest(image, device, FRAME);
            let frames = all_of(image, device, FRAME);
            let before = frames.iter().rev().find(|frame| **frame < newest).copied().unwrap();
            rot(image, device, before);
        }
    }),
    ("newest-segment-lost.image", |image| {
        for device in 0..2 {
            let newest = newest(image, device, HEADER);
            rot(image, device, newest);
        }
    }),
    ("version-2.image", |image| superblocks(image, |block| block[16] = 2)),
    ("feature-17.image", |image| superblocks(image, |block| block[26] |= 2)),
];

/// Returns the frame or the header with the highest number, which both have in one place. None of the headers is of a
/// clean segment.
fn newest(image: &Image, device: usize, magic: &[u8; 8]) -> u64 {
    let number = |offset: &u64| {
        let block = &image.0[device][&(offset / 4096)];
        u64::from_le_bytes(block[56..64].try_into().unwrap())
    };
    all_of(image, device, magic).into_iter().max_by_key(number).unwrap()
}

/// Compares damaged images with the good one. With `FOREBAY_GOLDEN=write` the images are written again.
#[test]
fn damaged_images_are_the_good_one_with_that_damage() {
    let write = std::env::var_os("FOREBAY_GOLDEN").is_some_and(|value| value == "write");
    let now = if write { used() } else { Image::load(NOW) };
    if write {
        now.save(NOW, None);
    }
    for (name, damage) in DAMAGED {
        let mut image = now.clone();
        damage(&mut image);
        if write {
            image.save(name, Some((NOW, &now)));
        }
        assert!(Image::load(name) == image && image != now, "{name}");
    }
}

#[test]
fn good_images_and_those_with_one_bad_copy_are_opened_and_hold_what_they_should() {
    for name in [
        NOW,
        BEFORE_DESTAGED,
        BEFORE_NEWEST,
        BEFORE_NOTES,
        "header-rotten.image",
        "last-frame-torn.image",
        "frame-rotten.image",
    ] {
        let rig = Rig::with(&Image::load(name));
        let files = files();
        files.iter().for_each(|file| rig.file(&file.name, file.backing));
        let (engine, recovered) = rig.open(false).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let theirs = engine.clone();
        rig.run(async move { theirs.warmed().await });
        for file in &files {
            assert_eq!(read(&rig, &engine, file), file.bytes, "{name}: {}", file.name);
        }
        let notes: Vec<_> = recovered.notes.iter().map(|note| note.bytes.to_vec()).collect();
        let expected = if name == BEFORE_NOTES { Vec::new() } else { notes_kept() };
        assert_eq!(notes, expected, "{name}");
        assert!(notes.iter().all(|note| Record::decode(note).is_some()), "{name}");
    }
}

#[test]
fn others_are_refused_with_a_sentence_and_left_as_they_are() {
    let damaged = "the cache's log is damaged: frame N is missing on all devices, and it is not the last one; restore \
                   the missing device, or give the cache up and lose what was not destaged";
    let refusals = [
        ("hole.image", damaged),
        ("newest-segment-lost.image", damaged),
        ("version-2.image", "a has pool format 2, newer than this version of Forebay knows; use a newer one"),
        (
            "feature-17.image",
            "a needs features that this version of Forebay does not have (0x20000); use a newer one",
        ),
    ];
    for (name, expected) in refusals {
        let image = Image::load(name);
        let rig = Rig::with(&image);
        files().iter().for_each(|file| rig.file(&file.name, file.backing));
        let said = match rig.open(false).err() {
            Some(Refused::Pool(error)) => error.to_string(),
            Some(Refused::Engine(error)) => error.to_string(),
            None => panic!("{name} was opened"),
        };
        let number = said.split_whitespace().find(|word| word.parse::<u64>().is_ok());
        let said = match number.filter(|_| said.contains("frame ")) {
            Some(number) => said.replace(&format!("frame {number}"), "frame N"),
            None => said,
        };
        assert_eq!(said, expected, "{name}");
        assert_eq!(rig.image(), image, "{name}: nothing was written");
    }
}

/// A file of `contents.txt`.
struct File {
    name: String,
    /// The size of the backing file in bytes.
    backing: u64,
    bytes: Vec<u8>,
}

fn files() -> Vec<File> {
    let text = std::fs::read_to_string(path("contents.txt")).unwrap();
    let mut files: Vec<File> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        if words[0] == "file" {
            files.push(File { name: words[1].to_owned(), backing: number(2) as u64, bytes: Vec::new() });
        } else {
            let byte = u8::from_str_radix(words[1], 16).unwrap();
            let bytes = &mut files.last_mut().unwrap().bytes;
            bytes.resize(bytes.len() + number(0), byte);
        }
    }
    assert!(files.iter().any(|file| file.bytes.contains(&BACKING)));
    files
}

/// Returns the whole file, as a client sees it.
fn read(rig: &Rig, engine: &Arc<Engine>, file: &File) -> Vec<u8> {
    let object = engine.object(&key(&file.name), file.backing);
    let (engine, mut bytes) = (engine.clone(), vec![0; 1 << 20]);
    rig.run(async move {
        let len = engine.read(&object, 0, &mut bytes).await.unwrap();
        bytes.truncate(len);
        bytes
    })
}
