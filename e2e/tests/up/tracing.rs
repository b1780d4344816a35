//! An app with tracing: OpenTelemetry's SDK records the same spans behind Rouse as without it.

use std::path::PathBuf;

use rouse_e2e::client::raw::Raw;
use rouse_e2e::rouse::Launch;
use rouse_e2e::target::Target;
use serde_json::{Value, json};

use crate::fixture::{programs, way, yaml};

/// The Python that has OpenTelemetry's SDK, where `make opentelemetry` puts it.
pub(crate) fn python() -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    let python = PathBuf::from(home).join(".cache/rouse/tools/opentelemetry/bin/python");
    python.is_file().then_some(python)
}

const SAMPLED: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
const UNSAMPLED: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00\r\n";
const MALFORMED: &str = "traceparent: 00-0AF7651916CD43DD-b7ad6b7169203331-01\r\n";

/// What the app recorded for a request with these header lines.
async fn recorded(target: &Target, lines: &str) -> Value {
    let mut client = Raw::connect(target).await;
    client.send(format!("GET / HTTP/1.1\r\nHost: {}\r\n{lines}\r\n", target.host)).await;
    let (head, body) = client.response().await;
    assert_eq!(head.status, 200);
    serde_json::from_slice(&body).unwrap()
}

pub(crate) async fn an_app_records_its_traces_exactly_as_without_us() {
    let python = json!(python().expect("the harness has checked for it").to_string_lossy());
    let apps = format!("  web: {{command: [{python}, traced.py], scale: {{min: 1, max: 1}}}}\n");
    let launch = Launch::of(&yaml(&apps)).file("traced.py", include_str!("traced.py"));
    let rouse = launch.up(&programs()).await;
    rouse.ready("web").await;
    let web = rouse.admin.until("web", "a pod", |web| web.endpoints.len() == 1).await;
    let (through, direct) = (way(&rouse, "web"), Target::plain(web.endpoints[0].address));
    let state = format!("{SAMPLED}tracestate: vendor=1,other=2\r\n");
    for lines in ["", SAMPLED, UNSAMPLED, &state, MALFORMED] {
        let seen = recorded(&through, lines).await;
        assert_eq!(seen, recorded(&direct, lines).await, "{lines}");
        assert_eq!(seen["recording"], lines != UNSAMPLED, "{lines}: {seen}");
    }
    rouse.stop().await;
}
