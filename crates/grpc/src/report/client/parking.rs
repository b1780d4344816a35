//! What an xds replica does when a controller asks it to prepare services for zero: has every Envoy send new requests to the gateways,
//! answers when that is done, and takes it back.
//!
//! A parked service does not stay parked by accident. It ends with the first of these:
//! - the controller cancels it: load has come back, or the write of zero failed;
//! - its last ready pod is gone ([`ParkingCommands::pods_gone`]): zero was written, and without ready pods Envoys send requests to the
//!   gateways anyway, so the pods of the next wake are served directly at once;
//! - [`PARKED_FOR`] has passed since a controller asked last, as after a controller that died.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rouse_core::endpoint::ServiceId;
use rouse_core::scale::PARKED_FOR;
use rouse_net::auth::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{PreparedServices, ZeroCommands};

/// How many commands wait for the worker. Of more, the controller asks again, or [`PARKED_FOR`] ends them.
const MAX_COMMANDS: usize = 1024;
/// The most services that are parked at a time. The requests of others are not answered.
const MAX_PARKED: usize = 10_000;

/// Publishes to Envoys what is parked.
pub trait ZeroPreparer: Send + Sync + 'static {
    /// Publishes the gateways as healthy and the pods as draining. Ends when all Envoys that know the service have acknowledged it.
    fn prepare_zero(&self, service: &ServiceId) -> BoxFuture<'static, ()>;

    /// Publishes the pods again, whether or not the preparation has ended.
    fn cancel(&self, service: &ServiceId);
}

#[derive(Debug)]
enum Command {
    Prepare(ServiceId, u64),
    Cancel(ServiceId, u64),
    PodsGone(ServiceId),
}

/// Passes the commands of controllers on to the worker. Clones are the same.
#[derive(Debug, Clone)]
pub struct ParkingCommands(mpsc::Sender<Command>);

impl ParkingCommands {
    /// The service has no ready pod: it is not parked any more, if it was. Costs little; call it whenever that becomes true.
    pub fn pods_gone(&self, service: &ServiceId) {
        self.0.try_send(Command::PodsGone(service.clone())).ok();
    }

    fn send(&self, command: Command) {
        if self.0.try_send(command).is_err() {
            tracing::warn!(
                "too many services are being prepared for zero: a request of a controller is not answered"
            );
        }
    }
}

impl ZeroCommands for ParkingCommands {
    fn prepare_zero(&self, service: &ServiceId, id: u64) {
        self.send(Command::Prepare(service.clone(), id));
    }

    fn cancel_zero(&self, service: &ServiceId, id: u64) {
        self.send(Command::Cancel(service.clone(), id));
    }
}

/// One service that is parked, or is being prepared.
#[derive(Debug)]
struct Parked {
    id: u64,
    /// The preparation, until it is done.
    preparing: Option<AbortHandle>,
    until: Instant,
}

/// Carries the commands out.
pub struct ParkingWorker {
    preparer: Arc<dyn ZeroPreparer>,
    commands: mpsc::Receiver<Command>,
    services: HashMap<ServiceId, Parked>,
    tasks: JoinSet<ServiceId>,
}

/// The two ends: what [`super::ReportClientParts::commands`] takes, and what runs beside the client.
pub fn parking(preparer: Arc<dyn ZeroPreparer>) -> (ParkingCommands, ParkingWorker) {
    let (sender, commands) = mpsc::channel(MAX_COMMANDS);
    let worker = ParkingWorker { preparer, commands, services: HashMap::new(), tasks: JoinSet::new() };
    (ParkingCommands(sender), worker)
}

impl ParkingWorker {
    /// Works until `end`, and answers by `answers`. What is parked then stays so: the Envoys of a replica that stops keep what they have
    /// until they reconnect.
    pub async fn run(mut self, answers: PreparedServices, end: CancellationToken) {
        loop {
            // Few services are parked at a time, and commands are rare.
            let due = self.services.values().map(|parked| parked.until).min();
            tokio::select! {
                () = end.cancelled() => return,
                Some(command) = self.commands.recv() => self.take(command, &answers),
                Some(done) = self.tasks.join_next() => {
                    if let Ok(service) = done {
                        self.prepared(&service, &answers);
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.expire(&answers),
            }
        }
    }

    fn take(&mut self, command: Command, answers: &PreparedServices) {
        match command {
            Command::Prepare(service, id) => self.prepare(&service, id, answers),
            Command::Cancel(service, id) => {
                if self.services.get(&service).is_some_and(|parked| parked.id == id) {
                    self.end(&service, answers);
                }
            }
            Command::PodsGone(service) => self.end(&service, answers),
        }
    }

    fn prepare(&mut self, service: &ServiceId, id: u64, answers: &PreparedServices) {
        let until = Instant::now() + PARKED_FOR;
        if let Some(parked) = self.services.get_mut(service) {
            (parked.id, parked.until) = (id, until);
            if parked.preparing.is_none() {
                answers.set(service, Some(id));
            }
            return;
        }
        if self.services.len() >= MAX_PARKED {
            return;
        }
        let (preparation, name) = (self.preparer.prepare_zero(service), service.clone());
        let preparing = self.tasks.spawn(async move {
            preparation.await;
            name
        });
        self.services.insert(service.clone(), Parked { id, preparing: Some(preparing), until });
    }

    /// All Envoys send new requests to the gateways.
    fn prepared(&mut self, service: &ServiceId, answers: &PreparedServices) {
        // One that was cancelled as it ended, and begun again, has an unfinished task.
        let Some(parked) = self.services.get_mut(service) else { return };
        if parked.preparing.as_ref().is_some_and(AbortHandle::is_finished) {
            parked.preparing = None;
            answers.set(service, Some(parked.id));
        }
    }

    fn end(&mut self, service: &ServiceId, answers: &PreparedServices) {
        let Some(parked) = self.services.remove(service) else { return };
        if let Some(preparing) = parked.preparing {
            preparing.abort();
        }
        // First the answer: otherwise a controller could write zero while pods are published again.
        answers.set(service, None);
        self.preparer.cancel(service);
    }

    fn expire(&mut self, answers: &PreparedServices) {
        let now = Instant::now();
        let over = self.services.iter().filter(|(_, parked)| parked.until <= now);
        for service in over.map(|(service, _)| service.clone()).collect::<Vec<_>>() {
            tracing::info!(%service, "a service that was prepared for zero is served by its pods directly again");
            self.end(&service, answers);
        }
    }
}

impl fmt::Debug for ParkingWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkingWorker").field("services", &self.services.len()).finish_non_exhaustive()
    }
}
