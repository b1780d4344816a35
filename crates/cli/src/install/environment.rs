//! Builds the variables of the gateway's container, and checks that a gateway starts with them and listens where its Services
//! expect it.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path};

use super::args::InstallArgs;
use super::{controller, registration};
use crate::CommandError;
use crate::names::IpFamily;
use rouse_config::settings::{AnySetting, Environment, Origin, SettingWarning, Values};
use rouse_daemon::gateway::{GatewayArgs, read_settings, settings};

/// The ports of the manifests.
pub(super) const HTTP: u16 = 8080;
pub(super) const HTTPS: u16 = 8443;
pub(super) const ADMIN: u16 = 9090;
/// Where the certificate is mounted.
pub(super) const CERTS: &str = "/certs";
/// As many connections as fit into the memory limit of the manifests: an idle one takes about 14 KiB, and the rest is for
/// requests.
const CONNECTIONS: &str = "30000";
/// Where Kubernetes mounts the token of the `ServiceAccount` and the CA of the API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The reference that Kubernetes replaces by the pod's address.
pub(super) const POD_IP: &str = "$(POD_IP)";

/// The variables of the gateway except `POD_IP`: those that match the manifests, then the operator's.
pub(super) fn variables(args: &InstallArgs) -> Vec<(String, String)> {
    let six = args.ip_family == IpFamily::Ipv6;
    let everywhere = if six { "[::]" } else { "0.0.0.0" };
    let said = |name: &str| args.env.iter().any(|(other, _)| other == name);
    let mut all =
        vec![("ROUSE_ADMIN", if six { format!("[{POD_IP}]:{ADMIN}") } else { format!("{POD_IP}:{ADMIN}") })];
    if !said("ROUSE_MAX_CONNECTIONS") {
        all.push(("ROUSE_MAX_CONNECTIONS", CONNECTIONS.to_owned()));
    }
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
        // KEDA's TLS listener also uses TLS to pods.
        if args.keda_compat && !said("ROUSE_UPSTREAM_TLS") {
            all.push(("ROUSE_UPSTREAM_TLS", "as-received".to_owned()));
        }
    }
    all.extend(registration::variables(args, everywhere));
    all.extend(controller::gateway_variables(args));
    let ours = all.into_iter().map(|(name, value)| (name.to_owned(), value));
    ours.chain(args.env.iter().cloned()).collect()
}

/// The settings of a gateway with these variables, and warnings about them.
pub(super) fn settings(args: &InstallArgs) -> Result<(Values, Vec<SettingWarning>), CommandError> {
    let variables = variables(args);
    let mut seen = HashSet::from(["POD_IP"]);
    if let Some((twice, _)) = variables.iter().find(|(name, _)| !seen.insert(name)) {
        return Err(CommandError::Input(format!(
            "--env {twice}: the manifests set it already, or it is given twice; leave it out"
        )));
    }
    // A sample address: only its family matters here.
    let (pod, everywhere): (IpAddr, IpAddr) = match args.ip_family {
        IpFamily::Ipv4 => (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::UNSPECIFIED.into()),
        IpFamily::Ipv6 => {
            (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::UNSPECIFIED.into())
        }
    };
    let expanded = variables.into_iter().map(|(name, value)| (name, value.replace(POD_IP, &pod.to_string())));
    let env = expanded.chain([("POD_IP".to_owned(), pod.to_string())]);
    let no_file = |_: &_| Err(io::Error::other(format!("the manifests do not mount it; {INSTEAD}")));
    let read = read_settings(&GatewayArgs::default(), &Environment::new(env), no_file);
    let (settings, warnings) = read.map_err(|problems| CommandError::Input(problems.to_string()))?;

    let at = |port| SocketAddr::new(everywhere, port);
    let https: Vec<SocketAddr> = args.tls_secret.iter().map(|_| at(HTTPS)).collect();
    let register = args.register_secret.as_ref().map(|_| at(registration::PORT));
    let reports_to = settings.get(&settings::REPORT_TO).map(|url| url.to_string());
    let watched = settings.get(&settings::WATCH_NAMESPACE) == args.watch_namespace;
    let (admin, listen, tls_listen): (
        &'static dyn AnySetting,
        &'static dyn AnySetting,
        &'static dyn AnySetting,
    ) = (&settings::ADMIN, &settings::LISTEN, &settings::TLS_LISTEN);
    let fits = [
        (listen, settings.get(&settings::LISTEN) == [at(HTTP)], "the Service sends requests to port 8080"),
        (
            admin,
            settings.get(&settings::ADMIN) == SocketAddr::new(pod, ADMIN),
            "the probes use port 9090 of the pod",
        ),
        (tls_listen, settings.get(&settings::TLS_LISTEN) == https, "use --tls-secret"),
        (
            &settings::REGISTER_LISTEN,
            settings.get(&settings::REGISTER_LISTEN) == register,
            "use --register-secret",
        ),
        (&settings::REPORT_TO, reports_to == controller::url(args), "use --controller-secret"),
        (&settings::WATCH_NAMESPACE, watched, "use --watch-namespace"),
    ];
    for (setting, fits, instead) in fits {
        let name = setting.name();
        if !fits {
            return Err(unfit(&settings.origin(setting).to_string(), name, instead));
        }
        if let Some((alias, _)) = unheard(name, args) {
            return Err(unfit(alias, name, instead));
        }
    }
    match unmounted(&settings, args) {
        Some(refused) => Err(refused),
        None => Ok((settings, warnings)),
    }
}

fn unfit(origin: &str, name: &str, instead: &str) -> CommandError {
    CommandError::Input(format!("--env {origin}: the manifests set {name} ({instead}); leave it out"))
}

/// The variable of KEDA that contradicts the manifests about the setting `name`. It would be ignored silently, because our own
/// variables come first.
fn unheard<'a>(name: &str, args: &'a InstallArgs) -> Option<&'a (String, String)> {
    let port = |value: &str, port: u16| value.parse() == Ok(port);
    // An empty variable counts as not set.
    args.env.iter().filter(|(_, value)| !value.is_empty()).find(|(alias, value)| match (name, &**alias) {
        ("admin", "KEDA_HTTP_ADMIN_PORT") => !port(value, ADMIN),
        ("listen", "KEDA_HTTP_PROXY_PORT") => !port(value, HTTP),
        ("tls-listen", "KEDA_HTTP_PROXY_TLS_PORT") => args.tls_secret.is_some() && !port(value, HTTPS),
        ("watch-namespace", "KEDA_HTTP_WATCH_NAMESPACE") => args.watch_namespace.as_ref() != Some(value),
        _ => false,
    })
}

/// The next step for a setting that names a file.
const INSTEAD: &str = "give settings by --env and certificates by --tls-secret, --register-secret and --controller-secret, or \
                       mount files by the chart's volumes and volumeMounts or by a patch of kustomize (deploy/README.md)";

/// The error for a setting that names a file which the manifests do not mount.
fn unmounted(settings: &Values, args: &InstallArgs) -> Option<CommandError> {
    let mounted = |path: &Path| {
        let certs = args.tls_secret.is_some() && path.starts_with(CERTS)
            || args.register_secret.is_some() && path.starts_with(registration::CERTS)
            || args.controller.controller_secret.is_some() && path.starts_with(controller::REPORT_FILES);
        // `starts_with` does not resolve `..`, which could leave the folder.
        (certs || path.starts_with(ACCOUNT)) && !path.components().any(|part| part == Component::ParentDir)
    };
    // The file of a default is used only together with a setting that needs it.
    let mut given = settings.all().iter().filter(|found| !matches!(found.origin, Origin::Default));
    given.find_map(|found| {
        let path = found.value.paths.iter().find(|path| !mounted(path))?.display();
        let origin = &found.origin;
        Some(CommandError::Input(format!("--env {origin}: the manifests do not mount {path}; {INSTEAD}")))
    })
}
