//! A running Forebay: takes directories into service, listens, answers the control socket, and stops cleanly.
//!
//! [`run`] does this in the order that makes each failure harmless. Nothing is served before everything is ready, and a
//! stop makes its data durable before the process ends.

mod busy_retry;
mod cache;
mod cache_start;
mod control;
mod curve;
mod devices;
mod epochs;
mod error;
mod event_report;
mod front;
mod handle_key;
mod health;
mod host;
mod identity;
mod in_time;
mod in_use;
mod live_exports;
mod named_files;
mod notify;
mod placement;
mod policies;
mod pool;
mod pool_work;
mod portmap;
mod privileged;
mod privileges;
mod rates;
mod reload;
mod roster;
mod rpcbind;
mod sandbox;
mod serve;
mod side_by_side;
mod space;
mod start;
mod state_dir;
mod stop;
mod ublk_control;
mod udp;
mod under_way;
mod usual_reads;
mod volumes;
mod warm;

pub use cache::CacheReady;
pub use error::Error;
pub use forebay_vfs::{LostFile, drop_lost, lost_file, lost_files, restore_lost};
pub use health::{HEALTH_VERB, answer_health};
pub use host::Host;
pub use identity::{Adopted, adopt, real_directory};
pub use named_files::check_files;
pub use notify::{NOTIFY_VERB, send_notifications};
pub use privileged::{PRIVILEGED_VERB, answer_server};
pub use serve::{Ready, run};
pub use ublk_control::{UBLK_VERB, control_ublk};
