//! The settings of the test app, read from environment variables.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How this app behaves.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a variable by itself")]
pub(crate) struct Settings {
    /// `HOST` and `PORT`: where it listens. Port 0 is any.
    pub(crate) address: SocketAddr,
    /// `MORE_PORTS=8081,8082`: other ports on which it answers the same.
    pub(crate) more_ports: Vec<u16>,
    /// `TLS_CERT` and the variables beside it: it speaks TLS, on all ports.
    pub(crate) tls: Option<Tls>,
    /// `START_DELAY_MS`: how long it takes to listen.
    pub(crate) start_delay: Duration,
    /// `START_GATE`: it does not listen before this file is there.
    pub(crate) start_gate: Option<PathBuf>,
    /// `LOG_LISTENING=1`: it prints when it listens, in microseconds since 1970, and the address.
    pub(crate) log_listening: bool,
    /// `LOG_REQUESTS=1`: it prints a line for each request but those for `/healthz`, with what `/headers` would answer.
    pub(crate) log_requests: bool,
    /// `READY=0`: `/healthz` answers 503 until a request for `/ready/yes`.
    pub(crate) ready: bool,
    /// `NEVER_LISTEN=1`: it runs, complains and never listens.
    pub(crate) never_listen: bool,
    /// `CLOSE_AFTER=n`: it stops listening after n connections and lives on. For a pod that is ready and then is not.
    pub(crate) close_after: Option<usize>,
    /// `LIMIT=n`: more than n requests at once are answered 500 with `x-over-limit`, and remembered.
    pub(crate) limit: Option<usize>,
    /// `DIE_ABOVE=n`: it exits at once when more than n requests are in flight.
    pub(crate) die_above: Option<usize>,
    /// `IGNORE_TERM=1`: it ignores SIGTERM.
    pub(crate) ignore_term: bool,
    /// `TERM_DELAY_MS`: how long it serves after SIGTERM. Then `/healthz` answers 503, and it ends when requests stop.
    pub(crate) term_delay: Duration,
    /// `ROUSE_POD_UID`: the UID of its pod.
    pub(crate) uid: String,
    /// `POD_NAME`: the name of its pod.
    pub(crate) pod: String,
}

/// How it speaks TLS. The files are read for each connection, so that it always has the newest.
#[derive(Debug)]
pub(crate) struct Tls {
    /// `TLS_CERT`: its certificate, with the chain.
    pub(crate) chain: PathBuf,
    /// `TLS_KEY`: the key of it.
    pub(crate) key: PathBuf,
    /// `TLS_CLIENT_CA`: clients must show a certificate of these authorities.
    pub(crate) client_ca: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let host: IpAddr = number(&get, "HOST")?.unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let port: u16 = number(&get, "PORT")?.unwrap_or(0);
        let flag = |name| get(name).is_some_and(|value| value == "1");
        let tls = |chain: String| {
            let key = get("TLS_KEY").ok_or("TLS_CERT without TLS_KEY")?;
            let client_ca = get("TLS_CLIENT_CA").map(PathBuf::from);
            Ok::<_, String>(Tls { chain: chain.into(), key: key.into(), client_ca })
        };
        Ok(Self {
            address: SocketAddr::new(host, port),
            more_ports: list(&get, "MORE_PORTS")?,
            tls: get("TLS_CERT").map(tls).transpose()?,
            start_delay: Duration::from_millis(number(&get, "START_DELAY_MS")?.unwrap_or(0)),
            start_gate: get("START_GATE").map(PathBuf::from),
            log_listening: flag("LOG_LISTENING"),
            log_requests: flag("LOG_REQUESTS"),
            ready: get("READY").is_none_or(|value| value != "0"),
            never_listen: flag("NEVER_LISTEN"),
            close_after: number(&get, "CLOSE_AFTER")?,
            limit: number(&get, "LIMIT")?,
            die_above: number(&get, "DIE_ABOVE")?,
            ignore_term: flag("IGNORE_TERM"),
            term_delay: Duration::from_millis(number(&get, "TERM_DELAY_MS")?.unwrap_or(0)),
            uid: get("ROUSE_POD_UID").unwrap_or_default(),
            pod: get("POD_NAME").unwrap_or_default(),
        })
    }
}

fn number<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Option<T>, String> {
    let Some(text) = get(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| format!("{name}={text} makes no sense"))
}

fn list<T: FromStr>(get: &impl Fn(&str) -> Option<String>, name: &str) -> Result<Vec<T>, String> {
    let Some(text) = get(name) else { return Ok(Vec::new()) };
    let all: Result<_, _> = text.split(',').map(str::parse).collect();
    all.map_err(|_| format!("{name}={text} makes no sense"))
}
