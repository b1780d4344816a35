//! The demo's app, as `rouse up` starts it: the binary itself, with PORT and HOST in its environment.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// The app's process, killed when this is dropped.
struct App(Child);

impl Drop for App {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_demo_app_answers_on_its_port_and_leaves_in_good_order_when_told_to() {
    // A loopback address of its own, so that no other test can take the port between the search and its use.
    let host = format!("127.101.{}.1", std::process::id() % 250 + 1);
    let port = TcpListener::bind((host.as_str(), 0)).unwrap().local_addr().unwrap().port();
    let mut app = Command::new(env!("CARGO_BIN_EXE_rouse"));
    app.args(["demo-app", "hello", "--start-after", "1ms"]).env("PORT", port.to_string()).env("HOST", &host);
    let mut app = App(app.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(app.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "starting takes me 1ms …");
    assert_eq!(lines.next().unwrap(), format!("listening on http://{host}:{port}"));
    for (path, word) in [("/healthz", "ok"), ("/some/path", "you asked for /some/path")] {
        let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains(word), "{answer}");
    }
    let pid = i32::try_from(app.0.id()).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap(), "finished my requests, bye");
    assert!(app.0.wait().unwrap().success());
}
