//! Whether a gateway would start with the variables that it is going to get, and be where its Services look for it.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::args::{InstallArgs, IpFamily};
use crate::failure::Failure;
use crate::gateway::settings::{self, Settings};
use crate::gateway::{GatewayArgs, Warning};

/// The ports of the manifests.
pub(super) const HTTP: u16 = 8080;
pub(super) const HTTPS: u16 = 8443;
pub(super) const ADMIN: u16 = 9090;
/// Where the certificate is mounted.
pub(super) const CERTS: &str = "/certs";
/// What Kubernetes puts the pod's address in place of.
const POD_IP: &str = "$(POD_IP)";

/// The variables of the gateway beside `POD_IP`: those that make it fit its manifests, then the operator's.
pub(super) fn variables(args: &InstallArgs) -> Vec<(String, String)> {
    let six = args.ip_family == IpFamily::Ipv6;
    let everywhere = if six { "[::]" } else { "0.0.0.0" };
    let mut all =
        vec![("ROUSE_ADMIN", if six { format!("[{POD_IP}]:{ADMIN}") } else { format!("{POD_IP}:{ADMIN}") })];
    if six {
        all.push(("ROUSE_LISTEN", format!("{everywhere}:{HTTP}")));
    }
    if let Some(namespace) = &args.watch_namespace {
        all.push(("ROUSE_WATCH_NAMESPACE", namespace.clone()));
    }
    if args.keda_compat {
        all.push(("ROUSE_KEDA_COMPAT", "true".to_owned()));
    }
    if args.tls_secret.is_some() {
        all.push(("ROUSE_TLS_LISTEN", format!("{everywhere}:{HTTPS}")));
        all.push(("ROUSE_TLS_CERT_DIR", CERTS.to_owned()));
    }
    let ours = all.into_iter().map(|(name, value)| (name.to_owned(), value));
    ours.chain(args.env.iter().cloned()).collect()
}

/// The settings that a gateway has with these variables, and what there is to say about them.
pub(super) fn settings(args: &InstallArgs) -> Result<(Settings, Vec<Warning>), Failure> {
    let variables = variables(args);
    let mut seen = HashSet::from(["POD_IP"]);
    if let Some((twice, _)) = variables.iter().find(|(name, _)| !seen.insert(name)) {
        return Err(Failure::Input(format!(
            "--env {twice}: the manifests set it already, or it is given twice; leave it out"
        )));
    }
    // Any address will do: only its family matters here.
    let (pod, everywhere): (IpAddr, IpAddr) = match args.ip_family {
        IpFamily::Ipv4 => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::UNSPECIFIED.into()),
        IpFamily::Ipv6 => {
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::UNSPECIFIED.into())
        }
    };
    let expanded = variables.into_iter().map(|(name, value)| (name, value.replace(POD_IP, &pod.to_string())));
    let env = expanded.chain([("POD_IP".to_owned(), pod.to_string())]);
    let no_file = |_: &_| Err(io::Error::other("the manifests mount no such file"));
    let read = settings::read(&GatewayArgs::default(), env, no_file);
    let (settings, warnings) = read.map_err(|problems| Failure::Input(problems.to_string()))?;

    let door = |port| SocketAddr::new(everywhere, port);
    let https: Vec<SocketAddr> = args.tls_secret.iter().map(|_| door(HTTPS)).collect();
    let watched = settings.kubernetes.watch_namespace == args.watch_namespace;
    let fits = [
        ("listen", settings.listen == [door(HTTP)], "the Service sends requests to port 8080"),
        ("admin", settings.admin == SocketAddr::new(pod, ADMIN), "the probes ask at port 9090 of the pod"),
        ("tls-listen", settings.tls.listen == https, "use --tls-secret"),
        ("watch-namespace", watched, "use --watch-namespace"),
    ];
    for (name, fits, instead) in fits {
        if !fits {
            let origin = settings.origin(name).map_or_else(|| name.to_owned(), ToString::to_string);
            return Err(Failure::Input(format!(
                "--env {origin}: {name} is what the manifests say it is ({instead}); leave it out"
            )));
        }
    }
    Ok((settings, warnings))
}
