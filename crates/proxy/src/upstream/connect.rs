//! Gets a connection for an attempt, pooled or new. Waits while the client uses its share of pod connections or buffers.

use std::rc::Rc;
use std::time::Duration;

use super::context::{AttemptContext, UpstreamContext};
use super::destination::Destination;
use super::failure::AttemptFailure;
use super::outgoing::OutgoingRequest;
use super::pool::{Pool, PooledConnection};
use crate::budget::{CLIENT_STREAM_WINDOW, PodRequestPermit};
use crate::error::Failure;
use crate::runtime::before;

/// How long a request waits when the gateway itself lacked something to connect with.
pub(crate) const LOCAL_PAUSE: Duration = Duration::from_millis(100);
/// While buffers are over budget, a client connection may have this many requests at pods: each may bring two buffers of
/// bytes.
const REQUESTS_WHEN_FULL: usize = 8;

/// A connection from the pool, or a new one. `fresh`: a new one.
pub(super) async fn connect(
    context: &AttemptContext<'_>,
    outgoing: &OutgoingRequest,
    pool: &Rc<Pool>,
    destination: &Destination,
    fresh: bool,
) -> Result<Result<PooledConnection, AttemptFailure>, Failure> {
    let upgrade = outgoing.upgrade.is_some();
    let upstream = context.upstream;
    let (turn, waited) = turn(context, outgoing, pool.is_exclusive(upgrade)).await?;
    if (waited || destination.has_waited()) && !destination.is_current() {
        return Ok(Err(AttemptFailure::Moved));
    }
    if !fresh && let Some(link) = pool.take(upgrade) {
        return Ok(Ok(link.in_turn(turn)));
    }
    let limit = context.deadlines.timeouts.connect;
    let connecting = Box::pin(pool.connect(upstream, destination.addresses(), limit, upgrade));
    let link = match context.deadlines.end {
        None => connecting.await,
        Some(end) => {
            before(connecting, upstream.runtime.deadline(end)).await.ok_or(Failure::RequestTimeout)?
        }
    };
    // Dialling takes time, in which the pod may have got another address.
    Ok(match link {
        Ok(_) if !destination.is_current() => Err(AttemptFailure::Moved),
        link => link.map(|link| link.in_turn(turn)).map_err(AttemptFailure::Refused),
    })
}

/// Waits until the client connection may have one more request at a pod. Also returns whether the request waited.
///
/// While buffers are over budget, the client must first read all that is buffered for it, and may have only a few requests
/// at pods; far over budget, every request waits. An `exclusive` request uses a pod connection by itself, so it may also
/// have to wait until earlier requests give theirs back.
async fn turn(
    context: &AttemptContext<'_>,
    outgoing: &OutgoingRequest,
    exclusive: bool,
) -> Result<(PodRequestPermit, bool), Failure> {
    let client = &context.client.state;
    let UpstreamContext { buffers, limits, pod_connections, .. } = &**context.upstream;
    let may = || {
        let may_buffer = || client.buffered() == 0 && client.at_pods() < REQUESTS_WHEN_FULL;
        (!buffers.is_over() || (may_buffer() && !buffers.is_overrun()))
            && (!exclusive
                || pod_connections.allows(client.pod_connections(), limits.pod_connections_per_client))
    };
    let waits = !may();
    if waits {
        Box::pin(wait_for_turn(context, outgoing, may)).await?;
    }
    Ok((PodRequestPermit::new(client, exclusive), waits))
}

async fn wait_for_turn(
    context: &AttemptContext<'_>,
    outgoing: &OutgoingRequest,
    may: impl Fn() -> bool,
) -> Result<(), Failure> {
    let UpstreamContext { runtime, buffers, max_wait, .. } = &**context.upstream;
    // The part of its body that has arrived waits with the request.
    let body = if outgoing.source.is_done() { 0 } else { CLIENT_STREAM_WINDOW as usize };
    let _reserved = buffers.reserve(body).ok_or(Failure::QueueFull)?;
    let longest = runtime.now() + *max_wait;
    while !may() {
        let now = runtime.now();
        if context.deadlines.end.is_some_and(|end| end <= now) {
            return Err(Failure::RequestTimeout);
        }
        if longest <= now {
            return Err(Failure::QueueFull);
        }
        // Requests of other client connections may end, too.
        before(context.client.state.next_return(), runtime.deadline(now + LOCAL_PAUSE)).await;
    }
    Ok(())
}

/// Whether a response that has begun must be dropped to save memory. Many responses may begin at once, before a budget can
/// be checked.
pub(super) fn is_too_much(context: &AttemptContext<'_>) -> bool {
    let client = &context.client.state;
    context.upstream.buffers.is_overrun() && client.buffered() > 0 && client.at_pods() > REQUESTS_WHEN_FULL
}
