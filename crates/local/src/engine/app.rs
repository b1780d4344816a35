//! The owner task of one app: scales the app, starts and stops its pods, publishes them, and reports its status.
//!
//! After every event (a wake, an order, a snapshot, the end of a process, a timer), the owner takes the same step: take the
//! orders, decide how many pods there should be, plan, publish, and only then signal processes. A step evaluates the whole
//! state again, so the order of two events does not matter.

mod pod_lifecycle;
mod scaling;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use rouse_core::registry::Registry;
use rouse_core::scale::{Autoscaler, Reporter};
use rouse_core::service::Service;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_core::time::Moment;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::load::LoadReader;
use super::plan::{RunningPod, plan};
use super::pod::{Pod, Stage};
use super::publish::Publisher;
use super::spec::AppSpec;
use super::status::{AppEventKind, AppStatus};
use super::{AppHandle, End, LocalEngine, failure_text, lock};
use crate::restart_backoff::RestartBackoff;
use pod_lifecycle::{PlannedProbe, PodReport};

/// After how long a pod that is not ready is reported, and how often the report is repeated.
const SLOW: Duration = Duration::from_secs(1);
/// One app and its pods.
pub(super) struct App {
    engine: Arc<LocalEngine>,
    registry: Arc<Registry>,
    handle: Arc<AppHandle>,
    service: Arc<Service>,
    spec: AppSpec,
    /// How many restart and pin orders were carried out.
    heard: (u64, u64),
    removed: bool,
    /// The version of the app. Pods of an older one are replaced.
    generation: u64,
    pods: Vec<Pod>,
    restarts: RestartBackoff,
    /// The last counted failure: when, and its cause.
    failure: Option<(Moment, StartFailureCause)>,
    scaler: Autoscaler,
    gateway: Reporter,
    load: LoadReader,
    desired: u32,
    reason: String,
    publisher: Publisher,
    /// The probe plan of each pod. A pod of an older version keeps its plan.
    plans: Arc<Mutex<HashMap<PodUid, PlannedProbe>>>,
    tasks: JoinSet<PodReport>,
    /// The owner was notified: there may be orders.
    notified: bool,
    /// Something happened that requires a decision.
    news: bool,
    /// When a decision may differ although nothing happens.
    next_decision: Option<Moment>,
    /// When to try again to start a pod ahead of a request.
    start_ahead_again: Option<Moment>,
    /// When to check for slow or failing pods again.
    look: Option<Moment>,
    trouble: Option<String>,
    /// The last start failure that was written to the log; reset when a pod is ready.
    noted: Option<String>,
}

impl App {
    pub(super) fn new(engine: Arc<LocalEngine>, registry: Arc<Registry>, handle: Arc<AppHandle>) -> Self {
        let spec = lock(&handle.orders).spec.clone();
        let now = engine.now();
        let gateway = Reporter::new("gateway");
        let mut scaler = Autoscaler::created(spec.policy.clone(), now);
        // Cannot fail: one reporter is below the limit.
        scaler.list(now, [gateway.clone()]).ok();
        let load = LoadReader::new(handle.service.meter());
        Self {
            service: Arc::clone(&handle.service),
            engine,
            registry,
            handle,
            spec,
            heard: (0, 0),
            removed: false,
            generation: 0,
            pods: Vec::new(),
            restarts: RestartBackoff::default(),
            failure: None,
            scaler,
            gateway,
            load,
            desired: 0,
            reason: String::new(),
            publisher: Publisher::new(),
            plans: Arc::default(),
            tasks: JoinSet::new(),
            notified: true,
            news: true,
            next_decision: None,
            start_ahead_again: None,
            look: None,
            trouble: None,
            noted: None,
        }
    }

    /// Runs the app until the engine stops, or until it is removed and its last pod is gone.
    pub(super) async fn run(mut self) {
        let cancel = CancellationToken::new();
        let _cancelled_at_the_end = cancel.clone().drop_guard();
        let prober = self.prober().run(Arc::clone(&self.service), cancel);
        self.tasks.spawn(async move {
            prober.await;
            PodReport::ProberEnded
        });
        let (mut snapshots, mut end) = (self.service.subscribe(), self.engine.end.subscribe());
        let (handle, clock) = (Arc::clone(&self.handle), self.engine.settings.clock);
        loop {
            let ending = *end.borrow_and_update();
            self.step(ending);
            if self.is_over(ending) {
                break;
            }
            let due = self.due(ending);
            tokio::select! {
                () = handle.changed.notified() => self.notified = true,
                snapshot = snapshots.changed() => self.see(&snapshot),
                Some(Ok(news)) = self.tasks.join_next() => self.hear(news),
                _ = end.changed() => {}
                () = async { clock.sleep_until(due.unwrap_or_default()).await }, if due.is_some() => {}
            }
        }
        self.tasks.shutdown().await;
    }

    /// Evaluates the whole state and acts on it.
    fn step(&mut self, end: End) {
        let now = self.engine.now();
        if std::mem::take(&mut self.notified) {
            self.take_orders();
        }
        let leaving = self.pods.iter().any(|pod| !pod.stays());
        let is_known = leaving && self.engine.proxies_know(&self.service);
        for pod in &mut self.pods {
            pod.advance(now, is_known);
        }
        if end == End::Not {
            self.scale(now);
        } else {
            self.desired = 0;
            self.pods.iter_mut().for_each(|pod| pod.stage = Stage::Stopping);
        }
        self.publisher.publish(&self.service, self.spec.h2c, &self.pods);
        // Signal after publishing: no request may pick a pod that was ordered to stop.
        self.signal(end);
        self.look_for_trouble(now);
        self.show();
    }

    /// Whether the owner is done: the engine ends or the app is removed, and no pod is left.
    fn is_over(&mut self, end: End) -> bool {
        if !self.pods.is_empty() {
            return false;
        }
        end != End::Not || (self.removed && self.engine.let_go(&self.handle, &self.registry))
    }

    /// Carries out the newest orders of other tasks.
    fn take_orders(&mut self) {
        let orders = lock(&self.handle.orders).clone();
        if orders.spec != self.spec {
            if orders.spec.makes_other_pods(&self.spec) {
                self.start_over();
            }
            self.scaler.set_policy(orders.spec.policy.clone());
            self.spec = orders.spec;
            self.news = true;
        }
        let (restarts, pins) = std::mem::replace(&mut self.heard, (orders.restarts, orders.pins));
        if restarts != orders.restarts {
            self.start_over();
        }
        if pins != orders.pins {
            match orders.pin {
                Some(pods) => self.scaler.pin(pods),
                None => self.scaler.unpin(),
            }
            self.news = true;
        }
        self.news |= self.removed != orders.removed;
        self.removed = orders.removed;
    }

    /// Begins a new version of the app: its pods are replaced, and earlier failures no longer count.
    fn start_over(&mut self) {
        self.generation += 1;
        self.restarts.forget();
        self.failure = None;
        self.noted = None;
        // Check for trouble at once: nothing else would clear the old report of an idle app.
        self.look = None;
        self.service.start_over();
    }

    /// Starts missing pods and begins to remove surplus ones.
    fn reconcile(&mut self, now: Moment) {
        let staying = self.pods.iter().enumerate().filter(|(_, pod)| pod.stays());
        let present: Vec<RunningPod> = staying
            .map(|(place, pod)| RunningPod {
                place,
                current: pod.generation == self.generation,
                ready: pod.is_ready(),
                in_flight: pod.in_flight(),
                begun: pod.begun.as_nanos(),
            })
            .collect();
        let plan = plan(usize::try_from(self.desired).unwrap_or(usize::MAX), &present);
        for place in plan.remove {
            if let Some(pod) = self.pods.get_mut(place) {
                pod.remove(now, self.spec.stop_grace);
            }
        }
        for _ in 0..plan.start {
            if !self.restarts.may_start(now) {
                break;
            }
            self.start(now);
        }
    }

    /// Checks for slow or failing pods, at intervals, and reports them.
    fn look_for_trouble(&mut self, now: Moment) {
        if self.look.is_some_and(|look| now < look) {
            return;
        }
        let starting = self.pods.iter().filter_map(|pod| match pod.stage {
            Stage::Starting { since } if pod.processes.is_some() => Some((since, pod)),
            _ => None,
        });
        let slowest = starting.min_by_key(|(since, _)| *since);
        self.look = match slowest {
            Some((since, _)) if now < since + SLOW => Some(since + SLOW),
            // On the full second, so that the text "after 5 s" appears after five seconds.
            Some((since, _)) => Some(since + Duration::from_secs(now.since(since).as_secs() + 1)),
            None => Some(now + SLOW),
        };
        let slow = slowest.filter(|(since, _)| now >= *since + SLOW);
        let slow = slow.map(|(since, pod)| failure_text::not_ready(pod, now.since(since), &self.handle.log));
        if let Some(slow) = &slow {
            if self.is_news(&slow.lasting) {
                self.handle.log.note_event(slow.lasting.as_str());
            }
            if !self.service.snapshot().ready() {
                self.service.wake_failed(StartFailure::new(StartFailureCause::NotReady, &slow.now));
            }
        }
        self.trouble = slow.map(|slow| slow.now).or_else(|| self.restarts.trouble(now, self.desired > 0));
    }

    /// Whether the app's log lacks this reason of a failed start. The log has each reason once: clients that may not see the
    /// reason are referred to the log.
    fn is_news(&mut self, reason: &str) -> bool {
        let is_news = self.noted.as_deref() != Some(reason);
        if is_news {
            self.noted = Some(reason.to_owned());
        }
        is_news
    }

    /// Writes to the app's log why a pod does not start. The reason is also sent as an event.
    fn note_event(&mut self, reason: &str) {
        if self.is_news(reason) {
            self.handle.log.note_event(reason);
        }
    }

    /// Reports to the service why there is no pod, for the held requests.
    fn tell_holds(&self, now: Moment) {
        if let Some((_, cause)) = self.failure
            && let Some(trouble) = self.restarts.trouble(now, !self.is_started_by_requests_alone())
            && !self.service.snapshot().ready()
        {
            self.service.wake_failed(StartFailure::new(cause, &trouble));
        }
    }

    /// Updates the status of the app.
    fn show(&mut self) {
        let rolling = self.pods.iter().any(|pod| pod.generation != self.generation);
        let mut pods: Vec<&Pod> = self.pods.iter().collect();
        pods.sort_by_key(|pod| pod.ordinal);
        let status = AppStatus {
            service: self.spec.service.clone(),
            desired: self.desired,
            reason: self.reason.clone(),
            pinned: self.scaler.pinned(),
            pods: pods.into_iter().filter_map(Pod::status).collect(),
            trouble: self.trouble.clone(),
            rolling,
            policy: self.spec.policy.to_string(),
            idle: self.scaler.explain_idle(),
        };
        let before = std::mem::replace(&mut *lock(&self.handle.status), status);
        if before.rolling && !rolling {
            self.tell(AppEventKind::RolledOut);
        }
    }

    /// When the next step is due although nothing happens.
    fn due(&mut self, end: End) -> Option<Moment> {
        if end != End::Not {
            return None;
        }
        let now = self.engine.now();
        self.next_decision = self.next_decision_after(now);
        let looks = self.pods.iter().filter_map(|pod| pod.next_look(now));
        let again = self.restarts.due().filter(|due| now < *due && self.desired > 0);
        let trouble = self.look.filter(|_| !self.pods.is_empty() || self.desired > 0);
        let decision = self.scaler_due().filter(|_| !self.removed);
        let times = [self.load.next_reading(), again, trouble, decision];
        times.into_iter().flatten().chain(looks).min()
    }

    fn tell(&self, what: AppEventKind) {
        self.engine.tell(&self.spec.service, what);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rouse_core::engine::Engine as _;
    use rouse_core::scale;
    use rouse_core::snapshot::ConcurrencyLimits;
    use rouse_net::clock::TokioClock;

    use super::*;
    use crate::command::CommandSpec;
    use crate::engine::{LocalSettings, PortChoice, Readiness};
    use crate::process::Launcher;

    fn spec() -> AppSpec {
        AppSpec {
            service: "local/app".parse().unwrap(),
            command: CommandSpec { argv: vec!["true".into()], env: BTreeMap::new(), workdir: "/".into() },
            port: PortChoice::Auto,
            h2c: true,
            readiness: Readiness::Tcp,
            probe_interval: Duration::from_secs(1),
            policy: (&scale::ScaleSettings::default()).try_into().unwrap(),
            concurrency: ConcurrencyLimits::default(),
            stop_grace: Duration::ZERO,
            sidecar: false,
        }
    }

    /// The owner of an app that cannot be started.
    fn owner() -> App {
        let clock = TokioClock::new();
        let launcher = Launcher::new("/no/such/rouse", ["guard"]);
        let engine = LocalEngine::new(LocalSettings {
            launcher,
            clock,
            seed: 1,
            log_keep: 0,
            log_folder: None,
            sidecar: None,
            wall_clock: || std::time::SystemTime::UNIX_EPOCH,
        });
        let registry = Registry::new(
            rouse_core::registry::RegistrySettings::default(),
            Arc::new(clock),
            Arc::clone(&engine) as _,
        );
        engine.apply(&registry, vec![spec()]);
        let handle = engine.newcomers().pop().unwrap();
        assert!(engine.newcomers().is_empty(), "it has one owner");
        App::new(engine, registry, handle)
    }

    #[tokio::test]
    async fn a_failing_app_is_kept_at_what_its_schedule_says_and_is_not_given_up() {
        let mut app = owner();
        let settings = scale::ScaleSettings {
            schedule: "daily 00:00-24:00 UTC = 2".parse().unwrap(),
            ..Default::default()
        };
        app.engine.apply(&app.registry, vec![AppSpec { policy: (&settings).try_into().unwrap(), ..spec() }]);
        app.notified = true;
        for _ in 0..6 {
            app.step(End::Not);
            assert_eq!(app.desired, 2, "{}", app.reason);
            while let Some(news) = app.tasks.join_next().await {
                app.hear(news.unwrap());
            }
            app.engine.settings.clock.sleep_until(app.restarts.due().unwrap()).await;
        }
        assert!(
            app.due(End::Not).unwrap() <= app.engine.now() + Duration::from_mins(1),
            "the wall clock may be set"
        );
    }

    #[tokio::test]
    async fn an_app_that_is_asleep_waits_for_no_moment() {
        let mut app = owner();
        app.step(End::Not);
        assert_eq!((app.due(End::Not), app.desired), (None, 0));
        app.engine.wake(&app.spec.service);
        app.step(End::Not);
        assert_eq!((app.pods.len(), app.desired), (1, 1));
        assert!(app.due(End::Not).is_some());
    }

    #[tokio::test]
    async fn a_wake_starts_one_pod_in_one_step_and_further_ones_none() {
        let mut app = owner();
        for _ in 0..3 {
            app.engine.wake(&app.spec.service);
            app.step(End::Not);
            assert_eq!(app.pods.len(), 1);
        }
    }

    #[tokio::test]
    async fn after_an_app_has_failed_nothing_is_started_before_its_time() {
        let mut app = owner();
        app.engine.wake(&app.spec.service);
        app.step(End::Not);
        let news = app.tasks.join_next().await.unwrap().unwrap();
        app.hear(news);
        app.step(End::Not);
        assert_eq!((app.pods.len(), app.desired), (0, 1), "still wanted");
        let again = app.restarts.due().unwrap();
        assert!(app.due(End::Not).unwrap() <= again);
        assert!(app.trouble.as_ref().unwrap().contains("/no/such/rouse could not be started"));
        app.engine.settings.clock.sleep_until(again).await;
        app.step(End::Not);
        assert_eq!(app.pods.len(), 1);
    }

    #[tokio::test]
    async fn a_ready_pod_is_asked_at_the_interval_that_the_file_says_now() {
        let mut app = owner();
        app.engine.wake(&app.spec.service);
        app.step(End::Not);
        let (prober, uid) = (app.prober(), app.pods[0].uid.clone());
        for seconds in [10, 3] {
            let interval = Duration::from_secs(seconds);
            app.engine.apply(&app.registry, vec![AppSpec { probe_interval: interval, ..spec() }]);
            assert_eq!((prober.plans)(&uid, &[], 80).unwrap().steady, interval);
        }
        assert!((prober.plans)(&PodUid::new("another"), &[], 80).is_none());
    }

    #[tokio::test]
    async fn an_app_that_comes_back_at_the_last_moment_stays() {
        let mut app = owner();
        let (engine, registry) = (Arc::clone(&app.engine), Arc::clone(&app.registry));
        engine.apply(&registry, Vec::new());
        app.notified = true;
        app.step(End::Not);
        engine.apply(&registry, vec![spec()]);
        assert!(!app.is_over(End::Not));
        engine.apply(&registry, Vec::new());
        assert!(app.is_over(End::Not));
        assert!(registry.get(&app.spec.service).is_none() && engine.apps().is_empty());
    }

    #[tokio::test]
    async fn pods_that_fail_together_have_failed_once() {
        let mut app = owner();
        app.engine.scale("app", Some(3)).unwrap();
        for round in 1..3 {
            app.notified = true;
            app.step(End::Not);
            assert_eq!(app.pods.len(), 3);
            while let Some(news) = app.tasks.join_next().await {
                app.hear(news.unwrap());
            }
            app.step(End::Not);
            let trouble = app.trouble.clone().unwrap();
            assert_eq!(trouble.contains("2 times in a row"), round == 2, "{trouble}");
            app.engine.settings.clock.sleep_until(app.restarts.due().unwrap()).await;
        }
    }
}
