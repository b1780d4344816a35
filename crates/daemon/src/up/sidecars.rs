//! The sidecars of `rouse up`: a key for this run, the listener where they register, and their command line.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use rouse_core::registry::RegistrySettings;
use rouse_local::engine::{LocalEngine, PORT_NAME, Readiness, SidecarLauncher, SidecarPod};
use rouse_net::auth::{Authenticators, KeyScope, PushMode, SharedKey, SharedKeys};
use rouse_net::listen::Listener;
use rouse_net::random::secret;
use rouse_register::server::{
    ListenerLimits, ListenerTransport, RegistrationMetrics, RegistrationParts, RegistrationRates,
    RegistrationServer, RegistrationSettings,
};
use tokio::net::TcpListener;

use super::plan::ourselves;
use crate::data_plane::Serving;
use crate::failure::{CommandError, failed};
use crate::process::time_of_day;

/// Another user of the machine can connect too: its connections use up few file descriptors.
const LIMITS: ListenerLimits = ListenerLimits { connections: 512, handshakes: 64 };
/// The id of the key of a run.
const KEY_ID: &str = "run";

/// The key of this run. Only `rouse up` and the sidecars that it starts know it.
pub(super) struct RunKey {
    key: SharedKey,
    secret: Arc<[u8]>,
}

impl RunKey {
    /// A new random key.
    pub(super) fn new() -> Result<Self, CommandError> {
        let failed = |error: &dyn Display| {
            CommandError::Failed(format!("cannot make a key for the sidecars: {error}"))
        };
        let secret = secret().map_err(|error| failed(&error))?;
        let key = SharedKey::new(KEY_ID, &secret, KeyScope::All).map_err(|error| failed(&error))?;
        Ok(Self { key, secret: secret.into() })
    }

    /// How sidecars are started that register at `gateway`. They read the key from their standard input.
    pub(super) fn launcher(&self, gateway: SocketAddr) -> SidecarLauncher {
        SidecarLauncher::new(Arc::clone(&self.secret), move |pod| command_line(pod, gateway))
    }

    /// Serves registrations of the engine's pods.
    pub(super) fn serve(
        self,
        listener: Listener,
        metrics: RegistrationMetrics,
        engine: &Arc<LocalEngine>,
        serving: &mut Serving,
    ) -> Result<(), CommandError> {
        let address = listener.address();
        let listener = TcpListener::from_std(listener.into_std())
            .map_err(failed("cannot listen on the address for registrations"))?;
        let keys = Arc::new(SharedKeys::fixed(vec![self.key], time_of_day));
        let settings = RegistrationSettings {
            mode: PushMode::On,
            lease: RegistrySettings::default().policy.lease,
            rates: RegistrationRates::default(),
        };
        let parts = RegistrationParts {
            authenticators: Authenticators::default().with_shared_keys(keys),
            ownership: Arc::clone(engine) as _,
            registry: Arc::clone(&serving.registry),
            clock: Arc::new(serving.clock),
            time_of_day,
            gateways: Arc::new(move || vec![address]),
            metrics,
        };
        let server = RegistrationServer::new(settings, parts);
        let task = server.serve(listener, ListenerTransport::Plain, LIMITS, serving.end.clone());
        serving.tasks.spawn("the listener for registrations", task);
        Ok(())
    }
}

/// The command line of a pod's sidecar.
fn command_line(pod: &SidecarPod<'_>, gateway: SocketAddr) -> Vec<String> {
    let probe = match pod.readiness {
        Readiness::Tcp => "tcp".to_owned(),
        Readiness::Http(path) => format!("http:{path}"),
        Readiness::Grpc(service) => format!("grpc:{service}"),
    };
    let flags = [
        ("--listen", pod.listen.to_string()),
        ("--admin", SocketAddr::new(pod.listen.ip(), 0).to_string()),
        ("--app", pod.app.to_string()),
        ("--app-protocol", if pod.h2c { "h2c" } else { "http1" }.to_owned()),
        ("--probe", probe),
        // The engine has sent nothing to the pod for a while when it stops.
        ("--drain-quiet", "0".to_owned()),
        ("--grace-period", format!("{}ms", pod.grace.as_millis().max(1))),
        ("--register", format!("http://{gateway}")),
        ("--register-key", "-".to_owned()),
        ("--pod-name", pod.name.to_owned()),
        ("--pod-namespace", pod.service.namespace().to_owned()),
        ("--pod-uid", pod.uid.to_string()),
        ("--pod-ips", pod.listen.ip().to_string()),
        ("--service", pod.service.name().to_owned()),
        ("--port", format!("{PORT_NAME}={}", pod.listen.port())),
        ("--log-level", "warn".to_owned()),
    ];
    let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
    [ourselves(), "sidecar".to_owned()].into_iter().chain(flags).collect()
}
