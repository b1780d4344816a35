//! The protocol between `rouse` and a guardian: text lines over a Unix socket.
//!
//! `rouse` → guardian: first `start HEX`, with what the pod reads from its standard input, in hexadecimal (empty: nothing);
//! then `stop MILLISECONDS`; the end of the stream means "stop now". Guardian → `rouse`: first `started PID` or `failed ERRNO`, at the end `exited CODE` or `killed SIGNAL`. The guardian sends the last line when no descendant is left;
//! a stream that ends without it means that the guardian was killed.

use std::fmt;
use std::num::{NonZeroI32, NonZeroU32};
use std::time::Duration;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ExitStatus::Code(code) => write!(f, "exited with code {code}"),
            ExitStatus::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
        }
    }
}

/// The names of common signals that have the same number on every Linux.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

/// An order from `rouse` to a guardian.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// Start the command with this standard input. It may be a secret.
    Start(Box<[u8]>),
    /// Send SIGTERM, and after the grace period SIGKILL to all remaining processes.
    Stop(Duration),
}

impl Order {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "start" => from_hex(rest).map(Order::Start),
            "stop" => Some(Order::Stop(Duration::from_millis(rest.parse().ok()?))),
            _ => None,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Start(input) => {
                f.write_str("start ")?;
                input.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                writeln!(f)
            }
            Order::Stop(grace) => {
                writeln!(f, "stop {}", u64::try_from(grace.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The input may be a secret.
            Order::Start(input) => write!(f, "Start({} bytes)", input.len()),
            Order::Stop(grace) => write!(f, "Stop({grace:?})"),
        }
    }
}

fn from_hex(text: &str) -> Option<Box<[u8]>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok()
        })
        .collect()
}

/// A message from a guardian to `rouse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardianMessage {
    /// The process runs.
    Started(NonZeroU32),
    /// The process could not be started: the error number.
    Failed(NonZeroI32),
    /// The process and all its descendants have ended.
    Ended(ExitStatus),
}

impl GuardianMessage {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (what, number) = line.split_once(' ')?;
        Some(match what {
            "started" => GuardianMessage::Started(number.parse().ok()?),
            "failed" => GuardianMessage::Failed(number.parse().ok()?),
            "exited" => GuardianMessage::Ended(ExitStatus::Code(number.parse().ok()?)),
            "killed" => GuardianMessage::Ended(ExitStatus::Signal(number.parse().ok()?)),
            _ => return None,
        })
    }
}

impl fmt::Display for GuardianMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuardianMessage::Started(pid) => writeln!(f, "started {pid}"),
            GuardianMessage::Failed(errno) => writeln!(f, "failed {errno}"),
            GuardianMessage::Ended(ExitStatus::Code(code)) => writeln!(f, "exited {code}"),
            GuardianMessage::Ended(ExitStatus::Signal(signal)) => writeln!(f, "killed {signal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let reports = [
            GuardianMessage::Started(NonZeroU32::new(4242).unwrap()),
            GuardianMessage::Failed(NonZeroI32::new(2).unwrap()),
            GuardianMessage::Ended(ExitStatus::Code(-1)),
            GuardianMessage::Ended(ExitStatus::Signal(9)),
        ];
        for report in reports {
            assert_eq!(GuardianMessage::parse(report.to_string().trim_end()), Some(report));
        }
        for input in [&b""[..], b"key\n\xff"] {
            let order = Order::Start(input.into());
            assert_eq!(Order::parse(order.to_string().trim_end_matches('\n')), Some(order));
        }
        assert_eq!(format!("{:?}", Order::Start((*b"key").into())), "Start(3 bytes)");
        let order = Order::Stop(Duration::from_millis(10_500));
        assert_eq!(order.to_string(), "stop 10500\n");
        assert_eq!(Order::parse("stop 10500"), Some(order));
        assert!(Order::parse(Order::Stop(Duration::MAX).to_string().trim_end()).is_some());
    }

    #[test]
    fn anything_else_is_not_understood() {
        for line in [
            "",
            "start",
            "start 0",
            "start xy",
            "stop",
            "stop ",
            "stop -1",
            "stop 1s",
            "started 0",
            "started",
            "failed 0",
            "exited x",
        ] {
            assert_eq!((Order::parse(line), GuardianMessage::parse(line)), (None, None), "{line:?}");
        }
    }
}
