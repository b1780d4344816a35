//! The sockets of `rouse up`: opened before anything else, so that a second one on the same address is refused
//! and nothing has to be undone.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use rouse_net::listen::{BindError, Listener, bind};
use rouse_net::tls::ServerTls;
use rouse_proxy::serve::Door;

use crate::args::Up;
use crate::config::Config;
use crate::failure::Failure;

/// Where requests come in, and where the admin API is.
#[derive(Debug)]
pub(super) struct Doors {
    listen: Vec<Listener>,
    /// Where requests come in over TLS.
    secure: Option<Listener>,
    admin: Listener,
}

impl Doors {
    /// Opens all of them, or none.
    pub(super) fn open(up: &Up, config: &Config) -> Result<Self, Failure> {
        let listen = if up.listen.is_empty() { &config.listen } else { &up.listen };
        let admin = up.admin.unwrap_or(config.admin);
        let secure = config.tls.as_ref().map(|tls| tls.listen);
        distinct(listen.iter().chain(&secure).chain([&admin]))?;
        let listen = bind(listen).map_err(|error| refused(&error, "--listen"))?;
        let secure = secure.map(|address| bind(&[address])).transpose();
        let mut secure = secure.map_err(|error| Failure::Failed(format!("{error}\n  tls.listen says so")))?;
        let mut admin = bind(&[admin]).map_err(|error| refused(&error, "--admin"))?;
        let none = || Failure::Failed("cannot listen on the admin address".to_owned());
        let secure = secure.as_mut().and_then(Vec::pop);
        Ok(Self { listen, secure, admin: admin.pop().ok_or_else(none)? })
    }

    /// The sockets themselves: those for requests, and the admin's.
    pub(super) fn into_parts(self, tls: Option<&Arc<ServerTls>>) -> (Vec<Door>, Listener) {
        let secure = self.secure.map(|listener| Door { listener, tls: tls.cloned() });
        (self.listen.into_iter().map(Door::from).chain(secure).collect(), self.admin)
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.listen.iter().map(Listener::address).collect()
    }

    pub(super) fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Listener::address)
    }

    pub(super) fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }
}

/// The file cannot have an address twice; flags, or a flag and the file, can.
fn distinct<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), Failure> {
    let mut seen: Vec<SocketAddr> = Vec::new();
    for &address in addresses {
        if address.port() != 0 && seen.contains(&address) {
            return Err(Failure::Input(format!(
                "{address} is to be listened on twice: --listen, --admin and the file's listen and admin must differ"
            )));
        }
        seen.push(address);
    }
    Ok(())
}

fn refused(error: &BindError, flag: &str) -> Failure {
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
    Failure::Failed(format!("{error}{another}\n  to use any free port instead: rouse up {flag} {elsewhere}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, Rouse};

    fn refusal(listen: &[SocketAddr], admin: SocketAddr) -> Failure {
        let config = crate::config::read("apps: {a: {command: [x]}}", "rouse.yaml").unwrap();
        let flags = listen.iter().map(|address| format!("--listen={address}"));
        let flags = flags.chain([format!("--admin={admin}")]);
        let arguments = ["rouse".to_owned(), "up".to_owned()].into_iter().chain(flags);
        let Command::Up(up) = Rouse::try_parse_from(arguments).unwrap().command else { panic!("it is `up`") };
        Doors::open(&up, &config).map(|_| ()).unwrap_err()
    }

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_door_that_somebody_has_is_refused_with_the_way_out() {
        let somebody = bind(&[ANY]).unwrap();
        let taken = somebody[0].address();
        for (listen, admin, flag) in [(taken, ANY, "--listen"), (ANY, taken, "--admin")] {
            let Failure::Failed(said) = refusal(&[listen], admin) else { panic!("it is no bad usage") };
            assert!(said.contains(&taken.to_string()) && said.contains("rouse status"), "{said}");
            assert!(said.contains(&format!("rouse up {flag} 127.0.0.1:0")), "{said}");
        }
    }

    #[test]
    fn an_address_that_is_asked_for_twice_is_bad_usage() {
        let twice = "127.0.0.1:4".parse().unwrap();
        for (listen, admin) in [(&[twice, twice][..], ANY), (&[twice], twice)] {
            assert!(matches!(refusal(listen, admin), Failure::Input(said) if said.contains("127.0.0.1:4")));
        }
    }
}
