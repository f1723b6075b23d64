//! The caller of a request, the export's rules for the caller, and the inode that the caller asks for.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use forebay_config::{Access, Certificate, ClientRule, Flavor, Squash};
use forebay_profile::Subject;
use forebay_rpc::Peer;
use forebay_vfs::{Cred, Identity, Target, Wait};
use forebay_wire::nfs3::{FileHandle, Nfsstat3};
use forebay_wire::rpc::{Auth, Gids};
use forebay_wire::rpcsec_gss::GssService;
use smallvec::SmallVec;

use crate::clients::ClientStats;
use crate::refusals::Refusal;
use crate::request::{Call, SysUser};
use crate::result::Stop;
use crate::shared::Shared;

/// A caller after the export's rules.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) cred: Cred,
    pub(crate) read_only: bool,
    /// True if the export gives delegations, so that clients may miss what programs of the host change for a moment.
    pub(crate) delegations: bool,
    pub(crate) client: Arc<ClientStats>,
    /// The caller in the profile.
    pub(crate) subject: Subject,
    valid: Validity,
}

/// The conditions under which the rules of an export give a caller of a connection the rights of [`Caller`].
#[derive(Clone, Copy)]
struct Validity {
    export: u32,
    /// The generation of the rules.
    generation: u64,
    /// The time until which the groups from the user database are valid, if they come from there.
    until: Option<Instant>,
}

impl Validity {
    /// Returns true while rights that were found earlier still apply to requests for this export. A changed rule or
    /// expired groups end that.
    fn holds(&self, export: u32, generation: u64) -> bool {
        self.export == export
            && self.generation == generation
            && self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// A caller of a connection, which is equal on most requests of the connection.
#[derive(Clone)]
struct Known {
    peer: u64,
    /// True if the connection was encrypted when the rules were applied.
    encrypted: bool,
    flavor: Flavor,
    /// The user, and the groups of AUTH_SYS; none for AUTH_NONE and for a principal without a user.
    sys: Option<(u32, u32, Gids)>,
    caller: Caller,
}

impl Known {
    /// Returns true if the rules would treat a request with these credentials as they treated the remembered caller.
    /// A handshake of TLS in between counts as a difference, because rules may ask for encryption.
    fn is(&self, peer: &Peer, flavor: Flavor, user: Option<&SysUser>) -> bool {
        self.peer == peer.id
            && self.encrypted == peer.security.get().is_some()
            && self.flavor == flavor
            && match (&self.sys, user) {
                (Some((uid, gid, gids)), Some(user)) => {
                    (*uid, *gid) == (user.uid, user.gid) && *gids == user.gids
                }
                (known, user) => known.is_none() && user.is_none(),
            }
    }
}

/// Connections share slots by their number; a thread serves few connections at a time.
const SLOTS: usize = 256;

thread_local! {
    static RECENT: RefCell<Vec<Option<Known>>> = RefCell::new(vec![None; SLOTS]);
}

/// Returns the flavour of a call. AUTH_NONE counts as the weakest.
pub(crate) fn flavor(call: &Call<'_>) -> Flavor {
    match call.head.gss.as_ref().map(|gss| gss.service) {
        None => Flavor::Sys,
        Some(GssService::None) => Flavor::Krb5,
        Some(GssService::Integrity) => Flavor::Krb5i,
        Some(GssService::Privacy) => Flavor::Krb5p,
    }
}

/// Returns true if a flavour is accepted without RPCSEC_GSS. Other flavours are answered with AUTH_TOOWEAK before any
/// procedure runs.
pub(crate) fn accepted(auth: &Auth<'_>) -> bool {
    matches!(auth, Auth::None | Auth::Sys(_))
}

/// An inode that a call names, reached by an admitted caller.
#[derive(Clone)]
pub(crate) struct At {
    pub(crate) target: Target,
    pub(crate) caller: Caller,
}

impl At {
    pub(crate) fn fsid(&self) -> u64 {
        self.target.export.fsid
    }
}

impl Shared {
    /// Returns the inode that `handle` names and the caller, if the export's rules admit the caller.
    pub(crate) fn at(&self, call: &Call<'_>, handle: &FileHandle, wait: Wait) -> Result<At, Stop> {
        let target = self.vfs.target(handle.as_bytes(), wait)?;
        let caller = self.admit(call, target.export.id, wait)?;
        call.is_about(caller.subject, handle);
        Ok(At { target, caller })
    }

    /// Applies the export's rules to a call. Fails if no rule lets the client in, if the user database does not answer,
    /// or if it has to be asked and `wait` does not allow that.
    pub(crate) fn admit(&self, call: &Call<'_>, export: u32, wait: Wait) -> Result<Caller, Stop> {
        let generation = self.rules.generation();
        let (user, flavor) = (call.head.user.as_ref(), flavor(call));
        if let Some(caller) =
            call.head.admitted.take().filter(|caller| caller.valid.holds(export, generation))
        {
            return Ok(caller);
        }
        let peer = call.peer;
        let slot = (peer.id as usize ^ export as usize) % SLOTS;
        RECENT.with_borrow_mut(|recent| {
            if let Some(known) = &recent[slot]
                && known.is(peer, flavor, user)
                && known.caller.valid.holds(export, generation)
            {
                return Ok(known.caller.clone());
            }
            let exports = self.rules.now();
            let known = exports.iter().find(|known| known.id == export);
            let known = known.ok_or(Stop::Fail(Nfsstat3::Stale))?;
            let rule = rule_for(known, peer)
                .and_then(|rule| if rule.sec.contains(&flavor) { Ok(rule) } else { Err(Refusal::Auth) });
            let rule = rule.map_err(|why| {
                self.refusals.add(peer.addr.ip(), why);
                Stop::Fail(Nfsstat3::Acces)
            })?;
            let sys = user.map(|user| (user.uid, user.gid, user.gids));
            let mut identity = squash(rule, sys);
            let mut until = None;
            let itself = sys.is_some_and(|(uid, ..)| uid == identity.uid) && rule.squash != Squash::All;
            // A context of Kerberos names a user, and no groups.
            if (rule.manage_gids || flavor != Flavor::Sys) && itself {
                let (groups, end) = self.groups.of(identity.uid, peer.addr.ip(), wait)?;
                identity.groups = groups.iter().map(|gid| safe_group(rule, *gid)).collect();
                until = Some(end);
            }
            let caller = Caller {
                cred: self.vfs.creds.intern(&identity),
                read_only: rule.access == Access::ReadOnly,
                delegations: known.delegations,
                client: self.clients.get(peer.addr.ip()),
                subject: Subject::new(client_address(peer), export, identity.uid),
                valid: Validity { export, generation, until },
            };
            let encrypted = peer.security.get().is_some();
            recent[slot] = Some(Known { peer: peer.id, encrypted, flavor, sys, caller: caller.clone() });
            Ok(caller)
        })
    }

    /// Returns true if an export refuses a call only for its flavour, or for the protection of its connection.
    pub(crate) fn needs_other_protection(&self, export: u32, call: &Call<'_>) -> bool {
        let exports = self.rules.now();
        exports.iter().any(|known| {
            known.id == export
                && match rule_for(known, call.peer) {
                    Ok(rule) => !rule.sec.contains(&flavor(call)),
                    Err(why) => why == Refusal::Tls,
                }
        })
    }

    /// Returns the flavours by which a client may use an export, best first; none if no rule has the client. The
    /// connection may lack the protection that the export asks for.
    pub(crate) fn flavors(&self, export: u32, peer: &Peer) -> Vec<Flavor> {
        let exports = self.rules.now();
        let rule = exports.iter().find(|known| known.id == export);
        rule.and_then(|export| matching_rule(export, peer)).map_or_else(Vec::new, |rule| rule.sec.clone())
    }
}

/// Returns the rule that lets a client use an export, or the reason why none does.
pub(crate) fn rule_for<'a>(
    export: &'a forebay_config::Export,
    peer: &Peer,
) -> Result<&'a ClientRule, Refusal> {
    let security = peer.security.get();
    let has_certificate = security.is_some_and(|security| security.client.is_some());
    if !export.tls.admits(security.is_some(), has_certificate) {
        return Err(Refusal::Tls);
    }
    let rule = matching_rule(export, peer).ok_or(Refusal::Export)?;
    if rule.privileged_port.admits(peer.addr) { Ok(rule) } else { Err(Refusal::Port) }
}

/// Fails if no export is open to a client's port and to its kind of connection. The flavour does not count: a client
/// makes its NFSv4 record with a credential of its host.
pub(crate) fn admit_anywhere(exports: &[forebay_config::Export], peer: &Peer) -> Result<(), Refusal> {
    let mut last = Ok(());
    for export in exports {
        last = rule_for(export, peer).map(drop);
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Returns the first rule with the address or the certificate of a client.
fn matching_rule<'a>(export: &'a forebay_config::Export, peer: &Peer) -> Option<&'a ClientRule> {
    let client = peer.security.get().and_then(|security| security.client.as_ref());
    export.rule_for(peer.addr.ip(), |certificate| {
        client.is_some_and(|client| match certificate {
            Certificate::Any => true,
            Certificate::Name(name) => client.has_name(name),
            Certificate::Fingerprint(fingerprint) => client.fingerprint() == fingerprint,
        })
    })
}

/// Returns the networks and certificates of the rule by which a client may use an export, for the EXPORT listing.
/// Returns `None` if the client may not use it. Other rules are not shown to the client.
pub(crate) fn groups(export: &forebay_config::Export, peer: &Peer) -> Option<Vec<String>> {
    Some(matching_rule(export, peer)?.clients().collect())
}

/// Returns the identity under which the rule lets a caller act. `sys` is the user, the group and the further groups
/// that the client has sent; a caller without them is the anonymous user.
fn squash(rule: &ClientRule, sys: Option<(u32, u32, Gids)>) -> Identity {
    let nobody = || Identity { uid: rule.anonuid, gid: rule.anongid, groups: SmallVec::new() };
    let Some((uid, gid, gids)) = sys else { return nobody() };
    // The largest number is no valid id: the system treats it as "leave it", which would keep the server's own.
    if rule.squash == Squash::All || is_anonymous_id(rule, uid) {
        return nobody();
    }
    let groups = gids.as_slice().iter().map(|gid| safe_group(rule, *gid)).collect();
    Identity { uid, gid: safe_group(rule, gid), groups }
}

fn is_anonymous_id(rule: &ClientRule, id: u32) -> bool {
    id == u32::MAX || id == 0 && rule.squash == Squash::Root
}

/// Returns the group after squashing: a member of group 0 must not keep that group either.
fn safe_group(rule: &ClientRule, gid: u32) -> u32 {
    if is_anonymous_id(rule, gid) { rule.anongid } else { gid }
}

/// Returns the address that a reply cache entry belongs to: the client, whatever connection it uses.
pub(crate) fn client_address(peer: &Peer) -> IpAddr {
    peer.addr.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(squash: Squash) -> ClientRule {
        ClientRule { squash, anonuid: 99, anongid: 98, ..ClientRule::default() }
    }

    fn sys(uid: u32, gid: u32, gids: &[u32]) -> Option<(u32, u32, Gids)> {
        Gids::new(gids).map(|gids| (uid, gid, gids))
    }

    #[test]
    fn squashing_table() {
        let id = |uid, gid, groups: &[u32]| Identity { uid, gid, groups: SmallVec::from_slice(groups) };
        let nobody = id(99, 98, &[]);
        assert_eq!(squash(&rule(Squash::Root), sys(0, 0, &[0, 4])), nobody);
        assert_eq!(squash(&rule(Squash::Root), sys(7, 0, &[0, 4])), id(7, 98, &[98, 4]));
        assert_eq!(squash(&rule(Squash::Root), sys(7, 8, &[9])), id(7, 8, &[9]));
        assert_eq!(squash(&rule(Squash::None), sys(0, 0, &[1])), id(0, 0, &[1]));
        assert_eq!(squash(&rule(Squash::All), sys(7, 8, &[9])), nobody);
        assert_eq!(squash(&rule(Squash::None), sys(7, u32::MAX, &[u32::MAX])), id(7, 98, &[98]));
        for squashing in [Squash::None, Squash::Root, Squash::All] {
            assert_eq!(squash(&rule(squashing), sys(u32::MAX, 8, &[9])), nobody, "no user has this number");
            assert_eq!(squash(&rule(squashing), None), nobody, "AUTH_NONE is nobody");
        }
    }
}
