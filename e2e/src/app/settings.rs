//! How this app behaves: variables of its environment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How this app behaves.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `HOST` and `PORT`: where it listens. Port 0 is any.
    pub(crate) address: SocketAddr,
    /// `START_DELAY_MS`: how long it takes to listen.
    pub(crate) start_delay: Duration,
    /// `START_GATE`: it does not listen before this file is there.
    pub(crate) start_gate: Option<PathBuf>,
    /// `LOG_LISTENING=1`: it says when it listens, in microseconds since 1970, and where.
    pub(crate) log_listening: bool,
    /// `NEVER_LISTEN=1`: it runs, complains and never listens.
    pub(crate) never_listen: bool,
    /// `CLOSE_AFTER=n`: it stops listening after n connections and lives on. For a pod that is ready and then is not.
    pub(crate) close_after: Option<usize>,
    /// `LIMIT=n`: more than n requests at once are answered 500 with `x-over-limit`, and remembered.
    pub(crate) limit: Option<usize>,
    /// `DIE_ABOVE=n`: it exits at once when more than n requests are in flight.
    pub(crate) die_above: Option<usize>,
    /// `IGNORE_TERM=1`: SIGTERM means nothing to it.
    pub(crate) ignore_term: bool,
    /// `ROUSE_POD_UID`: who it is.
    pub(crate) uid: String,
}

impl Settings {
    pub(crate) fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let host: IpAddr = number(&get, "HOST")?.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let port: u16 = number(&get, "PORT")?.unwrap_or(0);
        let flag = |name| get(name).is_some_and(|value| value == "1");
        Ok(Self {
            address: SocketAddr::new(host, port),
            start_delay: Duration::from_millis(number(&get, "START_DELAY_MS")?.unwrap_or(0)),
            start_gate: get("START_GATE").map(PathBuf::from),
            log_listening: flag("LOG_LISTENING"),
            never_listen: flag("NEVER_LISTEN"),
            close_after: number(&get, "CLOSE_AFTER")?,
            limit: number(&get, "LIMIT")?,
            die_above: number(&get, "DIE_ABOVE")?,
            ignore_term: flag("IGNORE_TERM"),
            uid: get("ROUSE_POD_UID").unwrap_or_default(),
        })
    }
}

fn number<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>, String> {
    let Some(text) = get(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| format!("{name}={text} makes no sense"))
}
