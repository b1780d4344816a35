//! The log of `rouse gateway`: filters, JSON lines, floods, and secrets that it must not contain.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};

use super::starting::{Gateway, PATIENCE, TOKEN, get, serve};
use super::told;

/// A secret that clients send and the log must not contain.
const SECRET: &str = "s3cret-of-a-client";
/// The same in base64, as in a Secret.
const SECRET_IN_BASE64: &str = "czNjcmV0LW9mLWEtY2xpZW50";
/// Far more than may be logged about them.
const REQUESTS: usize = 500;

/// Sends bytes, and waits until the gateway has closed the connection.
fn send(address: &str, bytes: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may close the connection before it has read everything.
    stream.write_all(bytes.as_bytes()).ok();
    stream.read_to_end(&mut Vec::new()).ok();
}

/// A line of the log that has `mark`, and all lines before it.
fn until(gateway: &Gateway, mark: &str) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = gateway.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no {mark:?}: {lines:#?}"));
        let found = line.contains(mark);
        lines.push(line);
        if found {
            return lines;
        }
    }
}

#[test]
fn a_flood_of_bad_requests_is_no_flood_of_json_lines_and_no_line_has_secrets() {
    let arguments = ["--log-format", "json", "--log-level", "trace", "--drain-timeout", "1s"];
    let mut gateway = Gateway::start_with(serve(ApiServer::default()), &arguments);
    let mut lines = until(&gateway, "ready: ");
    let parsed = |line: &String| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    let message = |line: &Value| line["message"].as_str().unwrap_or_default().to_owned();
    let listening = lines.iter().map(parsed).map(|line| message(&line));
    let listening: Vec<String> = listening.filter(|text| text.starts_with("listening on http://")).collect();
    let address = listening[0].strip_prefix("listening on http://").unwrap();
    for n in 0..REQUESTS {
        match n % 3 {
            0 => send(address, &format!("GARBAGE {SECRET}\r\n\r\n")),
            1 => send(
                address,
                &format!("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nAuthorization: Bearer {SECRET}\r\n\r\n"),
            ),
            _ => send(
                address,
                &format!(
                    "GET /?key={SECRET} HTTP/1.1\r\nHost: no.route\r\nAuthorization: Bearer {SECRET}\r\n\
                     Cookie: session={SECRET}\r\nConnection: close\r\n\r\n"
                ),
            ),
        }
    }
    gateway.stop();
    lines.extend(gateway.lines.iter());
    for line in &lines {
        parsed(line);
        assert!(!line.contains(SECRET) && !line.contains(TOKEN), "{line}");
    }
    assert!(lines.len() < REQUESTS / 2, "{} lines for {REQUESTS} bad requests", lines.len());
}

#[test]
fn a_private_key_in_a_secret_is_never_logged() {
    let api = ApiServer::default();
    let data = json!({"tls.crt": SECRET_IN_BASE64, "tls.key": SECRET_IN_BASE64});
    let metadata = |name: &str| json!({"name": name, "namespace": "shop"});
    api.put("secrets", json!({"metadata": metadata("own"), "type": "kubernetes.io/tls", "data": data}));
    let mut service = json!({"metadata": metadata("cart"), "spec": {"ports": [{"port": 80}]}});
    service["metadata"]["annotations"] =
        json!({"rouse.dev/upstream-tls": "true", "rouse.dev/upstream-client-cert": "own"});
    api.put("services", service);
    let target = json!({"service": "cart", "port": 80});
    let spec = json!({"rules": [{"hosts": ["cart.test"]}], "target": target});
    api.put("http.keda.sh/interceptorroutes", json!({"metadata": metadata("cart"), "spec": spec}));
    let arguments = ["--log-format", "json", "--log-level", "trace", "--drain-timeout", "1s"];
    let mut gateway = Gateway::start_with(serve(api), &arguments);
    let address = gateway.line("listening on http://");
    let address = address.split('"').next().unwrap();
    let mut lines = until(&gateway, "ready: ");
    // The answer shows that the Secret was read: its certificate cannot be used.
    let answer = get(address, "cart.test", "/");
    assert!(answer.contains("x-rouse-error: tls_failed"), "{answer}");
    assert!(!answer.contains(SECRET) && !answer.contains(SECRET_IN_BASE64), "{answer}");
    gateway.stop();
    lines.extend(gateway.lines.iter());
    for line in &lines {
        assert!(!line.contains(SECRET) && !line.contains(SECRET_IN_BASE64), "{line}");
    }
}

#[test]
fn the_error_that_ends_the_process_is_a_json_line_like_all_others() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
    command.args(["gateway", "--log-format", "json", "--listen", &address, "--admin", "127.0.0.1:0"]);
    let output = command.env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stderr).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last["level"], "ERROR");
    let message = last["message"].as_str().unwrap();
    assert!(message.contains(&address) && message.contains("--listen"), "{message}");
}

#[test]
fn a_level_that_does_not_exist_is_refused_with_what_is_allowed() {
    let problems = told().flag("--log-level", "verbose").problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(
        problem.starts_with("--log-level: verbose is not allowed: off, error, warn, info, debug or trace"),
        "{problem}"
    );
}
