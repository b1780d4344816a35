//! What the guard costs per request: `cargo bench -p rouse-proxy --bench guard`.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rouse_proxy::downstream::http1_validator::Http1Validator;

/// What a browser sends, about 400 bytes.
const BROWSER: &[u8] = b"GET /shop/cart/items?page=2&sort=price HTTP/1.1\r\nHost: shop.example.com\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n\
    Cookie: session=0123456789abcdef0123456789abcdef\r\n\r\n";
/// What a load generator sends.
const SHORT: &[u8] = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

fn heads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a head");
    for (name, head) in [("short", SHORT), ("of a browser", BROWSER)] {
        group.throughput(Throughput::Bytes(head.len() as u64));
        let mut guard = Http1Validator::default();
        group.bench_function(name, |bencher| bencher.iter(|| guard.inspect(black_box(head)).unwrap()));
    }
    let (one, two) = BROWSER.split_at(BROWSER.len() / 2);
    let mut guard = Http1Validator::default();
    group.bench_function("of a browser, cut in two", |bencher| {
        bencher.iter(|| guard.inspect(black_box(one)).and_then(|()| guard.inspect(black_box(two))).unwrap());
    });
}

fn bodies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a body of 64 KiB");
    let mut chunked = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..16 {
        chunked.extend(b"1000\r\n");
        chunked.extend([b'x'; 4096]);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let mut guard = Http1Validator::default();
    group.bench_function("in 16 chunks", |bencher| {
        bencher.iter(|| guard.inspect(black_box(&chunked)).unwrap());
    });
}

criterion_group!(benches, heads, bodies);
criterion_main!(benches);
