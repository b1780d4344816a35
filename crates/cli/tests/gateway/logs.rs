//! The log of `rouse gateway`: filters, JSON lines, floods, and what it must not have.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rouse_testkit::api_server::ApiServer;
use serde_json::Value;

use super::starting::{Gateway, PATIENCE, TOKEN, serve};
use super::told;

/// What clients send and the log must not have.
const SECRET: &str = "s3cret-of-a-client";
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
    let pid = gateway.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    gateway.process.wait().unwrap();
    while let Ok(line) = gateway.lines.recv_timeout(Duration::from_secs(5)) {
        lines.push(line);
    }
    for line in &lines {
        parsed(line);
        assert!(!line.contains(SECRET) && !line.contains(TOKEN), "{line}");
    }
    assert!(lines.len() < REQUESTS / 2, "{} lines for {REQUESTS} bad requests", lines.len());
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
