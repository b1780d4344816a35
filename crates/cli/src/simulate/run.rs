//! Replays a trace with several policies, on all processors.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use rouse_core::scale::BadPolicy;

use super::call_trace::CallTrace;
use super::policies::Policy;
use super::replay::replay;
use super::service::ServiceModel;
use super::totals::Totals;

/// How often progress is printed, and how long a run takes of which none is printed.
const PROGRESS: Duration = Duration::from_secs(3);
/// The most threads.
const MOST_THREADS: usize = 64;

/// What one policy costs: before and after the time from which it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) policy: Policy,
    pub(super) parts: [Totals; 2],
}

/// A simulation: the same calls for each policy.
#[derive(Debug)]
pub(super) struct Simulation<'a> {
    pub(super) call_trace: &'a CallTrace,
    pub(super) model: ServiceModel,
    /// The time between the two parts.
    pub(super) split: Duration,
}

impl Simulation<'_> {
    /// What each of `policies` costs, in the same order.
    pub(super) fn run(
        &self,
        policies: &[Policy],
        progress: &mut dyn Write,
    ) -> io::Result<Result<Vec<Outcome>, BadPolicy>> {
        let services = self.call_trace.services.len();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(services.max(1));
        let next = AtomicUsize::new(0);
        let (done, dones) = sync_channel(threads.min(MOST_THREADS));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.min(MOST_THREADS))
                .map(|_| {
                    let (done, next) = (done.clone(), &next);
                    scope.spawn(move || {
                        let all = self.take_services(policies, next);
                        // The channel has room for the end of each thread.
                        done.send(()).ok();
                        all
                    })
                })
                .collect();
            drop(done);
            let mut shown = Ok(());
            let mut left = workers.len();
            while left > 0 {
                match dones.recv_timeout(PROGRESS) {
                    Ok(()) => left -= 1,
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        let begun = next.load(Ordering::Relaxed).min(services);
                        if shown.is_ok() {
                            shown = writeln!(progress, "simulated {begun} of {services} services");
                        }
                    }
                }
            }
            shown?;
            let mut sums = vec![[Totals::default(); 2]; policies.len()];
            for worker in workers {
                // A panic of a thread goes on here.
                let parts = match worker.join() {
                    Ok(Ok(parts)) => parts,
                    Ok(Err(bad)) => return Ok(Err(bad)),
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                for (sum, parts) in sums.iter_mut().zip(parts) {
                    sum[0] += parts[0];
                    sum[1] += parts[1];
                }
            }
            let outcomes =
                policies.iter().zip(sums).map(|(policy, parts)| Outcome { policy: *policy, parts });
            Ok(Ok(outcomes.collect()))
        })
    }

    /// Takes one service after the other, until none is left.
    fn take_services(&self, policies: &[Policy], next: &AtomicUsize) -> Result<Vec<[Totals; 2]>, BadPolicy> {
        let mut sums = vec![[Totals::default(); 2]; policies.len()];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(calls) = self.call_trace.services.get(number) else { return Ok(sums) };
            for (sum, policy) in sums.iter_mut().zip(policies) {
                let mut scaler = policy.scaler(&self.model, number)?;
                let parts = replay(calls, (self.split, self.call_trace.length), self.model, &mut *scaler);
                sum[0] += parts[0];
                sum[1] += parts[1];
            }
        }
    }
}
