//! The portmapper's answers (RFC 1833): enough for any client to find NFS, MOUNT and the locks on port 111.

use forebay_rpc::{Handled, Message, Reply, Service};
use forebay_wire::portmap::{IPPROTO_TCP, IPPROTO_UDP, Mapping, PORT, PROGRAM, Procedure, VERSION};
use forebay_wire::rpc::{CallHeader, ReplyHeader, ReplyStatus};
use forebay_wire::rpcbind::VERSION_4;
use forebay_wire::xdr::{Decode, Encode, List, Reader};
use forebay_wire::{mount3, nfs3, nfs4, nfsacl3, nlm4, nsm};

use crate::request::{Rejected, header};
use crate::rpcbind;

/// The port of all programs, and the programs. Answers over TCP as a [`Service`], and over UDP by [`Ports::answer`].
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// The port of all programs: TCP, and UDP for NSM.
    pub port: u16,
    /// True if NFSv4 is served.
    pub nfs4: bool,
    /// True if NLM and NSM are served.
    pub locks: bool,
}

/// The portmapper itself, which rpcinfo(8) asks for first.
const OWN: [Mapping; 2] = [
    Mapping { prog: PROGRAM, vers: VERSION, prot: IPPROTO_TCP, port: PORT as u32 },
    Mapping { prog: PROGRAM, vers: VERSION, prot: IPPROTO_UDP, port: PORT as u32 },
];

impl Ports {
    /// Returns the registered programs.
    pub fn mappings(&self) -> Vec<Mapping> {
        let tcp = |prog, vers| Mapping { prog, vers, prot: IPPROTO_TCP, port: self.port.into() };
        let mut served = vec![
            tcp(nfs3::PROGRAM, nfs3::VERSION),
            tcp(mount3::PROGRAM, mount3::VERSION),
            tcp(nfsacl3::PROGRAM, nfsacl3::VERSION),
        ];
        if self.nfs4 {
            served.push(tcp(nfs4::PROGRAM, nfs4::VERSION));
        }
        if self.locks {
            let nsm = tcp(nsm::PROGRAM, nsm::VERSION);
            served.extend([tcp(nlm4::PROGRAM, nlm4::VERSION), nsm, Mapping { prot: IPPROTO_UDP, ..nsm }]);
        }
        served
    }

    /// Appends the reply to a call; appends nothing if the bytes are no call.
    pub fn answer(&self, call: &[u8], out: &mut Vec<u8>) {
        let (header, mut args) = match header(call) {
            Ok(decoded) => decoded,
            Err(Rejected::NotACall) => return,
            Err(Rejected::With(header)) => return header.encode(out),
        };
        let status = match (header.prog, header.vers) {
            (PROGRAM, VERSION) => ReplyStatus::Success,
            (PROGRAM, version) if rpcbind::is_rpcbind(version) => {
                return self.answer_rpcbind(&header, &mut args, out);
            }
            (PROGRAM, _) => ReplyStatus::ProgMismatch { low: VERSION, high: VERSION_4 },
            _ => ReplyStatus::ProgUnavail,
        };
        let procedure = Procedure::try_from(header.proc);
        let head = |status| ReplyHeader { xid: header.xid, status };
        match (status, procedure) {
            (ReplyStatus::Success, Ok(procedure)) => self.execute(procedure, &mut args, &head, out),
            (ReplyStatus::Success, Err(_)) => head(ReplyStatus::ProcUnavail).encode(out),
            (status, _) => head(status).encode(out),
        }
    }

    /// Answers a call of rpcbind version 3 or 4 from the ports that this server serves. Appends the whole reply.
    fn answer_rpcbind(&self, header: &CallHeader<'_>, args: &mut Reader<'_>, out: &mut Vec<u8>) {
        let registered = [&OWN[..], &self.mappings()].concat();
        let mut result = Vec::new();
        let status = rpcbind::execute(&registered, header.vers, header.proc, args, &mut result);
        ReplyHeader { xid: header.xid, status }.encode(out);
        out.extend_from_slice(&result);
    }

    /// Carries out a procedure of portmapper version 2, and appends the whole reply. `head` makes the reply's header
    /// from a status.
    fn execute(
        &self,
        procedure: Procedure,
        args: &mut Reader<'_>,
        head: &dyn Fn(ReplyStatus) -> ReplyHeader,
        out: &mut Vec<u8>,
    ) {
        match procedure {
            Procedure::Null => head(ReplyStatus::Success).encode(out),
            Procedure::Getport => match Mapping::decode(args) {
                Ok(asked) => {
                    head(ReplyStatus::Success).encode(out);
                    self.port_of(&asked).encode(out);
                }
                Err(_) => head(ReplyStatus::GarbageArgs).encode(out),
            },
            Procedure::Dump => {
                head(ReplyStatus::Success).encode(out);
                List([&OWN[..], &self.mappings()].concat()).encode(out);
            }
            // Registration is not allowed, and no procedure is called for another client.
            Procedure::Set | Procedure::Unset => {
                head(ReplyStatus::Success).encode(out);
                false.encode(out);
            }
            Procedure::Callit => head(ReplyStatus::ProcUnavail).encode(out),
        }
    }

    /// Returns the port of a program and version. Returns 0 if the program is not served (RFC 1833), and for UDP. A
    /// client that asks for another version gets the port: the service there reports the served versions.
    fn port_of(&self, asked: &Mapping) -> u32 {
        let served = self.mappings();
        let mut served = OWN.iter().chain(&served);
        let found = served.find(|mapping| mapping.prog == asked.prog && mapping.prot == asked.prot);
        found.map_or(0, |mapping| mapping.port)
    }
}

impl Service for Ports {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        self.answer(message.bytes(), reply.head());
        if reply.head().is_empty() { Handled::Close } else { Handled::Reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::rpc::{Auth, OpaqueAuth};

    fn ask(locks: bool, prog: u32, prot: u32) -> u32 {
        let mut call = Vec::new();
        let (cred, verf) = (Auth::None, OpaqueAuth::NONE);
        CallHeader { xid: 5, prog: PROGRAM, vers: VERSION, proc: 3, cred, verf }.encode(&mut call);
        Mapping { prog, vers: 3, prot, port: 0 }.encode(&mut call);
        let mut out = Vec::new();
        Ports { port: 2049, nfs4: false, locks }.answer(&call, &mut out);
        let mut reader = Reader::new(&out);
        assert_eq!(ReplyHeader::decode(&mut reader).unwrap().status, ReplyStatus::Success);
        reader.u32().unwrap()
    }

    #[test]
    fn the_programs_are_on_one_port() {
        for locks in [false, true] {
            let ask = |prog, prot| ask(locks, prog, prot);
            assert_eq!(ask(nfs3::PROGRAM, IPPROTO_TCP), 2049);
            assert_eq!(ask(mount3::PROGRAM, IPPROTO_TCP), 2049);
            assert_eq!(ask(nfsacl3::PROGRAM, IPPROTO_TCP), 2049);
            assert_eq!(ask(nfs3::PROGRAM, IPPROTO_UDP), 0);
            assert_eq!(ask(PROGRAM, IPPROTO_UDP), 111);
            let port = if locks { 2049 } else { 0 };
            assert_eq!(ask(nlm4::PROGRAM, IPPROTO_TCP), port);
            assert_eq!(ask(nlm4::PROGRAM, IPPROTO_UDP), 0);
            assert_eq!(ask(nsm::PROGRAM, IPPROTO_TCP), port);
            assert_eq!(ask(nsm::PROGRAM, IPPROTO_UDP), port);
        }
    }
}
