//! The settings of push: where the sidecar registers, what proves who it is, and what it says about its pod.

use std::net::IpAddr;
use std::path::PathBuf;

use rouse_config::settings::{FilePath, Group, Label, Setting, Text};

use super::value_types::{IpText, NamedPort, NamedPortText, PushTarget, PushTargetText};

const FILE: FilePath = FilePath { placeholder: "FILE" };

pub(super) static PUSH: Group = Group {
    title: "Push",
    settings: &[
        &REGISTER,
        &REGISTER_NAMESPACE,
        &REGISTER_TOKEN,
        &REGISTER_CA,
        &REGISTER_CLIENT_CERT,
        &REGISTER_CLIENT_KEY,
        &REGISTER_KEY,
    ],
};

pub(super) static POD: Group =
    Group { title: "Pod", settings: &[&POD_NAME, &POD_NAMESPACE, &POD_UID, &POD_IPS, &SERVICE, &PORT] };

/// `--register`.
pub static REGISTER: Setting<Option<PushTarget>> = Setting::optional(
    "register",
    &PushTargetText,
    "https://rouse-register.NAMESPACE.svc.cluster.local:9443, with --register-namespace",
    "The URL of the gateways' registration port; none, or an empty flag, turns push off",
);

/// `--register-namespace`.
pub static REGISTER_NAMESPACE: Setting<String> = Setting::new(
    "register-namespace",
    &Label,
    || "rouse-system".to_owned(),
    "The namespace of the gateways, for the default of --register",
);

/// `--register-token`.
pub static REGISTER_TOKEN: Setting<Option<PathBuf>> = Setting::optional(
    "register-token",
    &FILE,
    "none",
    "The file with the pod's ServiceAccount token for the audience rouse-register; it is read again for each registration",
);

/// `--register-ca`.
pub static REGISTER_CA: Setting<Option<PathBuf>> = Setting::optional(
    "register-ca",
    &FILE,
    "the roots of the system",
    "A PEM file with the CAs of the gateways' certificates; it may hold two during a rotation",
);

/// `--register-client-cert`.
pub static REGISTER_CLIENT_CERT: Setting<Option<PathBuf>> = Setting::optional(
    "register-client-cert",
    &FILE,
    "none",
    "A PEM file with the client certificate that proves who the pod is (mTLS)",
);

/// `--register-client-key`.
pub static REGISTER_CLIENT_KEY: Setting<Option<PathBuf>> = Setting::optional(
    "register-client-key",
    &FILE,
    "none",
    "The PEM file with the key of --register-client-cert",
);

/// `--register-key`.
pub static REGISTER_KEY: Setting<Option<PathBuf>> = Setting::optional(
    "register-key",
    &FILE,
    "none",
    "A file with a key that is shared with the gateways, or a folder of which the last key by name is used; the name of the file \
     is the id of the key, and it is read again for each registration. - reads the key from standard input, with the id run",
);

/// `--pod-name`.
pub static POD_NAME: Setting<Option<String>> =
    Setting::optional("pod-name", &Text, "none", "The name of this pod");

/// `--pod-namespace`.
pub static POD_NAMESPACE: Setting<Option<String>> =
    Setting::optional("pod-namespace", &Label, "none", "The namespace of this pod and its Service");

/// `--pod-uid`.
pub static POD_UID: Setting<Option<String>> =
    Setting::optional("pod-uid", &Text, "none", "The UID of this pod");

/// `--pod-ips`.
pub static POD_IPS: Setting<Vec<IpAddr>> =
    Setting::list("pod-ips", &IpText, "none", "The addresses of this pod; may be repeated");

/// `--service`.
pub static SERVICE: Setting<Option<String>> =
    Setting::optional("service", &Text, "none", "The Service that this pod belongs to");

/// `--port`.
pub static PORT: Setting<Vec<NamedPort>> = Setting::list(
    "port",
    &NamedPortText,
    "none",
    "A port of the Service, by the name that it has there, and its number on this pod; may be repeated",
);
