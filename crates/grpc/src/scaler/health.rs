//! gRPC health: whether the scaler answers, for the probes of kubelet and for clients that watch it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use tonic::{Request, Response, Status};

use super::ScalerParts;
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::Health;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

/// Answers health checks.
pub(super) struct HealthCalls(pub(super) Arc<ScalerParts>);

/// What a client asks about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The process.
    Process,
    /// The scaler: it serves when the controller knows the load.
    Scaler,
}

impl Subject {
    /// The names that the probes of KEDA HTTP add-on use, and those of the protocol.
    fn of(service: &str) -> Option<Self> {
        match service {
            "liveness" => Some(Self::Process),
            "" | "readiness" | "externalscaler.ExternalScaler" => Some(Self::Scaler),
            _ => None,
        }
    }
}

/// What a watch sends.
type HealthAnswers = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Health for HealthCalls {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let unknown = || {
            Status::not_found(
                "unknown service; known are \"\", liveness, readiness and externalscaler.ExternalScaler",
            )
        };
        let subject = Subject::of(&request.get_ref().service).ok_or_else(unknown)?;
        let serving = *self.0.serving.borrow();
        Ok(Response::new(response(subject, serving && !self.0.stop.is_cancelled())))
    }

    type WatchStream = HealthAnswers;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthAnswers>, Status> {
        let place = self.0.place()?;
        let (subject, serving) = (Subject::of(&request.get_ref().service), self.0.serving.clone());
        let (stop, begin) = (self.0.stop.clone(), None::<ServingStatus>);
        let answers = stream::unfold((serving, begin, place), move |(mut serving, mut sent, place)| {
            let stop = stop.clone();
            async move {
                let next = async {
                    loop {
                        let now = *serving.borrow_and_update();
                        let status =
                            subject.map_or(ServingStatus::ServiceUnknown, |subject| status(subject, now));
                        if sent != Some(status) {
                            return status;
                        }
                        if serving.changed().await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    }
                };
                let status = stop.run_until_cancelled(next).await?;
                sent = Some(status);
                Some((Ok(HealthCheckResponse { status: status.into() }), (serving, sent, place)))
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn status(subject: Subject, serving: bool) -> ServingStatus {
    match (subject, serving) {
        (Subject::Process, _) | (Subject::Scaler, true) => ServingStatus::Serving,
        (Subject::Scaler, false) => ServingStatus::NotServing,
    }
}

fn response(subject: Subject, serving: bool) -> HealthCheckResponse {
    HealthCheckResponse { status: status(subject, serving).into() }
}
