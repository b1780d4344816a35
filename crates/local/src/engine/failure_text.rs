//! Messages about failed or slow pods, for responses, `rouse status` and the terminal.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::pod::Pod;
use super::spec::Readiness;
use crate::listening;
use crate::output::{AppLog, Stream};
use crate::process::Exit;

/// The most characters of a pod's last line that are quoted.
const LONGEST_QUOTE: usize = 200;
/// How many lines back a line on stderr is searched.
const LOOK_BACK: usize = 200;

/// An error with its chain of causes.
pub(super) fn whole(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// `hello-1 exited with code 1; its last line on stderr: "…"`
pub(super) fn exited(pod: &Pod, exit: Exit, log: &AppLog) -> String {
    let last = last_stderr_line(pod, log).map(|line| format!("; its last line on stderr: {line}"));
    format!("{} {exit}{}", pod.name, last.unwrap_or_default())
}

/// Why a pod that runs is not ready.
pub(super) struct NotReady {
    /// `hello-1 (pid 123) runs but is not ready after 5 s: nothing accepts connections on 127.0.0.1:20017; last line on
    /// stderr: "…"`
    pub(super) now: String,
    /// The same for the log, which has it once: without the time and without the line on stderr, which the log has already.
    pub(super) lasting: String,
}

pub(super) fn not_ready(pod: &Pod, for_so_long: Duration, log: &AppLog) -> NotReady {
    let pid = pod.processes.as_ref().map(|process| format!(" (pid {})", process.pid())).unwrap_or_default();
    let seconds = for_so_long.as_secs();
    let since = if pod.served { format!("any more (for {seconds} s)") } else { format!("after {seconds} s") };
    let address = pod.address;
    let elsewhere = pod.processes.as_ref().and_then(|process| listening::elsewhere(process.pid(), address));
    let unanswered = || match &pod.readiness {
        Readiness::Tcp => format!("nothing accepts connections on {address}"),
        Readiness::Http(path) => {
            format!("GET http://{address}{path} does not answer with a status from 200 to 399")
        }
        Readiness::Grpc(service) if service.is_empty() => {
            format!("the gRPC health service on {address} does not report SERVING")
        }
        Readiness::Grpc(service) => {
            format!("the gRPC health service on {address} does not report SERVING for {service:?}")
        }
    };
    let missing = elsewhere.map_or_else(unanswered, |elsewhere| wrong_place(elsewhere, address));
    let last = last_stderr_line(pod, log).map(|line| format!("; last line on stderr: {line}"));
    let runs = format!("{}{pid} runs but is not ready", pod.name);
    let yet = if pod.served { "any more" } else { "yet" };
    NotReady {
        lasting: format!("{runs} {yet}: {missing}"),
        now: format!("{runs} {since}: {missing}{}", last.unwrap_or_default()),
    }
}

/// The advice for an app that listens on another address than the one it was given.
fn wrong_place(is: SocketAddr, should: SocketAddr) -> String {
    let bind = if is.port() == should.port() { "bind $HOST" } else { "use $PORT, and bind $HOST" };
    format!("it listens on {is} instead of {should}: {bind}")
}

/// The last line of the pod called `pod` in the log.
pub(super) fn last_line(pod: &str, log: &AppLog) -> Option<Arc<str>> {
    log.tail_of(pod, 1).pop().map(|line| line.text)
}

/// The last line that this pod printed to stderr, in quotes.
fn last_stderr_line(pod: &Pod, log: &AppLog) -> Option<String> {
    // Lines of an earlier pod with the same name do not explain the failure of this one.
    let is_before =
        |text: &Arc<str>| pod.line_before.as_ref().is_some_and(|before| Arc::ptr_eq(before, text));
    let lines = log.tail_of(&pod.name, LOOK_BACK);
    let own = lines.iter().rev().take_while(|line| !is_before(&line.text));
    let line = own.filter(|line| line.stream == Stream::Stderr).find(|line| !line.text.trim().is_empty())?;
    let text: String = line.text.trim().chars().take(LONGEST_QUOTE).collect();
    Some(format!("{text:?}"))
}
