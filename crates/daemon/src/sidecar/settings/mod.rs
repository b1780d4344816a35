//! The table of all settings of `rouse sidecar`: where it listens, its app, limits, timeouts and the drain.

mod push;
mod value_types;

use std::net::SocketAddr;
use std::time::Duration;

use rouse_config::settings::{Address, Choice, Group, Setting, SettingsTable, Whole};
use rouse_core::probe::ProbeCheck;

pub use self::push::*;
pub use self::value_types::*;
use crate::logging::{LOG_FORMAT, LOG_LEVEL};
use crate::settings::{
    ANY_DURATION, HEADER_TIMEOUT, IDLE_TIMEOUT, MAX_CONNECTIONS, POSITIVE_DURATION, STREAM_IDLE_TIMEOUT,
    everywhere, loopback,
};

/// The table of `rouse sidecar`.
pub static TABLE: SettingsTable =
    SettingsTable::new(&[&LISTENING, &APP_GROUP, &TIMEOUTS, &DRAINING, &PUSH, &POD, &LIMITS, &OBSERVABILITY]);

static LISTENING: Group = Group { title: "Listening", settings: &[&LISTEN, &ADMIN] };

static APP_GROUP: Group = Group {
    title: "App",
    settings: &[&APP, &APP_PROTOCOL, &CONCURRENCY, &PROBE, &PROBE_INTERVAL, &PROBE_TIMEOUT],
};

static TIMEOUTS: Group = Group {
    title: "Timeouts",
    settings: &[&REQUEST_TIMEOUT, &RESPONSE_HEADER_TIMEOUT, &STREAM_IDLE_TIMEOUT],
};

static DRAINING: Group = Group { title: "Drain", settings: &[&GRACE_PERIOD, &DRAIN_QUIET, &DRAIN_SECRET] };

static LIMITS: Group = Group {
    title: "Limits",
    settings: &[&SIDECAR_WORKERS, &MAX_CONNECTIONS, &HEADER_TIMEOUT, &IDLE_TIMEOUT],
};

static OBSERVABILITY: Group = Group { title: "Observability", settings: &[&LOG_FORMAT, &LOG_LEVEL] };

/// The protocol of the app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS.
    H2c,
}

/// `--listen`.
pub static LISTEN: Setting<Vec<SocketAddr>> = Setting::new(
    "listen",
    &Address,
    || vec![everywhere(8012)],
    "The address to listen on for requests; may be repeated",
);

/// `--admin`.
pub static ADMIN: Setting<SocketAddr> = Setting::new(
    "admin",
    &Address,
    || everywhere(8022),
    "The address of /healthz, /livez, /metrics, /drain and /wait-for-drain",
);

/// `--app`.
pub static APP: Setting<SocketAddr> =
    Setting::new("app", &Address, || loopback(8080), "The address of the app in this pod");

/// `--app-protocol`.
pub static APP_PROTOCOL: Setting<AppProtocol> = Setting::new(
    "app-protocol",
    &Choice(&[("http1", AppProtocol::Http1), ("h2c", AppProtocol::H2c)]),
    || AppProtocol::Http1,
    "The protocol of the app: http1, or h2c for HTTP/2 without TLS, which gRPC needs",
);

/// `--concurrency`.
pub static CONCURRENCY: Setting<u32> = Setting::new(
    "concurrency",
    &Whole { least: 0, most: 1_000_000 },
    || 0,
    "The most requests that the app gets at a time, 0 for no limit; ten times as many wait, further requests get 503",
);

/// `--probe`.
pub static PROBE: Setting<AppCheck> = Setting::new(
    "probe",
    &AppCheckText,
    || AppCheck::Tcp,
    "How to find out whether the app is ready: tcp, http:PATH or grpc:SERVICE",
);

/// `--probe-interval`.
pub static PROBE_INTERVAL: Setting<Duration> = Setting::new(
    "probe-interval",
    &POSITIVE_DURATION,
    || Duration::from_secs(1),
    "How often the app is probed while it is ready; until then every 10 to 25 ms, and less often the longer it refuses",
);

/// `--probe-timeout`.
pub static PROBE_TIMEOUT: Setting<Duration> = Setting::new(
    "probe-timeout",
    &POSITIVE_DURATION,
    || Duration::from_secs(1),
    "How long one probe may take",
);

/// `--request-timeout`.
pub static REQUEST_TIMEOUT: Setting<Option<Duration>> = Setting::optional(
    "request-timeout",
    &POSITIVE_DURATION,
    "none",
    "How long a whole request may take: 504 before the response has begun, afterwards the stream is aborted",
);

/// `--response-header-timeout`.
pub static RESPONSE_HEADER_TIMEOUT: Setting<Duration> = Setting::new(
    "response-header-timeout",
    &POSITIVE_DURATION,
    || Duration::from_mins(5),
    "How long the app may take to begin its response once it has the whole request; then 504",
);

/// `--grace-period`.
pub static GRACE_PERIOD: Setting<Duration> = Setting::new(
    "grace-period",
    &POSITIVE_DURATION,
    || Duration::from_secs(30),
    "How long the pod may take to stop: its terminationGracePeriodSeconds. Near its end new requests are refused, so that \
     the gateway sends them elsewhere, and requests under way are cut off",
);

/// `--drain-quiet`.
pub static DRAIN_QUIET: Setting<Duration> = Setting::new(
    "drain-quiet",
    &ANY_DURATION,
    || Duration::from_secs(1),
    "The quiet period without new requests that ends a drain",
);

/// `--drain-secret`.
pub static DRAIN_SECRET: Setting<Option<DrainSecret>> = Setting::optional(
    "drain-secret",
    &DrainSecretText,
    "none: only from this pod",
    "The value of the header X-Rouse-Drain-Secret that /drain and /wait-for-drain require",
);

/// `--workers`.
pub static SIDECAR_WORKERS: Setting<usize> =
    Setting::new("workers", &Whole { least: 1, most: 64 }, || 1, "How many threads serve requests");

/// The check that `--probe` means for the app at `port`.
pub(super) fn probe_check(probe: AppCheck, port: u16) -> ProbeCheck {
    match probe {
        AppCheck::Tcp => ProbeCheck::Tcp { port },
        AppCheck::Http(path) => ProbeCheck::Http { port, path, tls: false, headers: Vec::new() },
        AppCheck::Grpc(service) => ProbeCheck::Grpc { port, service },
    }
}
