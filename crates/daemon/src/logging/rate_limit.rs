//! Limits how often each place in the code logs, and counts what is suppressed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// How often one place in the code may log.
const RATE: Rate = Rate { per_second: 5, burst: 50 };

/// The rate limits of all places in the code that log. There is one for each log macro at most.
#[derive(Debug)]
pub struct RateLimit {
    clock: TokioClock,
    callsites: Mutex<HashMap<Identifier, Callsite>>,
}

#[derive(Debug)]
struct Callsite {
    metadata: &'static Metadata<'static>,
    tokens: TokenBucket,
    suppressed: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { clock: TokioClock::new(), callsites: Mutex::default() }
    }
}

impl RateLimit {
    /// True if the place of `metadata` may log now.
    fn admit(&self, metadata: &'static Metadata<'static>, now: Moment) -> bool {
        let mut callsites = self.lock();
        let fresh = || Callsite { metadata, tokens: TokenBucket::new(RATE, now), suppressed: 0 };
        let callsite = callsites.entry(metadata.callsite()).or_insert_with(fresh);
        let admitted = callsite.tokens.has(now);
        if admitted {
            callsite.tokens.take();
        } else {
            callsite.suppressed += 1;
        }
        admitted
    }

    /// Logs how many messages were suppressed since the last report, for each place in the code.
    pub fn report(&self) {
        let suppressed: Vec<_> = {
            let mut callsites = self.lock();
            let all = callsites.values_mut().filter(|callsite| callsite.suppressed > 0);
            all.map(|callsite| (callsite.metadata, std::mem::take(&mut callsite.suppressed))).collect()
        };
        for (metadata, count) in suppressed {
            let (of, line) = (metadata.target(), metadata.line().unwrap_or_default());
            tracing::warn!(suppressed = count, of, line, "messages suppressed: too many of the same kind");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, Callsite>> {
        self.callsites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The filter that applies a [`RateLimit`].
pub(super) struct Limited(pub(super) Arc<RateLimit>);

impl<S: Subscriber> Filter<S> for Limited {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        self.0.admit(event.metadata(), self.0.clock.now())
    }
}
