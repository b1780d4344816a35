//! The pod lifecycle of an app: starts pods, handles their exit and readiness, counts failures, and sends stop orders.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use rouse_core::probe::ProbePlan;
use rouse_core::snapshot::{PortView, Snapshot};
use rouse_core::start_failure::StartFailureCause;
use rouse_core::time::{Clock as _, Moment};
use rouse_net::probe_schedule::ProbeSchedule;
use rouse_net::prober::{ProbeTarget, Prober};

use super::App;
use crate::address::{AddressError, Lease};
use crate::command::{CommandSpec, SpawnError};
use crate::engine::pod::{Pod, Stage};
use crate::engine::pod_processes::PodProcesses;
use crate::engine::spec::PortChoice;
use crate::engine::status::AppEventKind;
use crate::engine::{End, failure_text, lock, random_uid};
use crate::process::{Exit, Start};

/// How long one probe may take: the default of kubelet.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// A sidecar reports before its app is probed from outside. The probes are for a sidecar that cannot register.
const SIDECAR_FIRST: Duration = Duration::from_secs(2);

/// How a pod is probed, and from when on.
#[derive(Debug)]
pub(super) struct PlannedProbe {
    plan: Arc<ProbePlan>,
    from: Moment,
}

/// An event of a task of the owner.
#[derive(Debug)]
pub(super) enum PodReport {
    /// The processes of a pod were started, or could not be.
    Spawned(PodUid, Result<Arc<PodProcesses>, SpawnError>),
    /// The processes of a pod have ended.
    Exited(PodUid, Exit),
    /// The prober has ended.
    ProberEnded,
}

impl App {
    /// The prober of this app's pods.
    pub(super) fn prober(&self) -> Arc<Prober> {
        let (plans, random) = (Arc::clone(&self.plans), Arc::clone(&self.engine.random));
        let (handle, clock) = (Arc::clone(&self.handle), self.engine.settings.clock);
        let node: Arc<str> = "here".into();
        Arc::new(Prober {
            plans: Box::new(move |uid, _, _| {
                let plan = lock(&plans).get(uid).filter(|planned| clock.now() >= planned.from)?.plan.clone();
                // Read the current interval: a change of it does not replace the pods.
                let steady = lock(&handle.orders).spec.probe_interval;
                Some(ProbeTarget { plan, node: Arc::clone(&node), steady })
            }),
            schedule: ProbeSchedule::local(),
            limits: Arc::clone(&self.engine.probes),
            timeout: PROBE_TIMEOUT,
            random: Box::new(move || random.next_u64()),
        })
    }

    /// Starts one pod of the newest version.
    pub(super) fn start(&mut self, now: Moment) {
        let address = match self.spec.port {
            PortChoice::Auto => self.engine.addresses.auto(),
            PortChoice::Fixed(port) => self.engine.addresses.fixed(port.get()),
        };
        match address {
            Ok(app) => match self.sidecar_address(&app) {
                Ok(sidecar) => self.start_at(app, sidecar, now),
                Err(error) => self.failed(now, now, StartFailureCause::Crashed, failure_text::whole(&error)),
            },
            Err(error) => self.failed(now, now, StartFailureCause::Crashed, failure_text::whole(&error)),
        }
    }

    /// An address for the sidecar beside the app's, if the app has one.
    fn sidecar_address(&self, app: &Lease) -> Result<Option<Lease>, AddressError> {
        match app.address().ip() {
            IpAddr::V4(ip) if self.spec.sidecar && self.engine.settings.sidecar.is_some() => {
                self.engine.addresses.free_port(ip).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn start_at(&mut self, lease: Lease, sidecar: Option<Lease>, now: Moment) {
        // The smallest number that no existing pod has.
        let taken = |ordinal: &u32| self.pods.iter().any(|pod| pod.ordinal == *ordinal);
        let ordinal = (1..u32::MAX).find(|ordinal| !taken(ordinal)).unwrap_or(u32::MAX);
        let name: Arc<str> = format!("{}-{ordinal}", self.spec.service.name()).into();
        let uid = random_uid(&self.engine.random);
        let address = sidecar.as_ref().unwrap_or(&lease).address();
        // The app itself is probed, also behind a sidecar: the sidecar accepts connections before the app does.
        if let Some(plan) = self.spec.readiness.plan(lease.address().port()) {
            let from = if sidecar.is_some() { now + SIDECAR_FIRST } else { now };
            lock(&self.plans).insert(uid.clone(), PlannedProbe { plan, from });
        }
        self.pods.push(Pod {
            name: Arc::clone(&name),
            ordinal,
            uid: uid.clone(),
            address,
            generation: self.generation,
            readiness: self.spec.readiness.clone(),
            begun: now,
            processes: None,
            load: None,
            served: false,
            told: false,
            stage: Stage::Starting { since: now },
            line_before: failure_text::last_line(&name, &self.handle.log),
        });
        self.restarts.started();
        let sidecar = sidecar.and_then(|sidecar| self.sidecar_start(&name, &uid, sidecar, &lease));
        let app = Start {
            name,
            uid: uid.clone(),
            command: self.spec.command.clone(),
            address: lease,
            log: Arc::clone(&self.handle.log),
            input: Arc::default(),
        };
        let launcher = self.engine.settings.launcher.clone();
        self.tasks.spawn(async move {
            PodReport::Spawned(uid, PodProcesses::spawn(&launcher, app, sidecar).await)
        });
    }

    /// The sidecar of a pod whose app gets the address `app`.
    fn sidecar_start(&self, name: &Arc<str>, uid: &PodUid, sidecar: Lease, app: &Lease) -> Option<Start> {
        let launcher = self.engine.settings.sidecar.as_ref()?;
        let pod = self.spec.sidecar_pod((name, uid), sidecar.address(), app.address());
        // A dollar sign in a command line stands for the pod's port, address or name.
        let argv = launcher.command_line(&pod).into_iter().map(|argument| argument.replace('$', "$$"));
        let command = CommandSpec {
            argv: argv.collect(),
            env: BTreeMap::new(),
            workdir: self.spec.command.workdir.clone(),
        };
        Some(Start {
            name: format!("{name}-sidecar").into(),
            uid: uid.clone(),
            command,
            address: sidecar,
            log: Arc::clone(&self.handle.log),
            input: Arc::clone(launcher.input()),
        })
    }

    /// Handles an event of a task of the owner.
    pub(super) fn hear(&mut self, news: PodReport) {
        self.news = true;
        self.look = None;
        let now = self.engine.now();
        match news {
            PodReport::Spawned(uid, Ok(process)) => self.spawned(&uid, process),
            PodReport::Spawned(uid, Err(error)) => {
                let begun = self.reap(&uid).map_or(now, |pod| pod.begun);
                let cause =
                    if error.is_final() { StartFailureCause::CannotRun } else { StartFailureCause::Crashed };
                self.failed(now, begun, cause, failure_text::whole(&error));
            }
            PodReport::Exited(uid, exit) => self.exited(&uid, exit, now),
            PodReport::ProberEnded => {}
        }
    }

    fn spawned(&mut self, uid: &PodUid, processes: Arc<PodProcesses>) {
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.uid == *uid) else { return };
        pod.processes = Some(Arc::clone(&processes));
        let what =
            AppEventKind::Started { pod: Arc::clone(&pod.name), pid: processes.pid(), address: pod.address };
        self.tell(what);
        let uid = uid.clone();
        self.tasks.spawn(async move { PodReport::Exited(uid, processes.exited().await) });
    }

    fn exited(&mut self, uid: &PodUid, exit: Exit, now: Moment) {
        let Some(pod) = self.reap(uid) else { return };
        let expected = !pod.stays();
        self.tell(AppEventKind::Exited { pod: Arc::clone(&pod.name), exit: exit.to_string(), expected });
        if !expected {
            self.note_event(&format!("{} {exit}", pod.name));
            self.count_failure(
                now,
                pod.begun,
                StartFailureCause::Crashed,
                &failure_text::exited(&pod, exit, &self.handle.log),
            );
            // Remove the pod from the slices first: while it counts as ready, the failure would not be reported.
            self.publisher.publish(&self.service, self.spec.h2c, &self.pods);
            self.tell_holds(now);
        }
    }

    /// A pod could not be started.
    fn failed(&mut self, now: Moment, begun: Moment, cause: StartFailureCause, reason: String) {
        self.note_event(&reason);
        self.count_failure(now, begun, cause, &reason);
        self.tell_holds(now);
        self.tell(AppEventKind::Failed { reason });
    }

    /// Counts a failure. Pods that ran at the same time and fail together count once: three pods with a typo in their command
    /// are not a crash loop.
    fn count_failure(&mut self, now: Moment, begun: Moment, cause: StartFailureCause, reason: &str) {
        let together = self.failure.is_some_and(|(failure, _)| begun <= failure);
        if !together || self.restarts.due().is_none() {
            self.restarts.failed(now, reason);
            let looping = cause == StartFailureCause::Crashed && self.restarts.is_looping();
            self.failure = Some((now, if looping { StartFailureCause::CrashLooping } else { cause }));
        }
    }

    fn reap(&mut self, uid: &PodUid) -> Option<Pod> {
        lock(&self.plans).remove(uid);
        let place = self.pods.iter().position(|pod| pod.uid == *uid)?;
        Some(self.pods.remove(place))
    }

    /// Updates the pods from a snapshot of the registry.
    pub(super) fn see(&mut self, snapshot: &Snapshot) {
        let now = self.engine.now();
        for endpoint in snapshot.ports.iter().flat_map(PortView::endpoints) {
            let uid = endpoint.pod.as_ref().map(|pod| &pod.uid);
            let Some(pod) = self.pods.iter_mut().find(|pod| Some(&pod.uid) == uid) else { continue };
            let before = pod.stage;
            let first = pod.see(endpoint, now);
            if before != pod.stage {
                self.news = true;
                self.look = None;
            }
            if first {
                self.noted = None;
                let what = AppEventKind::Ready { pod: Arc::clone(&pod.name), after: now.since(pod.begun) };
                self.engine.tell(&self.spec.service, what);
            }
        }
        let recovers = self.pods.iter().any(|pod| pod.is_ready() && pod.generation == self.generation);
        if recovers { self.restarts.ready(now) } else { self.restarts.unready(now) }
    }

    /// Orders the processes of pods in the stage `Stopping` to stop.
    pub(super) fn signal(&mut self, end: End) {
        for pod in self.pods.iter_mut().filter(|pod| pod.stage == Stage::Stopping) {
            let Some(processes) = &pod.processes else { continue };
            if end == End::Kill {
                processes.stop(Duration::ZERO);
            }
            if !std::mem::replace(&mut pod.told, true) {
                processes.stop(self.spec.stop_grace);
                let what = AppEventKind::Stopping { pod: Arc::clone(&pod.name) };
                self.engine.tell(&self.spec.service, what);
            }
        }
    }
}
