//! The server's own calls to clients that lock: GRANTED, the answers of asynchronous procedures, SM_NOTIFY; and port
//! 111. Each test has a network of its own, in which the clients have rpcbind and NLM.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_wire::nlm4::{self, LockArgs, Procedure, Res, Stats, TestArgs, TestReply, TestRes};
use forebay_wire::nsm::{self, StatChange};
use forebay_wire::portmap::{self, IPPROTO_TCP, IPPROTO_UDP, Mapping};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{Opaque, mount3, nfsacl3};

use crate::harness::*;

const ALL: Bytes = (0, 0);
const AT: [u8; 4] = [127, 0, 0, 2];

/// A server with a file that one process has locked, and a host that waits for the lock.
struct Site {
    server: Server,
    file: FileHandle,
    holder: Process,
    host: Host,
    waiting: Process,
}

fn site(reactions: &[Reaction]) -> Site {
    site_of(Serve::unsquashed(), reactions)
}

fn site_of(serve: Serve, reactions: &[Reaction]) -> Site {
    enter_own_network();
    let server = serve.start();
    let mut c = server.connect();
    let root = c.root();
    let file = make(&mut c, &root, b"file", 0o666);
    let mut holder = Process::new(server.connect(), b"holder", 1);
    assert_eq!(holder.lock(&file, ALL, true), Stats::Granted);
    let host = Host::start(AT, reactions);
    let mut waiting = Process::new(server.connect_from(AT), b"waiting", 2);
    assert_eq!(waiting.lock_or_wait(&file, (5, 10)), Stats::Blocked);
    Site { server, file, holder, host, waiting }
}

impl Site {
    /// Waits until another process gets a lock, or is refused for good.
    fn other(&self) -> Stats {
        Process::new(self.server.connect(), b"other", 3).lock(&self.file, (5, 10), true)
    }

    #[track_caller]
    fn assert_granted(&self) {
        let call = self.host.next();
        assert_eq!((call.program, call.procedure), (nlm4::PROGRAM, Procedure::Granted as u32));
        assert_eq!(call.from, std::net::IpAddr::from([127, 0, 0, 1]), "the address that the client knows");
        let args = TestArgs::decode(&mut Reader::new(&call.args)).unwrap();
        assert_eq!((args.cookie.0, args.exclusive, args.alock.fh.0), (COOKIE, true, self.file.as_bytes()));
        let lock = &args.alock;
        assert_eq!((lock.oh.0, lock.svid, lock.offset, lock.length), (OWNER, 2, 5, 10));
    }
}

#[test]
fn a_blocked_lock_is_granted_by_a_call() {
    needs_root!();
    let mut site = site(&[]);
    assert!(site.host.has_none());
    assert_eq!(site.holder.unlock(&site.file, ALL), Stats::Granted);
    site.assert_granted();
    assert_eq!(site.other(), Stats::Denied, "the waiting process has it");
    assert_eq!(site.waiting.unlock(&site.file, ALL), Stats::Granted);
    assert_eq!(site.other(), Stats::Granted);
}

#[test]
fn a_lost_call_is_repeated_and_the_lock_is_held_meanwhile() {
    needs_root!();
    // The host takes the lock when the first call comes, and refuses the second one, since nothing waits for it.
    let mut site = site(&[Reaction::Hangs, Reaction::Hangs, Reaction::Answer(Stats::Denied)]);
    assert_eq!(site.holder.unlock(&site.file, ALL), Stats::Granted);
    site.assert_granted();
    assert_eq!(site.other(), Stats::Denied);
    site.assert_granted();
    assert_eq!(site.other(), Stats::Denied);
    site.assert_granted();
    assert_eq!(site.other(), Stats::Denied, "the process may have the lock since the first call");
    assert_eq!(site.waiting.unlock(&site.file, ALL), Stats::Granted);
    assert_eq!(site.other(), Stats::Granted);
}

#[test]
fn a_refused_call_frees_the_lock() {
    needs_root!();
    let mut site = site(&[Reaction::Answer(Stats::Denied)]);
    assert_eq!(site.holder.unlock(&site.file, ALL), Stats::Granted);
    site.assert_granted();
    wait_for(|| site.other() == Stats::Granted);
    assert!(site.host.has_none());
}

#[test]
fn a_cancelled_request_gets_no_call() {
    needs_root!();
    let mut site = site(&[]);
    assert_eq!(site.waiting.cancel(&site.file, (5, 11)), Stats::Denied, "no such request");
    assert_eq!(site.waiting.cancel(&site.file, (5, 10)), Stats::Granted);
    assert_eq!(site.holder.unlock(&site.file, ALL), Stats::Granted);
    assert_eq!(site.other(), Stats::Granted);
    // A call for a further request is the first one.
    assert_eq!(site.waiting.lock_or_wait(&site.file, (5, 10)), Stats::Blocked);
    assert_eq!(site.holder.lock_or_wait(&site.file, (100, 1)), Stats::Granted);
    assert!(site.host.has_none());
}

#[test]
fn silent_hosts_hold_up_no_other_host() {
    needs_root!();
    let mut site = site(&[]);
    assert_eq!(site.waiting.cancel(&site.file, (5, 10)), Stats::Granted);
    // These hosts accept a connection to rpcbind and never answer.
    let mut listeners = Vec::new();
    for last in 10..22 {
        listeners.push(
            std::net::TcpListener::bind((std::net::Ipv4Addr::new(127, 0, 0, last), portmap::PORT)).unwrap(),
        );
        let name: &'static [u8] = Box::leak(Box::new([b's', last]));
        let mut silent = Process::new(site.server.connect_from([127, 0, 0, last]), name, 4);
        let at = 1000 + u64::from(last);
        assert_eq!(silent.lock_or_wait(&site.file, (at, 1)), Stats::Blocked);
    }
    assert_eq!(site.waiting.lock_or_wait(&site.file, (5, 10)), Stats::Blocked);
    assert_eq!(site.holder.unlock(&site.file, ALL), Stats::Granted);
    site.assert_granted();
}

#[test]
fn asynchronous_procedures_are_answered_by_calls() {
    needs_root!();
    let mut site = site(&[]);
    let args = LockArgs { reclaim: true, ..site.waiting.args(&site.file, (5, 1), true) };
    assert_eq!(site.waiting.call(Procedure::LockMsg, &args), b"");
    let answer = site.host.next();
    assert_eq!((answer.program, answer.procedure), (nlm4::PROGRAM, Procedure::LockRes as u32));
    let res = Res::decode(&mut Reader::new(&answer.args)).unwrap();
    assert_eq!((res.cookie.0, res.stat), (COOKIE, Stats::DeniedGracePeriod));
    let alock = site.waiting.alock(&site.file, (5, 1));
    let test = TestArgs { cookie: Opaque(COOKIE), exclusive: false, alock };
    assert_eq!(site.waiting.call(Procedure::TestMsg, &test), b"");
    let answer = site.host.next();
    assert_eq!(answer.procedure, Procedure::TestRes as u32);
    let res = TestRes::decode(&mut Reader::new(&answer.args)).unwrap();
    assert!(matches!(res.stat, TestReply::Denied(holder) if holder.svid == 1), "{res:?}");
    assert_eq!(site.waiting.call(Procedure::GrantedMsg, &test), b"");
    let answer = site.host.next();
    assert_eq!(answer.procedure, Procedure::GrantedRes as u32);
    assert_eq!(Res::decode(&mut Reader::new(&answer.args)).unwrap().stat, Stats::Denied);
}

#[test]
fn hosts_with_locks_are_told_of_each_restart_once() {
    needs_root!();
    // Locks in a log need no reclaim.
    let mut site = site_of(Serve::unsquashed().plain(), &[]);
    assert_eq!(site.waiting.lock(&site.file, (5, 1), true), Stats::Denied);
    for expected in [3, 5] {
        site.server.kill();
        site.server.start();
        let call = site.host.next();
        assert_eq!((call.program, call.procedure), (nsm::PROGRAM, nsm::Procedure::Notify as u32));
        let change = StatChange::decode(&mut Reader::new(&call.args)).unwrap();
        assert_eq!(change.state, expected);
        assert!(!change.mon_name.0.is_empty());
        // The host has a lock again when its reclaim is granted.
        let mut again = Process::new(site.server.connect_from(AT), b"waiting", 2);
        assert_eq!(again.reclaim(&site.file, (5, 10)), Stats::Granted);
    }
}

/// The host is in the list until the grace period ends, and no longer.
#[test]
fn a_host_that_has_not_reclaimed_its_locks_is_told_again_after_a_kill() {
    needs_root!();
    let mut site = site_of(Serve::unsquashed().flags(&["--lease", "10s"]).plain(), &[]);
    for _ in 0..2 {
        site.server.kill();
        site.server.start();
        assert_eq!(site.host.next().procedure, nsm::Procedure::Notify as u32);
        let stranger = site.server.connect_from([127, 0, 0, 9]);
        let mut stranger = Process::new(stranger, b"stranger", 1);
        assert_eq!(stranger.lock(&site.file, (5, 10), true), Stats::DeniedGracePeriod);
    }
    let list = site.server.state.join("nlm-hosts");
    let of_host = format!(" {}\n", std::net::Ipv4Addr::from(AT));
    wait_for(|| !std::fs::read_to_string(&list).unwrap().contains(&of_host));
}

/// Asks the portmapper at an address for a port.
fn port(at: &str, program: u32, protocol: u32) -> u32 {
    let mut c = Client::connect(at.parse().unwrap());
    let asked = Mapping { prog: program, vers: 1, prot: protocol, port: 0 };
    let procedure = (portmap::PROGRAM, portmap::VERSION, portmap::Procedure::Getport as u32);
    let result = c.result_bytes(procedure, &asked);
    Reader::new(&result).u32().unwrap()
}

#[test]
fn clients_find_all_programs_on_one_port() {
    needs_root!();
    enter_own_network();
    let server = Serve::unsquashed().flags(&["--portmap=answer"]).start();
    let at = "127.0.0.1:111";
    let served = u32::from(server.address().port());
    for program in [PROGRAM, mount3::PROGRAM, nlm4::PROGRAM, nsm::PROGRAM] {
        assert_eq!(port(at, program, IPPROTO_TCP), served);
    }
    assert_eq!(port(at, nsm::PROGRAM, IPPROTO_UDP), served);
    assert_eq!(port(at, nlm4::PROGRAM, IPPROTO_UDP), 0);
    drop(server);
    let _server = Serve::unsquashed().start();
    let refused = std::net::TcpStream::connect(at);
    assert!(refused.is_err(), "a server on loopback leaves port 111 alone");
}

#[test]
fn the_portmapper_answers_clients_of_an_export_only() {
    needs_root!();
    enter_own_network();
    let flags = ["--portmap=answer", "--allow", "127.0.0.1"];
    let server = Serve::unsquashed().flags(&flags).start();
    let mut call = Vec::new();
    let (cred, verf) = (rpc::Auth::None, rpc::OpaqueAuth::NONE);
    let (prog, vers) = (portmap::PROGRAM, portmap::VERSION);
    rpc::CallHeader { xid: 5, prog, vers, proc: portmap::Procedure::Dump as u32, cred, verf }
        .encode(&mut call);
    // One thread answers in the order of arrival.
    let sockets = ["127.0.0.2:0", "127.0.0.1:0"].map(|from| std::net::UdpSocket::bind(from).unwrap());
    sockets.iter().for_each(|socket| _ = socket.send_to(&call, "127.0.0.1:111").unwrap());
    assert!(sockets[1].recv(&mut [0; 1024]).unwrap() > 24);
    sockets[0].set_nonblocking(true).unwrap();
    assert!(sockets[0].recv(&mut [0; 1024]).is_err(), "a network that may use no export");
    assert_ne!(port("127.0.0.1:111", nlm4::PROGRAM, IPPROTO_TCP), 0);
    drop(server);
}

/// Hides the local socket of this host's rpcbind from the calling thread and its children.
fn hide_rpcbind() {
    // SAFETY: unshare(2) changes only the calling thread.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0, "{}", std::io::Error::last_os_error());
    let mount = |kind: &std::ffi::CStr, at: &std::ffi::CStr, flags| {
        // SAFETY: all pointers are to strings that end with NUL, or null where mount(2) takes none.
        let done = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
    mount(c"tmpfs", c"/run", 0);
}

/// A rpcbind that knows other ports for some programs, and remembers each SET and UNSET of version 2.
fn fake_rpcbind(known: &'static [(u32, u16)]) -> std::sync::mpsc::Receiver<(u32, Mapping)> {
    hide_rpcbind();
    let udp = std::net::UdpSocket::bind(("127.0.0.1", portmap::PORT)).unwrap();
    let tcp = std::net::TcpListener::bind(("127.0.0.1", portmap::PORT)).unwrap();
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _tcp = tcp;
        let mut call = [0; 1024];
        loop {
            let (len, from) = udp.recv_from(&mut call).unwrap();
            let mut reader = Reader::new(&call[..len]);
            let header = rpc::CallHeader::decode(&mut reader).ok().unwrap();
            let mut result = 1;
            if header.vers == portmap::VERSION {
                let mapping = Mapping::decode(&mut reader).unwrap();
                if header.proc == portmap::Procedure::Getport as u32 {
                    let found = known.iter().find(|(program, _)| *program == mapping.prog);
                    result = found.map_or(0, |(_, port)| (*port).into());
                } else {
                    let _ = send.send((header.proc, mapping));
                }
            }
            let mut reply = Vec::new();
            let status = rpc::ReplyStatus::Success;
            rpc::ReplyHeader { xid: header.xid, status }.encode(&mut reply);
            result.encode(&mut reply);
            udp.send_to(&reply, from).unwrap();
        }
    });
    received
}

#[test]
fn the_programs_are_registered_with_rpcbind_and_withdrawn_at_the_stop() {
    needs_root!();
    enter_own_network();
    let calls = fake_rpcbind(&[]);
    let mut server = Serve::unsquashed().flags(&["--portmap=register"]).start();
    let served = u32::from(server.address().port());
    server.stop();
    let calls: Vec<_> = calls.try_iter().collect();
    let of = |procedure| {
        let of = calls.iter().filter(|(number, _)| *number == procedure as u32);
        of.map(|(_, mapping)| (mapping.prog, mapping.vers, mapping.prot)).collect::<Vec<_>>()
    };
    let expected = [
        (PROGRAM, 3, IPPROTO_TCP),
        (mount3::PROGRAM, 3, IPPROTO_TCP),
        (nfsacl3::PROGRAM, 3, IPPROTO_TCP),
        (PROGRAM, 4, IPPROTO_TCP),
        (nlm4::PROGRAM, 4, IPPROTO_TCP),
        (nsm::PROGRAM, 1, IPPROTO_TCP),
        (nsm::PROGRAM, 1, IPPROTO_UDP),
    ];
    assert_eq!(of(portmap::Procedure::Set), expected);
    assert!(calls.iter().all(|(_, mapping)| mapping.port == served));
    assert_eq!(of(portmap::Procedure::Unset)[expected.len()..], expected, "at the start, and at the stop");
}

#[test]
fn a_lock_manager_of_the_host_keeps_its_registration() {
    needs_root!();
    enter_own_network();
    let lockd = std::net::TcpListener::bind("127.0.0.1:4045").unwrap();
    let calls = fake_rpcbind(&[(nlm4::PROGRAM, 4045), (nsm::PROGRAM, 4046)]);
    let server = Serve::unsquashed().flags(&["--portmap=register"]).prepared();
    let said = server.refusal();
    assert!(said.contains("nlockmgr (lockd) of this host holds the number, on port 4045"), "{said}");
    assert!(calls.try_recv().is_err(), "nothing is changed");
    drop(lockd);
    let mut server = Serve::unsquashed().flags(&["--portmap=register"]).start();
    assert!(calls.try_iter().count() > 0, "a registration whose program has ended is replaced");
    server.stop();
}

#[test]
fn auto_registers_or_answers_for_addresses_beyond_loopback() {
    needs_root!();
    enter_own_network();
    add_address([10, 77, 0, 1]);
    let flags = ["--listen", "10.77.0.1:0", "--allow", "*", "--privileged-port=false"];
    let server = Serve::unsquashed().flags(&flags).start();
    let served = u32::from(server.address().port());
    assert_eq!(port("10.77.0.1:111", nlm4::PROGRAM, IPPROTO_TCP), served);
    drop(server);
    let calls = fake_rpcbind(&[]);
    let _server = Serve::unsquashed().flags(&flags).start();
    assert!(calls.try_iter().any(|(_, mapping)| mapping.prog == nlm4::PROGRAM));
}

/// An rpcbind on its local socket, which forgets everything whenever `forget` is set.
fn local_rpcbind(forget: Arc<AtomicBool>) -> std::sync::mpsc::Receiver<(u32, Mapping)> {
    hide_rpcbind();
    let listener = std::os::unix::net::UnixListener::bind("/run/rpcbind.sock").unwrap();
    let (send, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut known = std::collections::HashMap::new();
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut mark = [0; 4];
            // The test of whether rpcbind runs sends nothing.
            let Ok(()) = stream.read_exact(&mut mark) else { continue };
            let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
            stream.read_exact(&mut call).unwrap();
            let mut reader = Reader::new(&call);
            let header = rpc::CallHeader::decode(&mut reader).ok().unwrap();
            let mut result = 1;
            if header.vers == portmap::VERSION {
                let mapping = Mapping::decode(&mut reader).unwrap();
                if forget.swap(false, Ordering::SeqCst) {
                    known.clear();
                }
                let key = (mapping.prog, mapping.vers, mapping.prot);
                match header.proc {
                    number if number == portmap::Procedure::Getport as u32 => {
                        result = known.get(&key).copied().unwrap_or(0);
                    }
                    number if number == portmap::Procedure::Set as u32 => {
                        known.insert(key, mapping.port);
                    }
                    _ => _ = known.remove(&key),
                }
                let _ = send.send((header.proc, mapping));
            }
            let mut reply = vec![0; 4];
            rpc::ReplyHeader { xid: header.xid, status: rpc::ReplyStatus::Success }.encode(&mut reply);
            result.encode(&mut reply);
            let mark = 0x8000_0000 | (reply.len() as u32 - 4);
            reply[..4].copy_from_slice(&mark.to_be_bytes());
            stream.write_all(&reply).unwrap();
        }
    });
    received
}

#[test]
fn the_programs_are_registered_over_the_local_socket_and_again_when_rpcbind_restarts() {
    needs_root!();
    enter_own_network();
    let forget = Arc::new(AtomicBool::new(false));
    let calls = local_rpcbind(forget.clone());
    // Port 111 answers nothing here.
    let mut server = Serve::unsquashed().flags(&["--portmap=register"]).start();
    let set = |(number, mapping): (u32, Mapping)| {
        (number == portmap::Procedure::Set as u32).then_some((mapping.prog, mapping.prot))
    };
    let first: Vec<_> = calls.try_iter().filter_map(set).collect();
    assert_eq!(first.len(), 7, "{first:?}");
    forget.store(true, Ordering::SeqCst);
    let again: Vec<_> = calls.iter().filter_map(set).take(7).collect();
    assert_eq!(again, first);
    server.stop();
    let last = calls.try_iter().filter(|(number, _)| *number == portmap::Procedure::Unset as u32);
    assert_eq!(last.count(), 7);
}
