//! The code in `proto/generated` is what the `.proto` files say. `ROUSE_WRITE_PROTO=1` writes it again.
//!
//! It is checked in, because the generator and its compiler for `.proto` files cost more build time than all of gRPC.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

/// Relative to `proto/`.
const FILES: [&str; 7] = [
    "rouse/report/v1/report.proto",
    "externalscaler/externalscaler.proto",
    "grpc/health/v1/health.proto",
    "envoy/config.proto",
    "envoy/service/discovery.proto",
    "envoy/service/endpoint.proto",
    "envoy/service/load_stats.proto",
];

/// File names and contents, in order.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = files
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn the_generated_code_is_what_the_proto_files_say() {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let generated = proto.join("generated");
    let folder = tempfile::tempdir().unwrap();
    let files = protox::compile(FILES, [&proto]).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        // Resources are encoded once, and shared by all messages that carry them.
        .bytes(".envoy.service.discovery.v3")
        // Bodies and certificates are not copied.
        .bytes(".envoy.config")
        // Equal resources have equal bytes.
        .btree_map(".envoy.config")
        .out_dir(folder.path())
        .compile_fds(files)
        .unwrap();
    if std::env::var_os("ROUSE_WRITE_PROTO").is_some() {
        fs::create_dir_all(&generated).unwrap();
        for (name, text) in sources(folder.path()) {
            fs::write(generated.join(name), text).unwrap();
        }
    }
    let names =
        |sources: &[(String, String)]| sources.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let (expected, found) = (sources(folder.path()), sources(&generated));
    assert_eq!(names(&found), names(&expected));
    for ((name, found), (_, expected)) in found.iter().zip(&expected) {
        assert!(
            found == expected,
            "{name} differs: run this test with ROUSE_WRITE_PROTO=1 and look at what it changed"
        );
    }
}
