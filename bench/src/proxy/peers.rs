//! Who is measured. All have two workers, keep their connections to the upstream and write no access log; their
//! configurations are in `bench/peers`. Who is not here is said and left out.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::ROUSE;
use crate::args::Proxy as Ask;
use crate::child::Running;
use crate::load::Door;
use crate::matrix::{Contestant, Held};
use crate::rouse::{App, Rouse, binary};
use crate::site::{self, HOST, SERVING, Size};
use crate::{Result, ports, tools};

const PATIENCE: Duration = Duration::from_secs(20);
/// As many as every proxy here has.
pub(crate) const WORKERS: &str = "2";
const ROUTES: usize = 1_000;

/// Where the servers behind all proxies are, and where a proxy shall listen.
struct Place<'f> {
    upstream: SocketAddr,
    h2c_upstream: SocketAddr,
    listen: SocketAddr,
    h2c_listen: SocketAddr,
    folder: &'f Path,
}

type Start = fn(&Place<'_>, &Path) -> Result<Contestant>;

/// Rouse, whose pods are the servers behind all, and then its peers.
pub(super) fn start(ask: &Ask, folder: &Path) -> Result<Vec<Contestant>> {
    let (rouse, [upstream, h2c_upstream]) = rouse(ask, folder)?;
    let mut contestants = vec![rouse];
    let peers: [(&str, Start); 5] = [
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
        let (listen, h2c_listen) = (ports::free()?, ports::free()?);
        let place = Place { upstream, h2c_upstream, listen, h2c_listen, folder: &folder };
        match start(&place, &tools) {
            Ok(contestant) => contestants.push(Contestant { name: name.to_owned(), ..contestant }),
            Err(error) => eprintln!("MISSING: {name}: {error}; it is left out"),
        }
    }
    Ok(contestants)
}

fn rouse(ask: &Ask, folder: &Path) -> Result<(Contestant, [SocketAddr; 2])> {
    let h2c = App {
        name: "h2c".to_owned(),
        command: vec![std::env::current_exe()?.display().to_string(), "upstream-h2c".to_owned()],
        env: Vec::new(),
        hosts: vec!["h2c.bench".to_owned()],
        h2c: true,
        pods: 1,
    };
    let mut apps = site::apps(Size { routes: ROUTES - 1, services: 1, endpoints: 1 }, folder)?;
    apps.push(h2c);
    let rouse = Rouse::start(&binary(ask.matrix.common.rouse.as_deref())?, &apps, &["--workers", WORKERS])?;
    let pod =
        |app: &str| rouse.pods(app, 1)?.first().copied().ok_or_else(|| format!("{app} has no pod").into());
    let upstreams: [Result<SocketAddr>; 2] = [SERVING, "h2c"].map(pod);
    let [upstream, h2c_upstream] = upstreams;
    let door = |host: &str| Some(Door { address: rouse.address, host: host.to_owned() });
    let (http1, h2c) = (door(HOST), door("h2c.bench"));
    let contestant = Contestant { name: ROUSE.to_owned(), http1, h2c, held: Held::Rouse(rouse) };
    Ok((contestant, [upstream?, h2c_upstream?]))
}

impl Place<'_> {
    /// A configuration with what is ours put in.
    fn fill(&self, template: &str) -> String {
        let Place { upstream, h2c_upstream, listen, h2c_listen, folder } = self;
        template
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

    /// Starts a proxy and waits until it takes connections.
    fn open(&self, name: &str, command: &mut Command, h2c: bool) -> Result<Contestant> {
        let mut running = Running::start(name, command)?;
        running.until("listens", PATIENCE, |_| TcpStream::connect(self.listen).ok())?;
        let door = |address: SocketAddr| Door { address, host: address.to_string() };
        let h2c = h2c.then(|| door(self.h2c_listen));
        Ok(Contestant {
            name: name.to_owned(),
            http1: Some(door(self.listen)),
            h2c,
            held: Held::Peer(running),
        })
    }
}

fn ceiling(place: &Place<'_>, _: &Path) -> Result<Contestant> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["forward", "--listen", &place.listen.to_string()]);
    place.open("ceiling", command.args(["--upstream", &place.upstream.to_string()]), false)
}

fn nginx(place: &Place<'_>, _: &Path) -> Result<Contestant> {
    let file = place.folder.join("nginx.conf");
    fs::write(&file, place.fill(include_str!("../../peers/nginx.conf")))?;
    let mut command = Command::new(tools::need("nginx", "nginx-light")?);
    command.arg("-p").arg(place.folder).args(["-e", "stderr", "-c"]).arg(&file);
    place.open("nginx", &mut command, false)
}

fn haproxy(place: &Place<'_>, _: &Path) -> Result<Contestant> {
    let file = place.folder.join("haproxy.cfg");
    fs::write(&file, place.fill(include_str!("../../peers/haproxy.cfg")))?;
    let mut command = Command::new(tools::need("haproxy", "haproxy")?);
    place.open("haproxy", command.args(["-db", "-f"]).arg(&file), true)
}

fn envoy(place: &Place<'_>, tools: &Path) -> Result<Contestant> {
    let file = place.folder.join("envoy.yaml");
    fs::write(&file, place.fill(include_str!("../../peers/envoy.yaml")))?;
    let mut command = Command::new(tools::envoy(tools)?);
    command.args(["--concurrency", WORKERS, "--log-level", "error", "--disable-hot-restart", "-c"]);
    place.open("envoy", command.arg(&file), true)
}

fn go(place: &Place<'_>, _: &Path) -> Result<Contestant> {
    let mut command = Command::new(tools::go_proxy(place.folder)?);
    command.args([place.listen.to_string(), place.upstream.to_string()]).env("GOMAXPROCS", WORKERS);
    place.open("go", &mut command, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_placeholder_is_left_in_a_configuration() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (upstream, h2c_upstream, listen, h2c_listen) = (address(1), address(2), address(3), address(4));
        let place = Place { upstream, h2c_upstream, listen, h2c_listen, folder: Path::new("folder") };
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
