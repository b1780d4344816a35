//! Lists the meters that have load, so that reading the load of ten thousand idle services costs nothing.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{LoadMeter, LoadSample};
use crate::sync::{Mutex, lock};

/// A listed meter.
#[derive(Debug)]
struct Listed {
    meter: Arc<LoadMeter>,
    /// Its requests at the last reading; `None` before the first.
    requests: Option<u64>,
}

/// The meters that have requests, or had some since they were last read. One task reads it.
#[derive(Debug, Default)]
pub struct LoadFeed {
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    listed: Vec<Listed>,
    /// A meter was listed since the last call of [`LoadFeed::edge`] returned.
    edge: bool,
    waker: Option<Waker>,
}

impl LoadFeed {
    /// Lists a meter, and wakes the reader.
    pub(super) fn list(&self, meter: Arc<LoadMeter>) {
        let mut state = lock(&self.state);
        state.listed.push(Listed { meter, requests: None });
        state.edge = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Removes a meter from the list.
    pub(super) fn forget(&self, meter: &LoadMeter) {
        lock(&self.state).listed.retain(|listed| !std::ptr::eq(Arc::as_ptr(&listed.meter), meter));
    }

    /// Waits until load begins somewhere: on a meter that was not listed.
    pub async fn edge(&self) {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.edge) {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Reads the listed meters. One without a request and without a new one since the last reading is not listed any more after
    /// this. Not sooner: each request of a service with few would be an edge.
    pub fn read(&self) -> Vec<LoadSample> {
        let listed = std::mem::take(&mut lock(&self.state).listed);
        let mut samples = Vec::with_capacity(listed.len());
        let mut kept = Vec::with_capacity(listed.len());
        for Listed { meter, requests } in listed {
            let sample = meter.sample();
            let is_quiet = requests == Some(sample.requests) && sample.present == 0;
            if !is_quiet || !meter.rests(&sample) {
                kept.push(Listed { meter, requests: Some(sample.requests) });
            }
            samples.push(sample);
        }
        lock(&self.state).listed.append(&mut kept);
        samples
    }
}
