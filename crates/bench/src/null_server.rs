//! A server that answers at once with constants, to measure the highest rate of the load generator. It has one
//! thread. All replies to the requests of one read leave in one write.

use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;

use anyhow::{Context, Result};
use forebay_wire::mount3::{self, MountOk, MountRes};
use forebay_wire::nfs3::*;
use forebay_wire::rpc::{AUTH_SYS, CallHeader, LAST_FRAGMENT, ReplyHeader, ReplyStatus};
use forebay_wire::{Decode as _, Encode as _, Reader, xdr};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

const READ_SIZE: usize = 256 << 10;
const MAX_RECORD: usize = 2 << 20;
/// Largest READ and WRITE in bytes.
const MAX_IO: u32 = 1 << 20;
/// Size of every file in bytes.
const FILE_SIZE: u64 = 64 << 20;
const LISTENER: u64 = u64::MAX;
static ZEROS: [u8; MAX_IO as usize] = [0; MAX_IO as usize];

/// A part of the output: a range of the header buffer, or a number of zeros.
#[derive(Debug)]
enum Piece {
    Headers(Range<usize>),
    Zeros(usize),
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    end: usize,
    headers: Vec<u8>,
    pieces: Vec<Piece>,
    pace: PutOff,
}

/// The counter that decides which requests are answered with NFS3ERR_JUKEBOX.
struct PutOff {
    every: u32,
    since: u32,
}

impl PutOff {
    /// Counts a request. Returns true for every request that is answered with NFS3ERR_JUKEBOX.
    fn is_due(&mut self) -> bool {
        self.since = self.since.wrapping_add(1);
        let due = self.since == self.every;
        if due {
            self.since = 0;
        }
        due
    }
}

/// Serves until the process ends. `ready` gets the address. One out of `put_off` requests, FSINFO excepted, is
/// answered with NFS3ERR_JUKEBOX; 0 means none.
///
/// # Errors
/// The server cannot listen on the address.
pub fn serve(listen: SocketAddr, put_off: u32, ready: impl FnOnce(SocketAddr)) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    ready(listener.local_addr()?);
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut events = [MaybeUninit::uninit(); 256];
    loop {
        let ready = match epoll::wait(&epoll, &mut events, None) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error).context("epoll_wait failed"),
        };
        for event in &*ready {
            let index = event.data.u64();
            if index == LISTENER {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                let free = clients.iter().position(Option::is_none).unwrap_or(clients.len());
                epoll::add(&epoll, &stream, EventData::new_u64(free as u64), EventFlags::IN)?;
                let input = vec![0; MAX_RECORD + READ_SIZE];
                let pace = PutOff { every: put_off, since: 0 };
                let client = Client { stream, input, end: 0, headers: Vec::new(), pieces: Vec::new(), pace };
                if free == clients.len() {
                    clients.push(Some(client));
                } else {
                    clients[free] = Some(client);
                }
            } else if let Some(client) = &mut clients[index as usize]
                && !client.serve()
            {
                clients[index as usize] = None;
            }
        }
    }
}

impl Client {
    /// Reads once and answers the complete requests. Returns false if the client is gone or sends bytes that are not
    /// RPC.
    fn serve(&mut self) -> bool {
        match self.stream.read(&mut self.input[self.end..]) {
            Ok(0) => return false,
            Ok(count) => self.end += count,
            Err(error) => return error.kind() == ErrorKind::Interrupted,
        }
        let mut start = 0;
        while let Some(mark) = self.input[start..self.end].first_chunk::<4>() {
            let length = (u32::from_be_bytes(*mark) & !LAST_FRAGMENT) as usize;
            if length > MAX_RECORD || u32::from_be_bytes(*mark) & LAST_FRAGMENT == 0 {
                return false;
            }
            let Some(record) = self.input[start + 4..self.end].get(..length) else { break };
            if reply(record, &mut self.headers, &mut self.pieces, &mut self.pace).is_none() {
                return false;
            }
            start += 4 + length;
        }
        self.input.copy_within(start..self.end, 0);
        self.end -= start;
        self.send()
    }

    /// Writes all replies. The socket blocks, because a client that does not read is not measured.
    fn send(&mut self) -> bool {
        let mut sent = true;
        for pieces in self.pieces.chunks(512) {
            let mut slices: Vec<IoSlice<'_>> = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Headers(range) => IoSlice::new(&self.headers[range.clone()]),
                    Piece::Zeros(len) => IoSlice::new(&ZEROS[..*len]),
                })
                .collect();
            let mut slices = slices.as_mut_slice();
            while sent && !slices.is_empty() {
                match self.stream.write_vectored(slices) {
                    Ok(count) => IoSlice::advance_slices(&mut slices, count),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => sent = false,
                }
            }
        }
        self.headers.clear();
        self.pieces.clear();
        sent
    }
}

const ATTRIBUTES: Fattr3 = {
    let time = Nfstime3 { seconds: 1_700_000_000, nseconds: 0 };
    Fattr3 {
        ftype: Ftype3::Reg,
        mode: 0o666,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: FILE_SIZE,
        used: FILE_SIZE,
        rdev: Specdata3 { major: 0, minor: 0 },
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
};
const WCC: WccData = WccData { before: None, after: Some(ATTRIBUTES) };

/// Returns the handle of a name: its first bytes, so that LOOKUP and CREATE of a name return one handle.
fn handle(name: &[u8]) -> Option<FileHandle> {
    FileHandle::new(&name[..name.len().min(FileHandle::MAX_SIZE)])
}

/// Appends the reply to one call. Returns `None` if the record is not a call.
fn reply(record: &[u8], out: &mut Vec<u8>, pieces: &mut Vec<Piece>, pace: &mut PutOff) -> Option<()> {
    let mut input = Reader::new(record);
    let call = CallHeader::decode(&mut input).ok()?;
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut status = ReplyStatus::Success;
    ReplyHeader { xid: call.xid, status }.encode(out);
    let body = out.len();
    let answered = match call.prog {
        PROGRAM if call.proc != Procedure::Fsinfo as u32 && pace.is_due() => {
            Nfsstat3::Jukebox.encode(out);
            // Zeros for absent attributes. The longest failure, that of RENAME, has four of them.
            out.extend_from_slice(&[0; 16]);
            Some(0)
        }
        PROGRAM => nfs_reply(call.proc, &mut input, out),
        mount3::PROGRAM => mount_reply(call.proc, out),
        _ => {
            status = ReplyStatus::ProgUnavail;
            None
        }
    };
    if answered.is_none() {
        out.truncate(body - ReplyHeader::SUCCESS_SIZE);
        if status == ReplyStatus::Success {
            status = ReplyStatus::GarbageArgs;
        }
        ReplyHeader { xid: call.xid, status }.encode(out);
    }
    let zeros = answered.unwrap_or(0);
    let length = out.len() - start - 4 + zeros;
    out[start..start + 4].copy_from_slice(&(LAST_FRAGMENT | length as u32).to_be_bytes());
    match pieces.last_mut() {
        Some(Piece::Headers(range)) => range.end = out.len(),
        _ => pieces.push(Piece::Headers(start..out.len())),
    }
    if zeros > 0 {
        pieces.push(Piece::Zeros(zeros));
    }
    Some(())
}

/// Appends the result of a MOUNT procedure: a handle for MNT, and nothing for any other procedure.
fn mount_reply(procedure: u32, out: &mut Vec<u8>) -> Option<usize> {
    if procedure == mount3::Procedure::Mnt as u32 {
        let result: MountRes = Ok(MountOk { fhandle: handle(b"root")?, auth_flavors: vec![AUTH_SYS] });
        result.encode(out);
    }
    Some(0)
}

/// Appends a result and returns the number of zeros that follow it; `None` if the arguments cannot be decoded.
fn nfs_reply(procedure: u32, input: &mut Reader<'_>, out: &mut Vec<u8>) -> Option<usize> {
    let after = Some(ATTRIBUTES);
    let verf = [1; 8];
    let create = |name: &[u8], out: &mut Vec<u8>| {
        let made: CreateRes =
            Ok(CreateOk { object: Some(handle(name)?), obj_attributes: after, dir_wcc: WCC });
        made.encode(out);
        Some(0)
    };
    match Procedure::try_from(procedure).ok()? {
        Procedure::Null => {}
        Procedure::Getattr => GetattrRes::Ok(ATTRIBUTES).encode(out),
        Procedure::Lookup => {
            let object = handle(LookupArgs::decode(input).ok()?.name)?;
            LookupRes::Ok(LookupOk { object, obj_attributes: after, dir_attributes: after }).encode(out);
        }
        Procedure::Access => {
            let access = AccessArgs::decode(input).ok()?.access;
            AccessRes::Ok(AccessOk { obj_attributes: after, access }).encode(out);
        }
        Procedure::Read => {
            let count = ReadArgs::decode(input).ok()?.count.min(MAX_IO);
            encode_read_header(out, &after, count, false);
            return Some(count as usize + xdr::padding(count as usize));
        }
        Procedure::Write => {
            let args = WriteArgs::decode(input).ok()?;
            let (count, committed) = (args.count, args.stable);
            WriteRes::Ok(WriteOk { file_wcc: WCC, count, committed, verf }).encode(out);
        }
        Procedure::Create => return create(CreateArgs::decode(input).ok()?.target.name, out),
        Procedure::Mkdir => return create(MkdirArgs::decode(input).ok()?.target.name, out),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => RemoveRes::Ok(WCC).encode(out),
        Procedure::Rename => RenameRes::Ok(RenameWcc { fromdir_wcc: WCC, todir_wcc: WCC }).encode(out),
        Procedure::Readdir | Procedure::Readdirplus => {
            encode_listing_header(out, &after, verf);
            encode_listing_end(out, true);
        }
        Procedure::Fsinfo => FsinfoRes::Ok(FsinfoOk {
            obj_attributes: after,
            rtmax: MAX_IO,
            rtpref: MAX_IO,
            rtmult: 4096,
            wtmax: MAX_IO,
            wtpref: MAX_IO,
            wtmult: 4096,
            dtpref: MAX_IO,
            maxfilesize: u64::MAX,
            time_delta: Nfstime3 { seconds: 0, nseconds: 1 },
            properties: fsf::HOMOGENEOUS | fsf::CANSETTIME,
        })
        .encode(out),
        Procedure::Commit => CommitRes::Ok(CommitOk { file_wcc: WCC, verf }).encode(out),
        _ => return None,
    }
    Some(0)
}
