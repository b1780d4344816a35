//! The answers of `StreamIsActive`: the state on opening, each change, and again every second while a request is held.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, stream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::metrics::StreamGuard;
use super::route_load::RouteLoad;
use crate::proto::externalscaler::IsActiveResponse;

/// How often an active state is repeated while a request is held: KEDA forgets an edge that it could not act on.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The state of one trigger, as it changes.
#[derive(Debug)]
pub(super) enum Followed {
    /// Of one route, which may not exist.
    Route(watch::Receiver<Option<RouteLoad>>),
    /// Of all routes together.
    AllRoutes(watch::Receiver<u64>),
}

/// The present state of a trigger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Present {
    active: bool,
    held: bool,
}

impl Followed {
    fn present(&mut self) -> Present {
        match self {
            Self::Route(load) => {
                let load = *load.borrow_and_update();
                load.map_or(Present { active: false, held: false }, |load| Present {
                    active: load.is_active(),
                    held: load.held > 0,
                })
            }
            // How many of them are held does not matter: the interceptors themselves do not start from zero.
            Self::AllRoutes(total) => Present { active: *total.borrow_and_update() > 0, held: false },
        }
    }

    /// Waits for a change. Does not end if there will be none.
    async fn changed(&mut self) {
        let changed = match self {
            Self::Route(load) => load.changed().await,
            Self::AllRoutes(total) => total.changed().await,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One stream. It ends with OK: after an error KEDA waits for up to a minute before it asks again.
pub(super) struct ActiveStream {
    pub(super) followed: Followed,
    /// Whether the controller knows the load of all gateways. Before, it is only said that a route is active.
    pub(super) serving: watch::Receiver<bool>,
    pub(super) stop: CancellationToken,
    /// The place of the stream among all of them, until it is dropped.
    pub(super) _place: (OwnedSemaphorePermit, StreamGuard),
}

/// What an answered call sends.
pub(super) type ActiveAnswers = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

/// What was sent last.
#[derive(Debug, Clone, Copy)]
struct Sent {
    active: bool,
    at: Instant,
}

impl ActiveStream {
    /// Its answers.
    pub(super) fn answers(self) -> ActiveAnswers {
        let stop = self.stop.clone();
        Box::pin(stream::unfold((self, None), move |(mut stream, sent)| {
            let stop = stop.clone();
            async move {
                let result = stop.run_until_cancelled(stream.next(sent)).await?;
                let sent = Sent { active: result, at: Instant::now() };
                Some((Ok(IsActiveResponse { result }), (stream, Some(sent))))
            }
        }))
    }

    /// Waits until there is something to say. A route that is active at one gateway is active. That it is not active needs the
    /// load of all gateways.
    async fn next(&mut self, sent: Option<Sent>) -> bool {
        loop {
            let present = self.followed.present();
            let is_known = *self.serving.borrow_and_update() || present.active;
            let is_new = sent.is_none_or(|sent| sent.active != present.active);
            let repeat = sent.map(|sent| sent.at + REPEAT_INTERVAL).filter(|_| present.held);
            if is_known && (is_new || repeat.is_some_and(|repeat| Instant::now() >= repeat)) {
                return present.active;
            }
            tokio::select! {
                () = self.followed.changed() => {}
                changed = self.serving.changed() => {
                    if changed.is_err() {
                        // The controller is gone.
                        std::future::pending::<()>().await;
                    }
                }
                () = at(repeat) => {}
            }
        }
    }
}

/// Sleeps until `moment`; for ever without one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
