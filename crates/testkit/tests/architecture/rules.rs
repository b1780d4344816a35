//! What the tests of the architecture allow. Exceptions are listed exactly, so that the lists can only become shorter.

/// Which crates each crate may depend on.
pub(crate) const CRATES: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("net", &["core"]),
    ("proxy", &["core", "net"]),
    ("kube", &["core"]),
    ("local", &["core", "net"]),
    ("config", &[]),
    ("daemon", &["config", "core", "net", "proxy", "kube", "local"]),
    ("cli", &["config", "daemon", "core", "kube", "local"]),
];

/// The rooms of a crate in layers. A room imports only rooms of later layers.
pub(crate) const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "core",
        &[
            &["registry"],
            &["service"],
            &["hold", "merge"],
            &["pick"],
            &["snapshot"],
            &["engine", "slices", "timeline"],
            &["endpoint"],
            &["budget", "drain", "probe", "scale", "start"],
            &["random"],
            &["host", "routing", "sync", "time"],
        ],
    ),
    // A request goes down through `listen`, `downstream`, `request`, `routing` and `upstream`. A route holds its backends, which are
    // types of `upstream`. `budget`, `client`, `runtime` and `message` are what several of these rooms need.
    (
        "proxy",
        &[
            &["listen"],
            &["downstream"],
            &["request"],
            &["routing"],
            &["upstream"],
            &["telemetry"],
            &["budget"],
            &["client"],
            &["error", "message", "runtime"],
        ],
    ),
    ("net", &[&["prober"], &["limits", "probe", "probe_schedule"], &["clock", "listen", "random", "tls"]]),
    (
        "kube",
        &[&["cluster", "survey"], &["endpoints", "routes", "wake"], &["events"], &["objects"], &["client"]],
    ),
    (
        "local",
        &[
            &["engine"],
            &["guardian", "listening", "process", "supervise"],
            &["address", "command", "output", "process_tree"],
            &["wire"],
        ],
    ),
    ("config", &[&["settings"], &["field"], &["duration", "errors", "size"], &["document"]]),
    (
        "daemon",
        &[
            &["gateway", "up"],
            &["data_plane"],
            &["role"],
            &["admin", "certificates", "listeners", "logging", "settings"],
            &["failure", "process", "rouse_yaml"],
        ],
    ),
    ("cli", &[&["admin_client", "demo", "explain"], &["args"], &["check", "exit", "install"]]),
];

/// Words that the code of some rooms must not have: a crate, the rooms that may have them, and the words.
pub(crate) const WORDS: &[(&str, &[&str], &[&str])] = &[
    // Another HTTP engine may replace hyper in the two rooms that speak HTTP. All others read `RequestHead`.
    ("proxy", &["downstream", "upstream"], &["hyper", "hyper_util", "h2", "http_body", "HeaderMap"]),
];

/// Where types mirror Kubernetes objects and keep the names that Kubernetes gives them, whatever else has that name.
pub(crate) const KUBERNETES_NAMES: &[&str] = &["crates/kube/src/objects/", "crates/core/src/slices/"];

/// Rooms that are still part of an import cycle.
pub(crate) const CYCLES: &[&str] = &[];

pub(crate) const MOST_LINES_OF_A_FILE: usize = 450;
/// Files that are still longer.
pub(crate) const LONG_FILES: &[&str] = &[];

pub(crate) const MOST_LINES_OF_A_FUNCTION: usize = 70;
/// Functions that are still longer.
pub(crate) const LONG_FUNCTIONS: &[&str] = &[];
