//! Reads each key of `rouse.yaml`: its allowed values and its default.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rouse_core::scale::{
    BadPolicy, BadSchedule, DEFAULT_COLD_START_COST, IdlePolicy, ScaleSettings, Schedule,
};
use rouse_proxy::routing::{HostPattern, PathPrefix};

use super::{
    App, AppCommand, AppName, AppPort, AppScale, AppTimeouts, AppTransport, Cert, Config, LogRetention,
    Readiness, Tls, command_line,
};
use rouse_config::document::{DocumentNode, Value};
use rouse_config::duration::HumanDuration;
use rouse_config::errors::FileProblems;
use rouse_config::field::{Field, FieldPlace, Once, Section};
use rouse_config::settings::PrivateAddress;

/// A host and a path, which lead to one app.
type Route = (HostPattern, PathPrefix);

const APP: [&str; 12] = [
    "command",
    "env",
    "workdir",
    "hosts",
    "paths",
    "port",
    "protocol",
    "readiness",
    "scale",
    "timeouts",
    "stop-grace",
    "sidecar",
];

const SCALE: [&str; 8] =
    ["min", "max", "target", "limit", "idle-after", "idle", "cold-start-cost", "schedule"];

/// The most pods of an app: each is a process on this machine.
const MOST_PODS: u32 = 1000;
const MOST_REQUESTS: u32 = 1_000_000;
const ZERO: HumanDuration = HumanDuration::secs(0);
const SHORTEST: HumanDuration = HumanDuration::millis(1);
/// The longest duration: a longer one is a mistake. It is far below where clocks overflow.
const LONGEST: HumanDuration = HumanDuration::secs(30 * 24 * 3600);

/// A cold start that is worth less is worth nothing.
const SHORTEST_COST: HumanDuration = HumanDuration::secs(1);

/// How often a ready pod is probed: more often would fill its log.
const PROBE_INTERVAL: HumanDuration = HumanDuration::secs(10);
const SHORTEST_INTERVAL: HumanDuration = HumanDuration::millis(100);
/// How much of an app's output is kept by default, in bytes.
const LOGS_KEEP: usize = 4 << 20;
const LOGS_RANGE: RangeInclusive<usize> = 64 << 10..=1 << 30;

const ADDRESSES: &str = "an IP address and a port, like 127.0.0.1:8080, or a list of these";
const APPS: &str = "an app under its name, like hello: {command: [\"python3\", \"server.py\"]}";
const CERTS: &str = "a list of {cert: FILE, key: FILE}";
const COMMAND: &str = "a command, like python3 server.py, or a list of its words, like [\"python3\", \"server.py\"]; for \
                       a shell [\"sh\", \"-c\", \"…\"]";
const FILE: &str = "the path of a file, relative to this one";
const FOLDER: &str = "the path of a folder, relative to this file";
const LOGS: &str = "the path of a folder, or {keep: SIZE, folder: FOLDER}";
const GRPC: &str = "the name of a gRPC service, or \"\" for the whole server";
const HOST: &str =
    "a host like shop.example.com, a wildcard like \"*.example.com\", or \"*\", without a port";
const PATH: &str = "a path that begins with a slash and has no ? and no #";
const PROBE_PATH: &str = "a path like /healthz";
const IDLE: &str = "fixed or learned";
const SCHEDULE: &str = "expected days, times, a time zone and a number of pods, like Mon-Fri 08:00-18:00 Europe/Berlin = 2, \
                        several with ; between them";
const READINESS: &str = "tcp, {http: PATH} or {grpc: SERVICE}, each with an interval";

/// The whole file. `folder` is the folder of the file, if the folders that it names must exist.
pub(super) fn config(root: &DocumentNode, folder: Option<&Path>, problems: &FileProblems) -> Option<Config> {
    let file = Field::root(root, problems).section(&["listen", "admin", "tls", "logs", "apps"])?;
    let mut taken_addresses = Once::default();
    let listen = file.or("listen", vec![loopback(8080)], |it| addresses(it, &mut taken_addresses));
    let admin = file.or("admin", loopback(9080), |it| admin_address(it, &mut taken_addresses));
    let tls = file.get("tls").and_then(|it| tls(it, &mut taken_addresses));
    let logs = file.or("logs", LogRetention { keep: LOGS_KEEP, folder: None }, logs);
    let apps = file.need("apps", APPS, |it| apps(it, folder))?;
    Some(Config { listen, admin, tls, logs, apps })
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// One address, or a list of them.
fn addresses(field: &Field<'_>, taken_addresses: &mut Once<SocketAddr>) -> Option<Vec<SocketAddr>> {
    match field.value() {
        Value::List(_) => field.each(ADDRESSES, |it| address(it, taken_addresses)),
        _ => address(field, taken_addresses).map(|address| vec![address]),
    }
}

fn admin_address(field: &Field<'_>, taken_addresses: &mut Once<SocketAddr>) -> Option<SocketAddr> {
    let address = address(field, taken_addresses)?;
    if PrivateAddress::is_allowed(address) { Some(address) } else { field.refuse(PrivateAddress::ALLOWED) }
}

fn address(field: &Field<'_>, taken_addresses: &mut Once<SocketAddr>) -> Option<SocketAddr> {
    let address = field.address()?;
    // Port 0 stands for any free port, a different one each time.
    if address.port() == 0 { Some(address) } else { field.once(address, taken_addresses) }
}

fn tls(field: &Field<'_>, taken_addresses: &mut Once<SocketAddr>) -> Option<Tls> {
    let tls = field.section(&["listen", "certs"])?;
    let listen = tls.or("listen", loopback(8443), |it| address(it, taken_addresses));
    let certs = tls.need("certs", CERTS, |it| it.each(CERTS, cert))?;
    Some(Tls { listen, certs })
}

/// A folder alone, or an object.
fn logs(field: &Field<'_>) -> Option<LogRetention> {
    match field.value() {
        Value::Map(_) => {
            let logs = field.section(&["keep", "folder"])?;
            let keep = logs.or("keep", LOGS_KEEP, |it| it.size(LOGS_RANGE));
            Some(LogRetention { keep, folder: logs.get("folder").and_then(|it| some_path(it, FOLDER)) })
        }
        Value::Text(_) => Some(LogRetention { keep: LOGS_KEEP, folder: Some(some_path(field, LOGS)?) }),
        _ => field.refuse(LOGS),
    }
}

fn cert(field: &Field<'_>) -> Option<Cert> {
    let pair = field.section(&["cert", "key"])?;
    let file = |key| pair.need(key, FILE, |it| some_path(it, FILE));
    let (cert, key) = (file("cert"), file("key"));
    Some(Cert { cert: cert?, key: key? })
}

fn some_path(field: &Field<'_>, allowed: &str) -> Option<PathBuf> {
    field.parse_if(allowed, |path: &PathBuf| !path.as_os_str().is_empty())
}

fn apps(field: &Field<'_>, folder: Option<&Path>) -> Option<Vec<App>> {
    let apps = field.entries(APPS)?;
    if apps.is_empty() {
        return field.blame(format!("missing: {APPS}"));
    }
    let mut routes = Once::default();
    Some(apps.iter().filter_map(|(name, it)| app(name, it, folder, &mut routes)).collect())
}

fn app(name: &str, field: &Field<'_>, folder: Option<&Path>, routes: &mut Once<Route>) -> Option<App> {
    let bad_name = || field.blame(format!("not an app's name: expected {}", AppName::ALLOWED));
    let name: Option<AppName> = name.parse().ok().or_else(bad_name);
    let app = field.section(&APP)?;
    let command = app.need("command", COMMAND, command);
    let scale = scale(&app.section("scale", &SCALE));
    let probing = app.or("readiness", (Readiness::Tcp, PROBE_INTERVAL), readiness);
    let (hosts, paths) = ways_in(&app, name.as_ref(), field.place(), routes);
    Some(App {
        hosts,
        paths,
        env: app.or("env", BTreeMap::new(), env),
        workdir: app.or("workdir", ".".into(), |it| workdir(it, folder)),
        port: app.or("port", AppPort::Auto, |it| it.parse(AppPort::ALLOWED)),
        protocol: app.or("protocol", AppTransport::Http, |it| it.parse(AppTransport::ALLOWED)),
        readiness: probing.0,
        probe_interval: probing.1.get(),
        timeouts: timeouts(&app.section("timeouts", &["readiness", "request", "response-header", "connect"])),
        stop_grace: app.or("stop-grace", HumanDuration::secs(10), |it| it.duration(ZERO..=LONGEST)).get(),
        sidecar: app.or("sidecar", false, |it| it.parse("true or false")),
        // Last: an early return would skip the other keys and their problems.
        name: name?,
        command: command?,
        scale: scale?,
    })
}

fn workdir(field: &Field<'_>, folder: Option<&Path>) -> Option<PathBuf> {
    let path = some_path(field, FOLDER)?;
    match folder.map(|folder| folder.join(&path)).filter(|path| !path.is_dir()) {
        Some(missing) => field.refuse(format_args!("there is no folder {}", missing.display())),
        None => Some(path),
    }
}

/// A list of words, or one text.
fn command(field: &Field<'_>) -> Option<AppCommand> {
    if let Value::Text(_) = field.value() {
        let mut words = match command_line::split(field.text(COMMAND)?) {
            Ok(words) => words.into_iter(),
            Err(what) => return field.refuse(what),
        };
        let program = words.next().filter(|program| !program.is_empty());
        let program = program.or_else(|| field.refuse(COMMAND))?;
        return Some(AppCommand { program, arguments: words.collect() });
    }
    let words = field.items(COMMAND)?;
    let program = words.first()?.parse_if("the program to run", |program: &String| !program.is_empty());
    let arguments: Vec<Option<String>> = words.iter().skip(1).map(|it| it.parse("a string")).collect();
    Some(AppCommand { program: program?, arguments: arguments.into_iter().collect::<Option<_>>()? })
}

fn env(field: &Field<'_>) -> Option<BTreeMap<String, String>> {
    let variable = |(name, it): &(&str, Field<'_>)| match *name {
        "PORT" => it.blame("Rouse sets this itself: use the app's key port"),
        "HOST" => it.blame("Rouse sets this itself"),
        _ if name.is_empty() || name.contains(['=', '\0']) => {
            it.blame("not a variable's name: it may not be empty, and has no =")
        }
        _ => Some(((*name).to_owned(), it.parse("a string, \"\" for an empty one")?)),
    };
    let variables = field.entries("an object of variables, like {GREETING: hi}")?;
    Some(variables.iter().filter_map(variable).collect())
}

/// The app's hosts and paths. Reports a pair of them that another app has too.
fn ways_in(
    app: &Section<'_>,
    name: Option<&AppName>,
    place: &FieldPlace,
    routes: &mut Once<Route>,
) -> (Vec<HostPattern>, Vec<PathPrefix>) {
    let (mut hosts_seen, mut paths_seen) = (Once::default(), Once::default());
    let own = name.map(|name| (HostPattern::Exact(format!("{name}.localhost")), place.clone()));
    let hosts = app.or("hosts", own.into_iter().collect(), |it| {
        let host = |it: &Field<'_>| Some((it.once(it.parse(HOST)?, &mut hosts_seen)?, it.place().clone()));
        it.each("a list of hosts, like [shop.localhost]", host)
    });
    let root = "/".parse().into_iter().collect();
    let paths: Vec<PathPrefix> = app.or("paths", root, |it| {
        it.each("a list of paths, like [/shop]", |it| it.once(it.parse(PATH)?, &mut paths_seen))
    });
    for (host, place) in &hosts {
        let mut claims: Vec<_> = paths
            .iter()
            .filter_map(|path| Some((path, routes.claim((host.clone(), path.clone()), place)?)))
            .collect();
        // Report one pair for each host: more would repeat the problem.
        if let Some((path, first)) = claims.pop() {
            app.tell(place, format!("{host}{path} leads to two apps: {first} has it already"));
        }
    }
    (hosts.into_iter().map(|(host, _)| host).collect(), paths)
}

/// The readiness probe, and its interval once the pod is ready.
fn readiness(field: &Field<'_>) -> Option<(Readiness, HumanDuration)> {
    match field.value() {
        Value::Text(text) if &**text == "tcp" => Some((Readiness::Tcp, PROBE_INTERVAL)),
        Value::Map(_) => question(field),
        _ => field.refuse(READINESS),
    }
}

fn question(field: &Field<'_>) -> Option<(Readiness, HumanDuration)> {
    let how = field.section(&["http", "grpc", "interval"])?;
    let interval = how.or("interval", PROBE_INTERVAL, |it| it.duration(SHORTEST_INTERVAL..=LONGEST));
    let readiness = match (how.get("http"), how.get("grpc")) {
        (Some(http), None) => {
            http.parse_if(PROBE_PATH, |path: &String| is_probe_path(path)).map(Readiness::Http)
        }
        (None, Some(grpc)) => grpc.parse(GRPC).map(Readiness::Grpc),
        (None, None) if how.get("interval").is_some() => Some(Readiness::Tcp),
        // Only unknown keys, which are reported already.
        (None, None) if !how.is_empty() => None,
        _ => field.refuse(READINESS),
    };
    Some((readiness?, interval))
}

/// True if a request line can contain the path.
fn is_probe_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

fn scale(scale: &Section<'_>) -> Option<AppScale> {
    let defaults = ScaleSettings::default();
    let max = scale.get("max").map_or(Some(3), |it| it.whole(1..=MOST_PODS));
    let idle = idle_policy(scale);
    let settings = ScaleSettings {
        min: scale.or("min", 0, |it| it.whole(0..=MOST_PODS)),
        // While max is wrong, min cannot be compared with it.
        max: max.unwrap_or(MOST_PODS),
        concurrency: Some(scale.or("target", 10.0, |it| it.parse("a number, like 10 or 0.5"))),
        limit: scale.or("limit", 0, |it| it.whole(0..=MOST_REQUESTS)),
        idle_after: scale
            .or("idle-after", idle.default_idle_after().into(), |it| it.duration(SHORTEST..=LONGEST))
            .get(),
        idle,
        schedule: scale.or("schedule", Schedule::default(), schedule),
        ..defaults
    };
    let refused = match AppScale::try_from(settings) {
        Ok(scale) => return Some(scale),
        Err(BadPolicy(refused)) => refused,
    };
    for bad in refused {
        // The core's `concurrency` is called `target` in the file.
        let key = if bad.field == "concurrency" { "target" } else { bad.field };
        scale.refuse(key, &bad.allowed);
    }
    None
}

fn idle_policy(scale: &Section<'_>) -> IdlePolicy {
    // `None`: the value is wrong, and reported already.
    let learns = scale.get("idle").map_or(Some(false), |it| match it.text(IDLE)? {
        "fixed" => Some(false),
        "learned" => Some(true),
        _ => it.refuse(IDLE),
    });
    let cost = scale.or("cold-start-cost", DEFAULT_COLD_START_COST.into(), |it| {
        let cost = it.duration(SHORTEST_COST..=LONGEST)?;
        if learns == Some(false) {
            it.blame("this has a meaning only with idle: learned")
        } else {
            Some(cost)
        }
    });
    match learns {
        Some(true) => IdlePolicy::Learned { cold_start_cost: cost.get() },
        _ => IdlePolicy::Fixed,
    }
}

fn schedule(field: &Field<'_>) -> Option<Schedule> {
    match field.text(SCHEDULE)?.parse() {
        Ok(schedule) => Some(schedule),
        Err(BadSchedule { part, what }) => field.blame(format!("{part:?}: {what}: {SCHEDULE}")),
    }
}

fn timeouts(timeouts: &Section<'_>) -> AppTimeouts {
    let span = |key, default, least| timeouts.or(key, default, |it| it.duration(least..=LONGEST));
    AppTimeouts {
        readiness: span("readiness", HumanDuration::secs(30), ZERO).limit(),
        request: span("request", ZERO, ZERO).limit(),
        response_header: span("response-header", HumanDuration::secs(300), ZERO).limit(),
        connect: span("connect", HumanDuration::millis(500), SHORTEST).get(),
    }
}
