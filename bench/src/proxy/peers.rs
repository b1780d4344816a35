//! Starts Rouse and its peers. All have two workers, keep their connections to the upstream and write no access log; their
//! configurations are in `bench/peers`. A missing peer is reported and left out.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::ROUSE;
use crate::args::{Common, Proxy as Ask};
use crate::certificate::{self, Certificate};
use crate::child::Running;
use crate::generated_config::{self, HOST, SERVING, Size};
use crate::load::{ListenerKind, ProxyAddress};
use crate::matrix::{Held, ProxyUnderTest};
use crate::rouse::{App, Rouse, binary};
use crate::{Result, ports, tools};

const PATIENCE: Duration = Duration::from_secs(20);
/// The number of workers of every proxy.
pub(crate) const WORKERS: &str = "2";
const ROUTES: usize = 1_000;

/// The addresses of the upstream servers, and those where a proxy must listen.
struct Place<'f> {
    upstream: SocketAddr,
    h2c_upstream: SocketAddr,
    listen: SocketAddr,
    h2c_listen: SocketAddr,
    tls_listen: SocketAddr,
    certificate: &'f Certificate,
    folder: &'f Path,
    /// The product.
    rouse: &'f Path,
}

type Start = fn(&Place<'_>, &Path) -> Result<ProxyUnderTest>;

/// Starts Rouse, whose pods are the upstream servers of all proxies, and then its peers.
pub(super) fn start(ask: &Ask, folder: &Path) -> Result<Vec<ProxyUnderTest>> {
    let certificate = certificate::make(HOST, folder)?;
    let (current, [upstream, h2c_upstream]) = rouse(&ask.matrix.common, &certificate, folder)?;
    let mut proxies = vec![current];
    for (number, baseline) in (1..).zip(&ask.baseline) {
        let folder = folder.join(format!("baseline-{number}"));
        fs::create_dir_all(&folder)?;
        let common = Common { rouse: Some(baseline.clone()), output: ask.matrix.common.output };
        let (earlier, _) = rouse(&common, &certificate, &folder)?;
        proxies.push(ProxyUnderTest { name: format!("rouse, baseline {number}"), ..earlier });
    }
    let product = binary(ask.matrix.common.rouse.as_deref())?;
    let peers: [(&str, Start); 6] = [
        ("sidecar", sidecar),
        ("tokio + httparse (ceiling)", ceiling),
        ("nginx", nginx),
        ("haproxy", haproxy),
        ("envoy", envoy),
        ("go ReverseProxy", go),
    ];
    let tools = tools::folder(ask.tools.as_deref())?;
    for (name, start) in peers {
        if !ask.peers.is_empty() && !ask.peers.iter().any(|asked| name.starts_with(asked.as_str())) {
            continue;
        }
        let folder = folder.join(name.split(' ').next().unwrap_or(name));
        fs::create_dir_all(&folder)?;
        let (listen, h2c_listen, tls_listen) = (ports::free()?, ports::free()?, ports::free()?);
        let (certificate, folder) = (&certificate, folder.as_path());
        let rouse = product.as_path();
        let place =
            Place { upstream, h2c_upstream, listen, h2c_listen, tls_listen, certificate, folder, rouse };
        match start(&place, &tools) {
            Ok(proxy) => proxies.push(ProxyUnderTest { name: name.to_owned(), ..proxy }),
            Err(error) => eprintln!("MISSING: {name}: {error}; it is left out"),
        }
    }
    Ok(proxies)
}

/// Starts Rouse. Returns it and the addresses of its pods.
pub(super) fn rouse(
    ask: &Common,
    certificate: &Certificate,
    folder: &Path,
) -> Result<(ProxyUnderTest, [SocketAddr; 2])> {
    let h2c = App {
        name: "h2c".to_owned(),
        command: vec![std::env::current_exe()?.display().to_string(), "upstream-h2c".to_owned()],
        env: Vec::new(),
        hosts: vec!["h2c.bench".to_owned()],
        h2c: true,
        sidecar: false,
        pods: 1,
    };
    let mut apps = generated_config::apps(Size { routes: ROUTES - 1, services: 1, endpoints: 1 }, folder)?;
    apps.push(h2c);
    let binary = binary(ask.rouse.as_deref())?;
    let rouse = Rouse::start(&binary, &apps, Some(certificate), &["--workers", WORKERS])?;
    let pod =
        |app: &str| rouse.pods(app, 1)?.first().copied().ok_or_else(|| format!("{app} has no pod").into());
    let upstreams: [Result<SocketAddr>; 2] = [SERVING, "h2c"].map(pod);
    let [upstream, h2c_upstream] = upstreams;
    let address =
        |host: &str| Some(ProxyAddress { address: rouse.address, host: host.to_owned(), certificate: None });
    let (http1, h2c) = (address(HOST), address("h2c.bench"));
    let tls = rouse.secure.map(|address| tls_door(address, certificate));
    let proxy = ProxyUnderTest { name: ROUSE.to_owned(), http1, h2c, tls, held: Held::Rouse(rouse) };
    Ok((proxy, [upstream?, h2c_upstream?]))
}

/// The TLS listener of a proxy. All get the same host, which is in the certificate.
fn tls_door(address: SocketAddr, certificate: &Certificate) -> ProxyAddress {
    ProxyAddress { address, host: HOST.to_owned(), certificate: Some(certificate.cert.clone()) }
}

impl Place<'_> {
    /// Fills in the placeholders of a configuration.
    fn fill(&self, template: &str) -> String {
        let Place { upstream, h2c_upstream, listen, h2c_listen, tls_listen, certificate, folder, rouse: _ } =
            self;
        let Certificate { cert, key, both } = certificate;
        template
            .replace("@TLS_LISTEN@", &tls_listen.to_string())
            .replace("@CERT@", &cert.display().to_string())
            .replace("@KEY@", &key.display().to_string())
            .replace("@CERT_AND_KEY@", &both.display().to_string())
            .replace("@LISTEN@", &listen.to_string())
            .replace("@LISTEN_PORT@", &listen.port().to_string())
            .replace("@H2C_LISTEN@", &h2c_listen.to_string())
            .replace("@H2C_LISTEN_PORT@", &h2c_listen.port().to_string())
            .replace("@UPSTREAM@", &upstream.to_string())
            .replace("@UPSTREAM_PORT@", &upstream.port().to_string())
            .replace("@H2C_UPSTREAM@", &h2c_upstream.to_string())
            .replace("@H2C_UPSTREAM_PORT@", &h2c_upstream.port().to_string())
            .replace("@FOLDER@", &folder.display().to_string())
    }

    /// Starts a proxy and waits until it accepts connections. All support HTTP/1.1 without TLS; `also` lists the rest.
    fn open(&self, name: &str, command: &mut Command, also: &[ListenerKind]) -> Result<ProxyUnderTest> {
        let mut running = Running::start(name, command)?;
        running.until("listens", PATIENCE, |_| TcpStream::connect(self.listen).ok())?;
        let address =
            |address: SocketAddr| ProxyAddress { address, host: address.to_string(), certificate: None };
        Ok(ProxyUnderTest {
            name: name.to_owned(),
            http1: Some(address(self.listen)),
            h2c: also.contains(&ListenerKind::H2c).then(|| address(self.h2c_listen)),
            tls: also.contains(&ListenerKind::Tls).then(|| tls_door(self.tls_listen, self.certificate)),
            held: Held::Peer(running),
        })
    }
}

fn ceiling(place: &Place<'_>, _: &Path) -> Result<ProxyUnderTest> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["forward", "--listen", &place.listen.to_string()]);
    place.open("ceiling", command.args(["--upstream", &place.upstream.to_string()]), &[])
}

/// `rouse sidecar`, without push.
fn sidecar(place: &Place<'_>, _: &Path) -> Result<ProxyUnderTest> {
    let mut command = Command::new(place.rouse);
    command.args(["sidecar", "--register", "none", "--admin", "127.0.0.1:0", "--workers", WORKERS]);
    command.args(["--listen", &place.listen.to_string(), "--app", &place.upstream.to_string()]);
    place.open("sidecar", &mut command, &[])
}

fn nginx(place: &Place<'_>, _: &Path) -> Result<ProxyUnderTest> {
    let file = place.folder.join("nginx.conf");
    fs::write(&file, place.fill(include_str!("../../peers/nginx.conf")))?;
    let mut command = Command::new(tools::need("nginx", "nginx-light")?);
    command.arg("-p").arg(place.folder).args(["-e", "stderr", "-c"]).arg(&file);
    place.open("nginx", &mut command, &[ListenerKind::Tls])
}

fn haproxy(place: &Place<'_>, _: &Path) -> Result<ProxyUnderTest> {
    let file = place.folder.join("haproxy.cfg");
    fs::write(&file, place.fill(include_str!("../../peers/haproxy.cfg")))?;
    let mut command = Command::new(tools::need("haproxy", "haproxy")?);
    place.open("haproxy", command.args(["-db", "-f"]).arg(&file), &[ListenerKind::H2c, ListenerKind::Tls])
}

fn envoy(place: &Place<'_>, tools: &Path) -> Result<ProxyUnderTest> {
    let file = place.folder.join("envoy.yaml");
    fs::write(&file, place.fill(include_str!("../../peers/envoy.yaml")))?;
    let mut command = Command::new(tools::envoy(tools)?);
    command.args(["--concurrency", WORKERS, "--log-level", "error", "--disable-hot-restart", "-c"]);
    place.open("envoy", command.arg(&file), &[ListenerKind::H2c])
}

fn go(place: &Place<'_>, _: &Path) -> Result<ProxyUnderTest> {
    let mut command = Command::new(tools::go_proxy(place.folder)?);
    command.args([place.listen.to_string(), place.upstream.to_string()]).env("GOMAXPROCS", WORKERS);
    place.open("go", &mut command, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left_in_a_configuration() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let [cert, key, both] = ["cert", "key", "both"].map(Into::into);
        let place = Place {
            upstream: address(1),
            h2c_upstream: address(2),
            listen: address(3),
            h2c_listen: address(4),
            tls_listen: address(5),
            certificate: &Certificate { cert, key, both },
            folder: Path::new("folder"),
            rouse: Path::new("rouse"),
        };
        for template in [
            include_str!("../../peers/nginx.conf"),
            include_str!("../../peers/haproxy.cfg"),
            include_str!("../../peers/envoy.yaml"),
        ] {
            let filled = place.fill(template).replace("\"@type\"", "");
            assert!(!filled.contains('@'), "{filled}");
        }
    }
}
