//! The actions of an administrator on the page. Each leaves an event with the administrator's name.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_config::{Mode, NbdUrl};
use forebay_control::{PoolRequest, Severity, flush_and_tell};
use serde::Deserialize;
use serde_json::json;

use crate::request::Request;
use crate::response::Response;
use crate::server::Served;
use crate::sessions::Administrator;

/// An action, as the page sends it.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case", deny_unknown_fields)]
enum Action {
    /// Adds a device to the pool.
    Add {
        path: PathBuf,
        #[serde(default)]
        force: bool,
    },
    /// Removes a device from the pool.
    Remove { path: PathBuf },
    /// Checks every copy on the cache devices.
    Scrub,
    /// Changes the mode.
    Mode { mode: Mode },
    /// Destages all dirty data.
    Flush,
}

impl Action {
    /// Returns the action as a command of the command line.
    fn described(&self) -> String {
        match self {
            Action::Add { path, force: true } => format!("pool add --force {}", path.display()),
            Action::Add { path, force: false } => format!("pool add {}", path.display()),
            Action::Remove { path } => format!("pool remove {}", path.display()),
            Action::Scrub => "pool scrub".to_owned(),
            Action::Mode { mode } => format!("mode {mode}"),
            Action::Flush => "flush".to_owned(),
        }
    }
}

/// Carries out the action in a request. The caller has checked that it may.
pub(crate) fn act(
    request: &Request,
    administrator: &Administrator,
    address: IpAddr,
    served: &Served,
) -> Response {
    let action: Action = match serde_json::from_slice(&request.body) {
        Ok(action) => action,
        Err(error) => return Response::error(400, format!("the action is not understood: {error}")),
    };
    let described = action.described();
    let result = served.handler.serving().and_then(|()| carry_out(action, served));
    let who = &administrator.who;
    let (severity, message) = match &result {
        Ok(_) => (Severity::Info, format!("{who} asked for `{described}` on the page, from {address}")),
        Err(error) => (
            Severity::Warning,
            format!("{who} asked for `{described}` on the page, from {address}; it failed: {error}"),
        ),
    };
    let fields: [(&str, &dyn ToString); 3] = [("who", who), ("action", &described), ("from", &address)];
    served.handler.events().add(severity, "web-action", message, &fields);
    match result {
        Ok(message) => Response::json(&json!({ "message": message })),
        Err(error) => Response::error(409, error),
    }
}

/// Carries out an action. Returns a sentence for the administrator.
fn carry_out(action: Action, served: &Served) -> Result<String, String> {
    let handler = &served.handler;
    match action {
        Action::Add { path, .. } | Action::Remove { path }
            if !path.is_absolute() && !NbdUrl::is_meant(&path) =>
        {
            Err(format!("{} is not an absolute path; write it from / on", path.display()))
        }
        Action::Add { path, force } => {
            let shown = path.display().to_string();
            handler.pool(PoolRequest::Add { path, force }).map(|_| format!("{shown} is in use."))
        }
        Action::Remove { path } => {
            let shown = path.display().to_string();
            let begun = handler.pool(PoolRequest::Remove { path, wait: false });
            begun
                .map(|_| format!("The removal of {shown} has begun. Do not pull it before an event says so."))
        }
        Action::Scrub => {
            handler.pool(PoolRequest::Scrub { wait: false }).map(|_| "The scrub has begun.".to_owned())
        }
        Action::Mode { mode } => {
            handler.set_mode(mode)?;
            let effective = handler.effective_mode();
            Ok(match effective == mode {
                true => format!("The mode is {mode}."),
                false => {
                    format!("The mode is {mode}. As long as devices are missing, {effective} is in force.")
                }
            })
        }
        Action::Flush => {
            let handler = Arc::clone(handler);
            let thread = std::thread::Builder::new().name("forebay-flush".into());
            let begun = thread.spawn(move || flush_and_tell(handler.as_ref()));
            begun.map_err(|error| format!("the system refuses a thread for the flush: {error}"))?;
            Ok("The flush has begun. An event reports its end.".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_understood_exactly() {
        let parsed = |text| serde_json::from_str::<Action>(text);
        let add = parsed(r#"{"action":"add","path":"/dev/x","force":true}"#).unwrap();
        assert_eq!(
            (add.described().as_str(), &add),
            ("pool add --force /dev/x", &Action::Add { path: "/dev/x".into(), force: true })
        );
        assert_eq!(
            parsed(r#"{"action":"mode","mode":"write-through"}"#).unwrap().described(),
            "mode write-through"
        );
        for text in [
            "{}",
            r#"{"action":"format"}"#,
            r#"{"action":"add"}"#,
            r#"{"action":"remove","path":"/x","force":1}"#,
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
