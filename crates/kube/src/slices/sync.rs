//! One sync of one service: checks the cache, plans, writes, and reports how it ended.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::ServiceId;
use rouse_core::slices::{EndpointSlice, SlicePlan, reconcile};

use super::SliceController;
use super::cache::{Inputs, Work};
use super::metrics::{Operation, PlanSummary, SyncResult};
use super::queue::SyncEnd;
use super::writer::{WriteError, Written};

/// A service whose cache is stale is looked at again after this time, if the watch does not report its slices earlier.
const STALE_RETRY: Duration = Duration::from_secs(1);

/// Why a sync did not complete.
#[derive(Debug)]
pub(super) enum SyncFailure {
    /// A write failed.
    Write(WriteError),
    /// The nodes of pods are not known. Everything else is written.
    MissingNodes(String),
    /// The annotation is invalid.
    Invalid(String),
}

impl SliceController {
    /// Syncs `service` once, and returns when it is due again.
    pub(super) async fn sync(&self, service: &ServiceId) -> SyncEnd {
        self.writer.ready().await;
        let work = self.cache().work(service, self.clock.now());
        let outcome = match work {
            Work::Wait { relist } => {
                if relist {
                    self.relist_slices.notify_one();
                }
                self.metrics.ended(SyncResult::Stale);
                return SyncEnd::Postponed(self.clock.now() + STALE_RETRY);
            }
            Work::Nothing => {
                self.metrics.forget(service);
                Ok(())
            }
            Work::Keep(why) => Err(SyncFailure::Invalid(why)),
            Work::Delete(slices) => {
                let deleted = self.delete_all(service, slices.iter().map(|slice| &**slice)).await;
                if deleted.is_ok() {
                    self.metrics.forget(service);
                }
                deleted.map_err(SyncFailure::Write)
            }
            Work::Reconcile(inputs) => self.reconcile(service, *inputs).await,
        };
        self.end(service, outcome)
    }

    async fn reconcile(&self, id: &ServiceId, inputs: Inputs) -> Result<(), SyncFailure> {
        let Inputs { service, pods, nodes, slices, trigger_time, as_of } = inputs;
        let existing = slices.iter().map(|slice| &**slice);
        let plan =
            reconcile(&service.facts, pods.iter().map(|pod| &pod.pod), &nodes, existing, &self.options);
        self.metrics.planned(id, PlanSummary::new(&plan, &slices, &self.options));
        let missing = plan.missing_nodes.first().cloned();
        let written =
            Writes { controller: self, id, service: &service.facts, trigger_time: trigger_time.as_deref() };
        written.run(plan, &slices).await.map_err(SyncFailure::Write)?;
        self.cache().synced(id, as_of);
        // The node may have come meanwhile, and its event is in the queue.
        match missing.filter(|missing| !self.cache().has_node(missing)) {
            Some(missing) => Err(SyncFailure::MissingNodes(missing.to_string())),
            None => Ok(()),
        }
    }

    async fn delete_all<'a>(
        &self,
        id: &ServiceId,
        slices: impl Iterator<Item = &'a EndpointSlice>,
    ) -> Result<(), WriteError> {
        let mut outcome = Ok(());
        for slice in slices {
            let deleted = self.writer.delete(id.namespace(), slice).await;
            if deleted.is_ok() {
                self.metrics.wrote(Operation::Delete);
                self.cache().deleted(id, &slice.name);
            }
            outcome = keep_first(outcome, self.noted(id, deleted))?;
        }
        outcome
    }

    /// Reports how a sync ended, and returns when the service is due again.
    fn end(&self, service: &ServiceId, outcome: Result<(), SyncFailure>) -> SyncEnd {
        let random = self.random.next_u64();
        let (why, end) = match outcome {
            Ok(()) | Err(SyncFailure::Write(WriteError::NamespaceEnding)) => {
                self.metrics.ended(SyncResult::Success);
                self.recovered(service);
                return SyncEnd::Synced;
            }
            Err(SyncFailure::Write(WriteError::NotLeading)) => return SyncEnd::Postponed(self.clock.now()),
            Err(SyncFailure::Write(WriteError::Refused { why, pause })) => {
                (why, SyncEnd::Failed { least: pause, random })
            }
            Err(SyncFailure::Write(error)) => {
                (error.to_string(), SyncEnd::Failed { least: Duration::ZERO, random })
            }
            Err(SyncFailure::MissingNodes(why)) => (why, SyncEnd::Incomplete { random }),
            // The next version of the Service is synced anyway.
            Err(SyncFailure::Invalid(why)) => (why, SyncEnd::Synced),
        };
        self.metrics.ended(SyncResult::Error);
        self.failed(service, why);
        end
    }

    /// Has the slices listed again if it is not known whether a write was applied.
    fn noted<T>(&self, id: &ServiceId, written: Result<T, WriteError>) -> Result<T, WriteError> {
        if matches!(written, Err(WriteError::Unknown(_))) {
            self.cache().doubt(id);
            self.relist_slices.notify_one();
        }
        written
    }
}

/// The writes of one plan.
struct Writes<'a> {
    controller: &'a SliceController,
    id: &'a ServiceId,
    service: &'a rouse_core::slices::ServiceFacts,
    trigger_time: Option<&'a str>,
}

impl Writes<'_> {
    /// Writes `plan`. A slice that is refused does not keep the others from being written; but no slice is deleted then,
    /// because its endpoints may have moved to the one that was refused.
    async fn run(&self, plan: SlicePlan, before: &[Arc<EndpointSlice>]) -> Result<(), WriteError> {
        let mut outcome = Ok(());
        for content in plan.create {
            let created = self.controller.writer.create(self.service, content, self.trigger_time).await;
            outcome = keep_first(outcome, self.note(Operation::Create, created))?;
        }
        for new in plan.update {
            let old = before.iter().find(|old| old.name == new.name);
            let old = old.map_or(&new, |old| &**old);
            let updated = self.controller.writer.update(self.service, old, &new, self.trigger_time).await;
            outcome = keep_first(outcome, self.note(Operation::Update, updated))?;
        }
        outcome?;
        self.controller.delete_all(self.id, plan.delete.iter()).await
    }

    fn note(&self, operation: Operation, written: Result<Written, WriteError>) -> Result<(), WriteError> {
        let Written { name, version } = self.controller.noted(self.id, written)?;
        self.controller.metrics.wrote(operation);
        self.controller.cache().wrote(self.id, &name, version);
        Ok(())
    }
}

/// The first of two errors, as the outcome so far; ends the sync if further writes would fail, too.
fn keep_first(
    outcome: Result<(), WriteError>,
    next: Result<(), WriteError>,
) -> Result<Result<(), WriteError>, WriteError> {
    match next {
        Err(error @ (WriteError::NotLeading | WriteError::NamespaceEnding | WriteError::Unknown(_))) => {
            Err(error)
        }
        next => Ok(outcome.and(next)),
    }
}
