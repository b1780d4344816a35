//! What the measurements start as processes of their own, so that each one's time is counted apart.

pub(crate) mod app;
pub(crate) mod connect;
pub(crate) mod forward;
pub(crate) mod upstream;
pub(crate) mod upstream_h2c;

use std::net::SocketAddr;

use crate::Result;

/// How large the small answer is.
pub(crate) const SMALL: usize = 1024;
/// How large the large one is.
pub(crate) const LARGE: usize = 1024 * 1024;

/// HOST and PORT, as Rouse gives them to its apps.
pub(crate) fn address() -> Result<SocketAddr> {
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    Ok(SocketAddr::new(variable("HOST")?.parse()?, variable("PORT")?.parse()?))
}

/// Runs a server on this thread.
pub(crate) fn block_on(server: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(server)
}
