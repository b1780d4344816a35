//! The hidden subcommands that measurements start as separate processes, so that their CPU time is counted separately.

pub(crate) mod app;
pub(crate) mod connection_load;
pub(crate) mod data_plane;
pub(crate) mod minimal_proxy;
pub(crate) mod slice_controller;
pub(crate) mod upstream;
pub(crate) mod upstream_h2c;

use std::net::SocketAddr;

use crate::Result;

/// The size of the small response body.
pub(crate) const SMALL: usize = 1024;
/// The size of the large response body.
pub(crate) const LARGE: usize = 1024 * 1024;

/// Whether this is a complete small response: [`SMALL`] bytes after the empty line.
pub(crate) fn is_whole(answer: &[u8]) -> bool {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    head.is_some_and(|head| answer.len() >= head + 4 + SMALL)
}

/// HOST and PORT, as Rouse gives them to its apps.
pub(crate) fn address() -> Result<SocketAddr> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    Ok(SocketAddr::new(variable("HOST")?.parse()?, variable("PORT")?.parse()?))
}

/// Runs a server on this thread.
pub(crate) fn block_on(server: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        assert!(!is_whole(&answer));
        answer.extend([b'x'; SMALL]);
        assert!(is_whole(&answer));
        answer.pop();
        assert!(!is_whole(&answer));
    }
}
