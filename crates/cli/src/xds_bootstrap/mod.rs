//! `rouse xds bootstrap`: prints the configuration with which Envoy gets everything else from Rouse.

mod args;
mod text;

use std::net::SocketAddr;

use anstyle::{AnsiColor, Style};

pub use args::{BootstrapArgs, HELP, StaticListener, XdsServerAddress, XdsServerHost};

use crate::{CommandError, Streams};

/// Prints the bootstrap.
pub(crate) fn run(args: &BootstrapArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    if let Some(warning) = warning(args) {
        let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    Ok(streams.out.write_all(text::bootstrap(args).as_bytes())?)
}

/// The warning about a connection in plain text that leaves the machine.
fn warning(args: &BootstrapArgs) -> Option<String> {
    let is_away = |server: &&XdsServerAddress| match &server.host {
        XdsServerHost::Name(name) => name != "localhost",
        XdsServerHost::Ip(ip) => !ip.is_loopback(),
    };
    let away = args.server.iter().find(is_away).filter(|_| args.ca.is_none())?;
    let address = match &away.host {
        XdsServerHost::Name(name) => format!("{name}:{}", away.port),
        XdsServerHost::Ip(ip) => SocketAddr::new(*ip, away.port.get()).to_string(),
    };
    Some(format!(
        "Envoy gets its configuration from {address} in plain text, and a machine in between can change where requests go; give \
         --ca, and --cert and --key for `rouse xds --xds-client-ca`"
    ))
}
