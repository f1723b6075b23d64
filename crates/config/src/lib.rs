//! The settings of a server: defaults, overridden by the TOML file, overridden by the flags.
//!
//! [`resolve`] reads the file and returns [`Resolved`], or every mistake with its place and the permitted values. Its
//! only other I/O is to look at the exported directories, the user database and /proc.

mod cache;
mod check;
mod client_rule;
mod clients;
mod edit;
mod entries;
mod export;
mod file;
mod hash;
mod http;
mod limits;
mod listen;
mod named;
mod nbd;
mod notify;
mod path_policy;
mod policy;
mod problem;
mod rate_limit;
mod reloaded;
mod resolve;
mod settings;
mod sources;
mod state;
mod table;
mod units;
mod users;
mod volume;

pub use cache::{CacheSettings, inside_export};
pub use check::derived_id;
pub use client_rule::{Access, ClientRule, Flavor, PrivilegedPort, Squash};
pub use clients::{Certificate, Clients, anyone, loopback, parse_clients, parse_networks};
pub use edit::set_in_text;
pub use entries::{Change, Entry, KEYS, LISTS, Table, describe};
pub use export::{Export, TlsPolicy};
pub use forebay_common::hidden::Hidden;
pub use forebay_common::nbd_url::NbdUrl;
pub use http::{HTTP_PORT, Http, parse_http};
pub use limits::{LIMITS, Limit};
pub use listen::{DEFAULT_PORT, default_listen, is_loopback, parse_listen};
pub use named::NamedPaths;
pub use nbd::Nbd;
pub use notify::{Notify, NotifyKind, NotifySeverity, NotifyWay, check_webhook_url};
pub use path_policy::PathPolicy;
pub use policy::{DirtyTime, Keep, Policy, Priority, ShareSize, Streams};
pub use problem::{Place, Problem, Problems};
pub use rate_limit::RateLimit;
pub use reloaded::{Difference, Reloaded};
pub use resolve::{Flags, Resolved, resolve, resolve_text};
pub use settings::{Kerberos, Limits, Log, LogFormat, LogLevel, Mode, Portmap, Sandbox, Settings, TlsFiles};
pub use sources::{Source, Sources};
pub use state::{STATE_BASE_OF_ROOT, instance_name, state_base};
pub use units::{format_duration, format_size, format_size_exactly, parse_duration, parse_size};
pub use users::{parse_group, parse_user};
pub use volume::{Volume, check_volume_name};
