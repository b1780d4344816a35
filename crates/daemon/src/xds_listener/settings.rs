//! The settings of the listener for Envoys, which `rouse xds` and `rouse gateway --xds-listen` share, and their checks.

use std::net::SocketAddr;
use std::path::PathBuf;

use rouse_config::settings::{
    Address, AnySetting, FilePath, Label, Setting, SettingsDiagnostics, Switch, Text, Values,
};
use rouse_kube::autoscale::GATEWAY_SERVICE;

const PATH: FilePath = FilePath { placeholder: "PATH" };
const FILE: FilePath = FilePath { placeholder: "FILE" };

/// `--xds-tls-cert`.
pub static XDS_TLS_CERT: Setting<Option<PathBuf>> = Setting::optional(
    "xds-tls-cert",
    &PATH,
    "none",
    "A PEM file with the certificate of --xds-listen, for the name by which Envoys connect",
);

/// `--xds-tls-key`.
pub static XDS_TLS_KEY: Setting<Option<PathBuf>> =
    Setting::optional("xds-tls-key", &PATH, "none", "The PEM file with the key of --xds-tls-cert");

/// `--xds-client-ca`.
pub static XDS_CLIENT_CA: Setting<Option<PathBuf>> = Setting::optional(
    "xds-client-ca",
    &FILE,
    "none",
    "A PEM file with the CAs of Envoys' client certificates: an Envoy without such a certificate gets nothing",
);

/// `--xds-client-san`.
pub static XDS_CLIENT_SAN: Setting<Vec<String>> = Setting::list(
    "xds-client-san",
    &Text,
    "every certificate of --xds-client-ca",
    "A DNS name or a URI in the certificate of an Envoy that may connect, like spiffe://cluster.local/ns/edge/sa/envoy; may be \
     repeated",
);

/// `--xds-insecure`.
pub static XDS_INSECURE: Setting<bool> = Setting::new(
    "xds-insecure",
    &Switch,
    || false,
    "Whether to listen beyond loopback without TLS, or without asking for client certificates: any client that reaches the port can then \
     read all routes and addresses, and report load",
);

/// `--envoy-listen`.
pub static ENVOY_LISTEN: Setting<Vec<SocketAddr>> = Setting::list(
    "envoy-listen",
    &Address,
    "none: listeners are Envoys' own",
    "An address on which Envoys are told to listen for requests; may be repeated",
);

/// `--gateways`.
pub static GATEWAYS: Setting<String> = Setting::new(
    "gateways",
    &Label,
    || GATEWAY_SERVICE.to_owned(),
    "The Service of the gateways, in the namespace of this pod: Envoys send the requests of a service without a ready pod to its \
     ready endpoints, on the port that is called http",
);

/// `--pod-namespace`.
pub static POD_NAMESPACE: Setting<String> = Setting::new(
    "pod-namespace",
    &Label,
    || "rouse-system".to_owned(),
    "The namespace of this pod and of the gateways",
);

/// Rejects a listener that would show the cluster to everyone who reaches it. `address` is where it listens, by which setting.
pub(crate) fn together(
    values: &Values,
    (setting, address): (&'static dyn AnySetting, Option<SocketAddr>),
    reading: &mut SettingsDiagnostics,
) {
    let of_tls: [&dyn AnySetting; 6] =
        [setting, &XDS_TLS_CERT, &XDS_TLS_KEY, &XDS_CLIENT_CA, &XDS_CLIENT_SAN, &XDS_INSECURE];
    if !reading.is_certain_of(&of_tls) {
        return;
    }
    let (cert, key) = (values.get(&XDS_TLS_CERT).is_some(), values.get(&XDS_TLS_KEY).is_some());
    let (ca, sans) = (values.get(&XDS_CLIENT_CA).is_some(), !values.get(&XDS_CLIENT_SAN).is_empty());
    let Some(address) = address else {
        let given: [(&'static dyn AnySetting, bool); 6] = [
            (&XDS_TLS_CERT, cert),
            (&XDS_TLS_KEY, key),
            (&XDS_CLIENT_CA, ca),
            (&XDS_CLIENT_SAN, sans),
            (&XDS_INSECURE, values.get(&XDS_INSECURE)),
            (&ENVOY_LISTEN, !values.get(&ENVOY_LISTEN).is_empty()),
        ];
        if let Some((other, _)) = given.into_iter().find(|(_, given)| *given) {
            reading.warn(values.first_origin(&[other]), "it has no effect without --xds-listen");
        }
        return;
    };
    let open = address.ip().to_canonical().is_loopback() || values.get(&XDS_INSECURE);
    if cert != key {
        let what = "give both --xds-tls-cert and --xds-tls-key";
        reading.problem(values.first_origin(&[&XDS_TLS_CERT, &XDS_TLS_KEY]), what);
    } else if !cert && !open {
        let what = format!(
            "{address} is not on loopback, and Envoys would get all routes and addresses in plain text: give --xds-tls-cert, \
             --xds-tls-key and --xds-client-ca, or --xds-insecure"
        );
        reading.problem(values.first_origin(&[setting, &XDS_TLS_CERT]), what);
    } else if cert && !ca && !open {
        let what = format!(
            "any client that reaches {address} could read all routes and addresses, and report load: give --xds-client-ca, or \
             --xds-insecure"
        );
        reading.problem(values.first_origin(&[&XDS_TLS_CERT, setting]), what);
    }
    if ca && !cert {
        let what = "client certificates need TLS: give --xds-tls-cert and --xds-tls-key";
        reading.problem(values.first_origin(&[&XDS_CLIENT_CA]), what);
    }
    if sans && !ca {
        let what = "the names of client certificates prove nothing without their CA: give --xds-client-ca";
        reading.problem(values.first_origin(&[&XDS_CLIENT_SAN]), what);
    }
}
