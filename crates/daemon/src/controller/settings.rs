//! The table of all settings of `rouse controller`, and the settings of its components that follow from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rouse_config::settings::{
    Address, Choice, FilePath, Group, Label, PrivateAddress, Setting, SettingsTable, Switch, Text, Values,
    Whole,
};
use rouse_core::endpoint::ServiceId;
use rouse_core::slices::{MaxEndpoints, Options};
use rouse_kube::autoscale::{AutoscaleDefault, AutoscaleSettings, GATEWAY_SERVICE};
use rouse_kube::lease::{CONTROLLER_LEASE, Leadership, LeaseSettings};
use rouse_kube::slices::SliceSettings;
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;

use crate::logging::{LOG_FORMAT, LOG_LEVEL};
use crate::process::time_of_day;
use crate::settings::{ANY_DURATION, CONTEXT, KUBECONFIG, ServiceName, loopback};
use crate::token_check::{TOKEN_CHECKS, TokenCheckMode};

/// The table of `rouse controller`.
pub static TABLE: SettingsTable = SettingsTable {
    groups: &[&LISTENING, &REPORTS, &SCALING, &SLICES, &OBSERVABILITY, &KUBERNETES],
    foreign: &[],
    without_effect: |_| None,
    other_variables: &[],
};

const PATH: FilePath = FilePath { placeholder: "PATH" };
const DEFAULTS: &[(&str, AutoscaleDefault)] = &[("off", AutoscaleDefault::Off), ("on", AutoscaleDefault::On)];

static LISTENING: Group = Group { title: "Listening", settings: &[&REPORT_LISTEN, &SCALER_LISTEN, &ADMIN] };

static REPORTS: Group = Group {
    title: "Load reports",
    settings: &[&REPORT_TLS_CERT, &REPORT_TLS_KEY, &REPORT_ACCOUNTS, &REPORT_TOKEN_CHECK, &REPORT_ISSUER],
};

static SCALING: Group = Group { title: "Scaling", settings: &[&AUTOSCALE, &AUTOSCALE_DEFAULT, &GATEWAYS] };

static SLICES: Group = Group {
    title: "EndpointSlices",
    settings: &[&ENDPOINT_SLICES, &TERMINATING_CONDITIONS, &MAX_ENDPOINTS_PER_SLICE, &SLICE_BATCH_WINDOW],
};

static OBSERVABILITY: Group = Group { title: "Observability", settings: &[&LOG_FORMAT, &LOG_LEVEL] };

static KUBERNETES: Group =
    Group { title: "Kubernetes", settings: &[&POD_NAMESPACE, &WATCH_NAMESPACE, &KUBECONFIG, &CONTEXT] };

/// `--report-listen`.
pub static REPORT_LISTEN: Setting<Option<SocketAddr>> = Setting::optional(
    "report-listen",
    &Address,
    "none: the load is not known, and nothing is scaled down",
    "The address to listen on for the load that gateways report, over TLS",
);

/// `--scaler-listen`.
pub static SCALER_LISTEN: Setting<Option<SocketAddr>> = Setting::optional(
    "scaler-listen",
    &Address,
    "none",
    "The address to listen on for KEDA, as its external scaler (gRPC without TLS)",
);

/// `--admin`.
pub static ADMIN: Setting<SocketAddr> = Setting::new(
    "admin",
    &PrivateAddress,
    || loopback(9090),
    "The address of the admin API and the metrics: loopback, or in a pod the pod's own address",
);

/// `--report-tls-cert`.
pub static REPORT_TLS_CERT: Setting<Option<PathBuf>> = Setting::optional(
    "report-tls-cert",
    &PATH,
    "none",
    "A PEM file with the certificate of --report-listen, for the name of the headless Service of the controllers",
);

/// `--report-tls-key`.
pub static REPORT_TLS_KEY: Setting<Option<PathBuf>> =
    Setting::optional("report-tls-key", &PATH, "none", "The PEM file with the key of --report-tls-cert");

/// `--report-accounts`.
pub static REPORT_ACCOUNTS: Setting<Vec<ServiceId>> = Setting::list(
    "report-accounts",
    &ServiceName,
    "rouse-gateway in the namespace of this pod",
    "The ServiceAccounts (not Services) whose pods may report load, as NAMESPACE/NAME",
);

/// `--report-token-check`.
pub static REPORT_TOKEN_CHECK: Setting<TokenCheckMode> = Setting::new(
    "report-token-check",
    &Choice(TOKEN_CHECKS),
    || TokenCheckMode::Jwks,
    "How tokens of gateways are checked: jwks (offline, with the keys of the issuer) or tokenreview (by the API server)",
);

/// `--report-issuer`.
pub static REPORT_ISSUER: Setting<Option<String>> =
    Setting::optional("report-issuer", &Text, "the cluster's own", "The issuer that tokens must have");

/// `--autoscale`.
pub static AUTOSCALE: Setting<bool> = Setting::new(
    "autoscale",
    &Switch,
    || true,
    "Whether the leader scales workloads; without it, the controller still answers KEDA and the admin API, and writes EndpointSlices if \
     that is on",
);

/// `--autoscale-default`.
pub static AUTOSCALE_DEFAULT: Setting<AutoscaleDefault> = Setting::new(
    "autoscale-default",
    &Choice(DEFAULTS),
    || AutoscaleDefault::Off,
    "Whether routes without the annotation rouse.dev/autoscale are scaled: off or on; StatefulSets are scaled only with the \
     annotation",
);

/// `--gateways`.
pub static GATEWAYS: Setting<String> = Setting::new(
    "gateways",
    &Label,
    || GATEWAY_SERVICE.to_owned(),
    "The Service of the gateways, in the namespace of this pod: each of its pods must report, or nothing is scaled down",
);

/// `--endpointslices`.
pub static ENDPOINT_SLICES: Setting<bool> = Setting::new(
    "endpointslices",
    &Switch,
    || false,
    "Whether the leader writes the EndpointSlices of Services without a selector whose annotation rouse.dev/selector names their \
     pods",
);

/// `--terminating-conditions`.
pub static TERMINATING_CONDITIONS: Setting<bool> = Setting::new(
    "terminating-conditions",
    &Switch,
    || true,
    "Whether the EndpointSlices that the controller writes have the conditions serving and terminating, and list pods that are being deleted (KEP-1672)",
);

/// `--max-endpoints-per-slice`.
pub static MAX_ENDPOINTS_PER_SLICE: Setting<usize> = Setting::new(
    "max-endpoints-per-slice",
    &Whole { least: 1, most: 1000 },
    || 100,
    "The most endpoints in one slice",
);

/// `--slice-batch-window`.
pub static SLICE_BATCH_WINDOW: Setting<Duration> = Setting::new(
    "slice-batch-window",
    &ANY_DURATION,
    || Duration::ZERO,
    "How long the write of a slice waits for further changes after the first change of a pod; 0 writes at once",
);

/// `--pod-namespace`.
pub static POD_NAMESPACE: Setting<String> = Setting::new(
    "pod-namespace",
    &Label,
    || "rouse-system".to_owned(),
    "The namespace of this pod, of the gateways and of the Lease",
);

/// `--watch-namespace`.
pub static WATCH_NAMESPACE: Setting<Option<String>> = Setting::optional(
    "watch-namespace",
    &Label,
    "all namespaces",
    "The only namespace whose routes and workloads are scaled, and whose EndpointSlices are written",
);

/// The settings of the autoscaler.
pub(super) fn autoscaler(values: &Values, clock: TokioClock) -> AutoscaleSettings {
    let own = values.get(&POD_NAMESPACE);
    let mut settings = AutoscaleSettings::new(&own, Arc::new(clock), time_of_day, system_seed());
    settings.namespace = values.get(&WATCH_NAMESPACE);
    settings.gateway_service = values.get(&GATEWAYS);
    settings.default = values.get(&AUTOSCALE_DEFAULT);
    settings.identity = host_name();
    settings
}

/// The settings of the controller of `EndpointSlices`.
pub(super) fn slices(values: &Values, clock: TokioClock, leadership: Leadership) -> SliceSettings {
    let mut settings = SliceSettings::new(Arc::new(clock), system_seed());
    settings.namespace = values.get(&WATCH_NAMESPACE);
    settings.options = Options {
        terminating_conditions: values.get(&TERMINATING_CONDITIONS),
        max_endpoints_per_slice: MaxEndpoints::new(values.get(&MAX_ENDPOINTS_PER_SLICE)).unwrap_or_default(),
    };
    settings.batch_window = values.get(&SLICE_BATCH_WINDOW);
    settings.may_write = Arc::new(move || leadership.may_write());
    settings
}

/// The settings of the leader election.
pub(super) fn lease(values: &Values, clock: TokioClock) -> LeaseSettings {
    LeaseSettings {
        namespace: values.get(&POD_NAMESPACE),
        name: CONTROLLER_LEASE.to_owned(),
        // A container that starts again in its pod is another candidate.
        identity: format!("{}_{:016x}", host_name(), system_seed()),
        timing: rouse_core::lease::LeaseTiming::default(),
        clock: Arc::new(clock),
        time_of_day,
        seed: system_seed(),
    }
}

/// In a pod this is the pod's name.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
