//! Finds the process that holds a port. Alone in its file: a child that another test starts briefly inherits all sockets.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use rouse_net::listen::bind;

#[test]
fn another_process_in_the_way_is_named() {
    let taken = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap().remove(0);
    let address = taken.address();
    // A child has the socket as its standard input, and no other process has it.
    let socket = Stdio::from(OwnedFd::from(taken.into_std()));
    let mut child = Command::new("tail").args(["-f", "/dev/null"]).stdin(socket).spawn().unwrap();
    let text = bind(&[address]).unwrap_err().to_string();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(text.ends_with(&format!("; pid {} (tail) listens there", child.id())), "{text}");
}
