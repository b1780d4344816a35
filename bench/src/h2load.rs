//! Runs h2load and parses its output.

use std::process::Command;
use std::time::Duration;

use crate::load::{Outcome, ProxyAddress};
use crate::{Result, child, tools};

/// Longer than any run; a run that hangs is ended.
const PATIENCE: Duration = Duration::from_mins(2);
/// The TLS cipher suite.
const CIPHER: &str = "TLS_AES_128_GCM_SHA256";

/// A load over persistent connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) connections: u32,
    /// Concurrent streams per connection; `None`: HTTP/1.1.
    pub(crate) streams: Option<u32>,
    pub(crate) path: &'static str,
}

/// Sends `requests` requests over persistent connections.
pub(crate) fn run(kept: Kept, address: &ProxyAddress, requests: u32) -> Result<Outcome> {
    let mut command = Command::new(tools::need("h2load", "nghttp2-client")?);
    command.args(["-t", "1", "-n", &requests.to_string(), "-c", &kept.connections.to_string()]);
    match kept.streams {
        Some(streams) => command.args(["-m", &streams.to_string()]),
        None => command.arg("--h1"),
    };
    let scheme = if address.certificate.is_some() {
        // One group and one cipher suite, so that all proxies negotiate the same.
        command.args(["--groups=X25519", &format!("--tls13-ciphers={CIPHER}")]);
        "https"
    } else {
        "http"
    };
    // A separate `Host` header would be a second one.
    command
        .arg(format!("--connect-to={}", address.address))
        .arg(format!("{scheme}://{}{}", address.host, kept.path));
    let text = child::output("h2load", &mut command, PATIENCE)?;
    if address.certificate.is_some() && !agreed(&text) {
        return Err(format!("not TLS 1.3 with {CIPHER}:\n{text}").into());
    }
    parse(&text).ok_or_else(|| format!("cannot parse the output of h2load:\n{text}").into())
}

/// Whether the handshake negotiated the requested parameters.
fn agreed(text: &str) -> bool {
    let said = |what: &str| text.lines().any(|line| line.trim() == what);
    said("TLS Protocol: TLSv1.3") && said(&format!("Cipher: {CIPHER}"))
}

/// The requests that were answered 2xx, the others, and the rate.
fn parse(text: &str) -> Option<Outcome> {
    let line = |prefix: &str| text.lines().find_map(|line| line.trim().strip_prefix(prefix));
    let count = |line: &str, what: &str| {
        let part = line.split(',').find_map(|part| part.trim().strip_suffix(what))?;
        part.trim().parse::<u32>().ok()
    };
    let total = count(line("requests:")?, " total")?;
    let succeeded = count(line("status codes:")?, " 2xx")?;
    let rate = line("finished in ")?.split(',').find_map(|part| part.trim().strip_suffix(" req/s"))?;
    let (failed, per_second) = (total.checked_sub(succeeded)?, rate.parse().ok()?);
    Some(Outcome { succeeded, failed, per_second, handshakes: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
starting benchmark...
finished in 812.42ms, 24617.81 req/s, 26.92MB/s
requests: 20000 total, 20000 started, 20000 done, 19990 succeeded, 10 failed, 3 errored, 0 timeout
status codes: 19980 2xx, 0 3xx, 10 4xx, 7 5xx
traffic: 21.87MB (22934800) total, 2.03MB (2134800) headers (space savings 0.00%), 19.53MB (20480000) data
";

    #[test]
    fn only_what_was_answered_2xx_succeeded() {
        let outcome = Outcome { succeeded: 19_980, failed: 20, per_second: 24_617.81, handshakes: None };
        assert_eq!(parse(SAID), Some(outcome));
    }

    #[test]
    fn only_the_same_tls_for_all_is_agreed() {
        let said = "TLS Protocol: TLSv1.3\nCipher: TLS_AES_128_GCM_SHA256\n";
        assert!(agreed(said));
        assert!(!agreed(&said.replace("1.3", "1.2")));
        assert!(!agreed(&said.replace("128", "256")));
        assert!(!agreed(SAID));
    }

    #[test]
    fn anything_else_is_not_taken_for_a_result() {
        assert_eq!(parse(""), None);
        assert_eq!(parse(&SAID.replace("status codes", "codes")), None);
        assert_eq!(parse(&SAID.replace("24617.81 req/s", "nan requests")), None);
    }
}
