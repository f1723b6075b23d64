//! Tests of the server as clients see it: a real `forebay serve` on a new directory, used over a real socket.
//!
//! Tests run in parallel, each with a server of its own. A test that needs root prints that and passes without
//! running. `TMPDIR` determines the file system that is served, so the tests can run on ext4, XFS, btrfs and tmpfs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is the assertion, in helpers too")]
#![allow(clippy::result_large_err, reason = "results are the protocol's own")]

#[macro_use]
mod harness;

#[path = "../../../tls/tests/common/authority.rs"]
mod authority;

mod access;
mod acls;
mod advise;
mod attributes;
mod behind;
mod cache;
mod cache_devices;
mod cache_outside;
mod concurrency;
mod connections;
mod crashes;
mod cut_short;
mod data;
mod denied;
mod durability;
mod executed;
mod exports;
mod exports_in_service;
mod failed_flushes;
mod faults;
mod filtered;
mod given;
mod groups;
mod half_made;
mod handles;
mod hostile;
mod identity;
mod independent;
mod kerberos;
mod known;
mod known_access;
mod known_beside;
mod listing;
mod listing_changes;
mod locks_killed;
mod log_faults;
mod logged;
mod lost_replies;
mod members;
mod mounting;
mod named_files;
mod names;
mod nbd_client;
mod nfs4;
mod nfs42;
mod nfs42_crashes;
mod nfs4_callbacks;
mod nfs4_change;
mod nfs4_copies;
mod nfs4_delegations;
mod nfs4_hostile;
mod nfs4_killed;
mod nfs4_nested_exports;
mod nfs4_new_files;
mod nfs4_owners;
mod nfs4_restarts;
mod nfs4_tls;
mod nfs4_trunking;
mod nfs4_unlinked;
mod nlm;
mod nlm_calls;
mod numbers;
mod objects;
mod package_removed;
mod policies;
mod policies_by_path;
mod pool_errors;
mod pools_in_turn;
mod power_cut;
mod profile;
mod reconciled;
mod renaming;
mod retransmit;
mod rpc_errors;
mod shared_flush;
mod silent_commands;
mod silent_volumes;
mod slow_start;
mod ssd_reads;
mod start_stop;
mod support_redacted;
mod tls;
mod tls_bench;
mod tls_rules;
mod two_servers;
mod unprivileged;
mod volumes;
mod volumes_on_devices;
mod volumes_under_load;
mod write_verifier;
mod wrong_names;
mod xattrs;
