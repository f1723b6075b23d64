//! The change attribute: it grows with every change by any client, and stays without one. Clients of version 3 see it
//! as the change time.

use forebay_wire::nfs4::{
    Attributes, Bitmap, ChangeAttrType, ChangeInfo, CreateArgs, CreateHow as CreateHow4, CreateType, Fattr,
    GetattrArgs, NameArgs, Nfsstat4, Op, OpResult, OpenHow, ReadArgs, RenameArgs, SetattrArgs, StableHow4,
    Stateid, WriteArgs, attr,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

/// The ways to serve whose changes take different paths.
fn ways() -> [Serve; 3] {
    [
        Serve::unsquashed().plain(),
        Serve::unsquashed().cached(),
        Serve::unsquashed().flags(&["--mode", "write-through"]),
    ]
}

fn getattr() -> Op<'static> {
    Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::CHANGE, attr::CHANGE_ATTR_TYPE]) })
}

fn value(result: &OpResult<'_>) -> u64 {
    let OpResult::Getattr(Ok(got)) = result else { panic!("GETATTR: {result:?}") };
    let got = got.attributes.attributes().unwrap();
    // Linux clients then never take attributes with a smaller value for newer ones.
    assert_eq!(got.change_attr_type, Some(ChangeAttrType::TimeMetadata));
    got.change.unwrap()
}

/// Carries out operations on an object. Returns its change attribute after them.
fn after(c: &mut Client4, object: Op<'_>, operations: &[Op<'_>]) -> u64 {
    let all = [&[object], operations, &[getattr()]].concat();
    c.run(&all, |status, results| match results.last() {
        Some(last) if status == Nfsstat4::Ok => value(last),
        _ => panic!("{status:?} {results:?}"),
    })
}

/// Returns the change attribute that version 3 shows: the change time.
fn value3(c: &mut Client, object: &FileHandle) -> u64 {
    let ctime = c.attr(object).ctime;
    u64::from(ctime.seconds) * 1_000_000_000 + u64::from(ctime.nseconds)
}

fn make() -> OpenHow<'static> {
    OpenHow::Create(CreateHow4::Unchecked(Fattr::default()))
}

fn write(open: Stateid, data: &[u8]) -> Op<'_> {
    Op::Write(WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data })
}

/// Changes a file by all kinds of requests of two clients, of one version each. Returns its last value.
fn change_a_file(four: &mut Client4, three: &mut Client, (open, handle): (Stateid, &[u8])) -> u64 {
    let root = three.root();
    let file = three.lookup(&root, b"file").unwrap().object;
    let mut last = after(four, putfh(handle), &[]);
    let mut grows = |next: u64, by: &str| assert!(next > std::mem::replace(&mut last, next), "{by}");
    for n in 0..100_u8 {
        grows(after(four, putfh(handle), &[write(open, &[n; 5000])]), "WRITE of version 4");
        three.write(&file, 0, &[n ^ 0xff; 100], StableHow::FileSync).unwrap();
        grows(value3(three, &file), "WRITE of version 3");
        three.setattr(&file, mode(0o600 + u32::from(n % 8))).unwrap();
        grows(value3(three, &file), "SETATTR of version 3");
        let mut buffer = Vec::new();
        let set = Attributes { size: Some(3000 + u64::from(n)), mode: Some(0o644), ..Attributes::default() };
        let attributes = Fattr::encoded(&mut buffer, &set);
        let set = Op::Setattr(SetattrArgs { stateid: open, attributes });
        grows(after(four, putfh(handle), &[set]), "SETATTR of version 4");
    }
    last
}

#[test]
fn each_change_of_a_file_gives_a_larger_value_and_nothing_else_does() {
    for way in ways() {
        let mut server = way.start();
        let mut four = Client4::connect(&server, b"four");
        let (open, handle) = four.open(b"file", make(), 0).unwrap();
        let last = change_a_file(&mut four, &mut server.connect(), (open, &handle));
        // Destaging changes the backing file, and the file does not change for clients.
        server.flush();
        assert_eq!(after(&mut four, putfh(&handle), &[]), last);
        let last = change_a_file(&mut four, &mut server.connect(), (open, &handle));
        for _ in 0..2 {
            server.kill();
            server.start();
        }
        // Without a cache, clients of version 4 have a grace period now.
        let (mut three, handle) = (server.connect(), FileHandle::new(&handle).unwrap());
        let restarted = value3(&mut three, &handle);
        assert!(restarted >= last, "{restarted} after {last}");
        three.setattr(&handle, mode(0o600)).unwrap();
        assert!(value3(&mut three, &handle) > restarted);
    }
}

#[test]
fn each_change_of_a_directory_gives_a_larger_value_and_says_from_which() {
    for way in ways() {
        let mut server = way.start();
        let (mut four, mut three) = (Client4::connect(&server, b"four"), server.connect());
        let root = three.root();
        let mut last = after(&mut four, Op::Putrootfh(()), &[]);
        for n in 0..100 {
            let (name, other) = (format!("made{n}"), format!("moved{n}"));
            let create =
                CreateArgs { objtype: CreateType::Dir, name: name.as_bytes(), attributes: Fattr::default() };
            let rename = RenameArgs { oldname: name.as_bytes(), newname: other.as_bytes() };
            let remove = NameArgs { name: other.as_bytes() };
            for change in [Op::Create(create), Op::Rename(rename), Op::Remove(remove)] {
                let info =
                    four.run(&[Op::Putrootfh(()), Op::Savefh(()), change], |status, results| match &results
                        [2..]
                    {
                        [OpResult::Create(Ok(done))] => done.cinfo,
                        [OpResult::Rename(Ok(done))] => done.target,
                        [OpResult::Remove(Ok(done))] => done.cinfo,
                        other => panic!("{status:?} {other:?}"),
                    });
                let ChangeInfo { atomic, before, after: next } = info;
                assert!(atomic && before == last && next > last, "{info:?} after {last}");
                assert_eq!(after(&mut four, Op::Putrootfh(()), &[]), next);
                last = next;
            }
            three.create(&root, name.as_bytes(), CreateHow::Guarded(mode(0o644))).unwrap();
            let made = value3(&mut three, &root);
            three.remove(&root, name.as_bytes()).unwrap();
            let removed = value3(&mut three, &root);
            assert!(last < made && made < removed, "{last} {made} {removed}");
            last = removed;
        }
        server.flush();
        assert_eq!(after(&mut four, Op::Putrootfh(()), &[]), last);
        server.kill();
        server.start();
        let mut four = Client4::connect(&server, b"another");
        let restarted = after(&mut four, Op::Putrootfh(()), &[]);
        assert!(restarted >= last, "{restarted} after {last}");
    }
}

/// A client may see contents that are newer than its value: it fetches them again. It must never see older contents
/// with the value that stays.
#[test]
fn the_value_that_stays_never_had_older_contents() {
    const ROUNDS: u64 = 60;
    for way in ways() {
        let server = way.start();
        let mut reader = Client4::connect(&server, b"reader");
        let (open, handle) = reader.open(b"file", make(), 0).unwrap();
        after(&mut reader, putfh(&handle), &[write(open, &[0; 16])]);
        let mut writers = [1u64, 2].map(|number| {
            let mut c = Client4::connect(&server, &[number as u8]);
            let (open, _) = c.open(b"file", make(), 0).unwrap();
            (number, c, open)
        });
        for round in 0..ROUNDS {
            let mut seen = Vec::new();
            std::thread::scope(|scope| {
                let running = writers.each_mut().map(|(number, c, open)| {
                    let handle = &handle;
                    scope.spawn(move || {
                        let mut last = 0;
                        for n in 0..5 {
                            let data = [number.to_le_bytes(), (round * 5 + n).to_le_bytes()].concat();
                            let next = after(c, putfh(handle), &[write(*open, &data)]);
                            assert!(next > last, "{next} after {last}");
                            last = next;
                        }
                    })
                });
                while !running.iter().all(|writer| writer.is_finished()) {
                    seen.push(contents(&mut reader, (open, &handle)));
                }
            });
            let (last, data) = contents(&mut reader, (open, &handle));
            seen.retain(|(value, found)| *value >= last && *found != data);
            assert_eq!(seen, [], "round {round}: {data:?} has {last}");
        }
    }
}

/// Returns the value of a file, and its contents that were asked for after it.
fn contents(c: &mut Client4, (open, handle): (Stateid, &[u8])) -> (u64, Vec<u8>) {
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: 16 });
    c.run(&[putfh(handle), getattr(), read], |_, results| match &results[1..] {
        [before, OpResult::Read(Ok(read))] => (value(before), read.data.to_vec()),
        other => panic!("{other:?}"),
    })
}
