//! Opens the listeners of `rouse up` at the addresses of its flags, or else of the file.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rouse_config::settings::Values;
use rouse_net::listen::BindError;

use super::settings::{ADMIN, LISTEN, XDS};
use crate::failure::CommandError;
use crate::listeners::{ListenAddresses, Listeners, Purpose};
use crate::rouse_yaml::Config;
use crate::settings::loopback;

/// Opens all sockets, or none.
pub(super) fn open(values: &Values, config: &Config) -> Result<Listeners, CommandError> {
    let listen = values.get(&LISTEN);
    let addresses = ListenAddresses {
        plain: if listen.is_empty() { config.listen.clone() } else { listen },
        secure: config.tls.iter().map(|tls| tls.listen).collect(),
        admin: values.get(&ADMIN).unwrap_or(config.admin),
        // Any free port: only the sidecars of this run use it.
        register: Some(loopback(0)),
        xds: values.get(&XDS),
    };
    let own = [&addresses.admin].into_iter().chain(&addresses.xds);
    distinct(addresses.plain.iter().chain(&addresses.secure).chain(own))?;
    Listeners::open(&addresses, refused)
}

/// Where a client of this machine reaches a listener: one on all addresses is on loopback too.
pub(super) fn near(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Rejects an address that is used twice. The file is already checked, but a flag can repeat an address of it or of another
/// flag.
fn distinct<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), CommandError> {
    let mut seen: Vec<SocketAddr> = Vec::new();
    for &address in addresses {
        if address.port() != 0 && seen.contains(&address) {
            return Err(CommandError::Input(format!(
                "{address} is used twice: --listen, --admin, --xds and the file's listen and admin must differ"
            )));
        }
        seen.push(address);
    }
    Ok(())
}

fn refused(error: &BindError, purpose: Purpose) -> CommandError {
    let flag = match purpose {
        Purpose::Plain => "--listen",
        Purpose::Admin => "--admin",
        Purpose::Xds => "--xds",
        Purpose::Register => return CommandError::Failed(format!("{error}\n  sidecars register there")),
        Purpose::Secure => {
            return CommandError::Failed(format!("{error}\n  the address is set by tls.listen in the file"));
        }
    };
    let ip = error.address.ip();
    let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
    let elsewhere = match error.reason.kind() {
        ErrorKind::AddrNotAvailable => "127.0.0.1:0".to_owned(),
        _ => format!("{ip}:0"),
    };
    let another = match error.reason.kind() {
        ErrorKind::AddrInUse => "\n  another `rouse up` may run there already: `rouse status` shows it",
        _ => "",
    };
    CommandError::Failed(format!(
        "{error}{another}\n  to use any free port instead: rouse up {flag} {elsewhere}"
    ))
}

#[cfg(test)]
mod tests {
    use rouse_net::listen::bind;

    use super::super::args::values;
    use super::*;

    fn refusal(listen: &[SocketAddr], admin: SocketAddr) -> CommandError {
        let config = crate::rouse_yaml::read("apps: {a: {command: [x]}}", "rouse.yaml").unwrap();
        let flags = listen.iter().map(|address| format!("--listen={address}"));
        let flags: Vec<String> = flags.chain([format!("--admin={admin}")]).collect();
        open(&values(&flags), &config).map(|_| ()).unwrap_err()
    }

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn an_address_in_use_is_refused_with_a_next_step() {
        let other = bind(&[ANY]).unwrap();
        let taken = other[0].address();
        for (listen, admin, flag) in [(taken, ANY, "--listen"), (ANY, taken, "--admin")] {
            let CommandError::Failed(said) = refusal(&[listen], admin) else { panic!("it is no bad usage") };
            assert!(said.contains(&taken.to_string()) && said.contains("rouse status"), "{said}");
            assert!(said.contains(&format!("rouse up {flag} 127.0.0.1:0")), "{said}");
        }
    }

    #[test]
    fn an_address_that_is_given_twice_is_bad_usage() {
        let twice = "127.0.0.1:4".parse().unwrap();
        for (listen, admin) in [(&[twice, twice][..], ANY), (&[twice], twice)] {
            assert!(
                matches!(refusal(listen, admin), CommandError::Input(said) if said.contains("127.0.0.1:4"))
            );
        }
    }
}
