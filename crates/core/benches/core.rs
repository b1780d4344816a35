//! What the core costs: a warm pick, an update, a release of the herd, and memory. `make bench-core` runs it and
//! `bench/README.md` explains the figures.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a benchmark")]

use std::future::{Future, pending};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use rouse_core::endpoint::{Conditions, Slice};
use rouse_core::hold::AcquireError;
use rouse_core::service::{Port, Service, Slot, SlotRequest};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_testkit::fakes::{Bench, READY, STARTING, ready_slice, slice};

/// The most endpoints that one slice has by default.
const SLICE: u32 = 100;

/// A service of `pods` ready pods in slices of a hundred, as a cluster writes them.
fn service(pods: u32, concurrency: ConcurrencyLimits) -> (Bench, Arc<Service>, Arc<Port>) {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", concurrency);
    for from in (0..pods).step_by(SLICE as usize) {
        service.put_slice(&format!("s-{from}"), ready_from(from, pods.min(from + SLICE)));
    }
    (bench, service, port)
}

fn ready_from(from: u32, to: u32) -> Slice {
    slice((from..to).map(|n| (n, READY)))
}

fn pick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("warm slot, acquired and given back");
    for limit in [0, 1000] {
        for pods in [1, 10, 100, 1000] {
            let (_bench, _service, port) = service(pods, ConcurrencyLimits::new(0, limit));
            let name = if limit == 0 { "no limit" } else { "limit 1000" };
            let mut seed = 0u64;
            group.bench_function(BenchmarkId::new(name, pods), |bencher| {
                bencher.iter(|| {
                    seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    black_box(port.try_acquire(seed).unwrap());
                });
            });
        }
    }
}

fn update(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one endpoint changes among 1000, published");
    let (_bench, service, _port) = service(1000, ConcurrencyLimits::default());
    let with =
        |conditions: Conditions| slice((0..SLICE).map(|n| (n, if n == 7 { conditions } else { READY })));
    let mut alternate = |name: &str, versions: [Slice; 2]| {
        let mut turn = 0;
        group.bench_function(name, |bencher| {
            let next = || {
                turn += 1;
                versions[turn % 2].clone()
            };
            bencher.iter_batched(next, |version| service.put_slice("s-0", version), BatchSize::SmallInput);
        });
    };
    alternate("a pod's readiness", [with(STARTING), with(READY)]);
    alternate("a pod comes or goes", [ready_from(0, SLICE), ready_from(0, SLICE - 1)]);
}

type Pending = Pin<Box<dyn Future<Output = Result<Slot, AcquireError>>>>;

fn poll(hold: &mut Pending) -> Poll<Result<Slot, AcquireError>> {
    hold.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn release(criterion: &mut Criterion) {
    const HOLDS: u64 = 10_000;
    let mut group = criterion.benchmark_group("10,000 holds released over 100 pods");
    group.throughput(Throughput::Elements(HOLDS)).sample_size(20);
    for (name, concurrency) in
        [("no limit", ConcurrencyLimits::default()), ("limit 100", ConcurrencyLimits::new(0, 100))]
    {
        let set_up = || {
            let bench = Bench::new();
            let (service, port) = bench.service("cart", concurrency);
            let hold = |seed| -> Pending {
                let port = Arc::clone(&port);
                Box::pin(async move {
                    port.acquire(SlotRequest { seed, ..SlotRequest::default() }, pending()).await
                })
            };
            let mut holds: Vec<Pending> = (0..HOLDS).map(hold).collect();
            assert!(holds.iter_mut().all(|hold| poll(hold).is_pending()));
            (bench, service, holds)
        };
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                set_up,
                |(bench, service, mut holds)| {
                    service.put_slice("a", ready_slice(100));
                    // Until the last one has its slot in hand.
                    let slots: Vec<_> = holds.iter_mut().map(poll).collect();
                    assert!(slots.iter().all(|slot| matches!(slot, Poll::Ready(Ok(_)))));
                    (bench, service, holds, slots)
                },
                BatchSize::PerIteration,
            );
        });
    }
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(0)
}

fn memory() {
    let before = resident_kib();
    let bench = Bench::new();
    for n in 0..10_000u32 {
        let (service, _) = bench.service(&format!("service-{n}"), ConcurrencyLimits::default());
        service.put_slice("a", slice((0..10).map(|pod| (n * 10 + pod, READY))));
    }
    let grown = resident_kib().saturating_sub(before);
    println!(
        "\n10,000 services x 10 endpoints: {} MiB resident ({} bytes an endpoint)",
        grown / 1024,
        grown * 1024 / 100_000
    );
    drop(bench);
}

fn main() {
    // First, while the heap is clean.
    memory();
    let mut criterion = Criterion::default().configure_from_args();
    pick(&mut criterion);
    update(&mut criterion);
    release(&mut criterion);
    criterion.final_summary();
}
