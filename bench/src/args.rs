//! The command line: the measurements, and the hidden subcommands that they start as processes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Benchmarks of Rouse and other proxies: CPU and memory per request, and cold start latency
#[derive(Debug, Parser)]
#[command(name = "rouse-bench", version)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Cold start latency of `rouse up`, counted from the moment at which the app listens
    ColdStart(ColdStart),
    /// CPU and system calls per request of Rouse and its peers, and memory of idle connections
    Proxy(Proxy),
    /// CPU per request of Rouse as routes, services and endpoints grow in number
    Growth(Growth),
    /// System calls and allocations per request of Rouse
    Counts(Common),
    /// Cold start latency on a real cluster, through Rouse and KEDA HTTP add-on
    ClusterColdStart(ClusterColdStart),
    /// How fast a gateway syncs with a large cluster and applies a change, and its memory
    ClusterSize(ClusterSize),
    /// What idle and busy services cost a controller, and how fast a held request scales its workload
    ClusterScaling(ClusterScaling),
    /// How fast, and with how many writes, the slices of a service with many pods follow its pods
    ClusterSlices(ClusterSlices),
    /// An app that answers with the moment at which it began to listen, after a given delay
    #[command(hide = true)]
    App,
    /// Becomes an nginx that answers / with 1 KiB and /large with 1 MiB (HOST, PORT)
    #[command(hide = true)]
    Upstream(Upstream),
    /// Answers the same over HTTP/2 without TLS (HOST, PORT)
    #[command(hide = true)]
    UpstreamH2c,
    /// A minimal proxy, as a lower bound of the cost
    #[command(hide = true)]
    Forward(Forward),
    /// Sends requests, each over a new connection
    #[command(hide = true)]
    Connect(Connect),
    /// The controller of slices alone
    #[command(hide = true)]
    SliceController(SliceControllerRole),
    /// Rouse's data plane alone, with a given number of routes, services and endpoints
    #[command(hide = true)]
    DataPlane(DataPlane),
}

/// The options of every measurement.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The `rouse` binary to measure [default: `rouse` in the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) rouse: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    #[default]
    Text,
    /// All measured values
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ColdStart {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Cold starts per delay
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// How long the app takes to listen, in milliseconds
    #[arg(long, value_delimiter = ',', default_value = "0,300")]
    pub(crate) delay_ms: Vec<u64>,
    /// The most starts with `curl --retry` for comparison; each takes a second or more
    #[arg(long, value_name = "COUNT", default_value = "10")]
    pub(crate) retries: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterColdStart {
    #[command(flatten)]
    pub(crate) common: Common,
    /// An administrator's kubeconfig of a cluster that has the image localhost/hello:1
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// The address of KEDA's interceptor, installed by e2e/cluster/keda [default: without KEDA]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) keda: Option<SocketAddr>,
    /// Also measure pods with the sidecar, from this image [default: without push]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) push: Option<String>,
    /// The address of this machine that pods reach, where they register
    #[arg(long, value_name = "IP", default_value = "10.99.0.254")]
    pub(crate) push_address: String,
    /// Cold starts per mode; the modes alternate
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterSize {
    #[command(flatten)]
    pub(crate) common: Common,
    /// An administrator's kubeconfig; a control plane alone is enough
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// Number of services
    #[arg(long, default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) services: u32,
    /// Endpoints per service
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) endpoints: u32,
    /// Number of measured endpoint changes
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) changes: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterScaling {
    #[command(flatten)]
    pub(crate) common: Common,
    /// An administrator's kubeconfig; a control plane alone is enough
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// Number of services
    #[arg(long, default_value = "10000", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) services: u32,
    /// How many of them have a pod, and are reported each second
    #[arg(long, default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) busy: u32,
    /// Number of measured wakes
    #[arg(long, default_value = "300", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) wakes: u32,
    /// How long costs are measured, in seconds
    #[arg(long, default_value = "30", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterSlices {
    /// An administrator's kubeconfig; a control plane alone is enough
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
    /// Number of pods of the service
    #[arg(long, default_value = "5000", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) pods: u32,
    /// Number of measured changes of single pods
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) changes: u32,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Args)]
pub(crate) struct SliceControllerRole {
    /// An administrator's kubeconfig
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Measurements of each proxy under each load
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: u32,
    /// Requests per run, in percent of the default; fewer are faster and less precise
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) requests: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Proxy {
    #[command(flatten)]
    pub(crate) matrix: Matrix,
    /// Only these peers, by the beginning of their names; Rouse is always included
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Only these loads, by the beginning of their names
    #[arg(long, value_name = "NAMES", value_delimiter = ';')]
    pub(crate) scenes: Vec<String>,
    /// Another build of `rouse` to measure in the same run, to compare two versions
    #[arg(long, value_name = "FILE")]
    pub(crate) baseline: Vec<PathBuf>,
    /// Write a chart of the result to this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Folder for downloaded tools [default: ~/.cache/rouse/tools]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tools: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Growth {
    #[command(flatten)]
    pub(crate) matrix: Matrix,
}

#[derive(Debug, Args)]
pub(crate) struct Upstream {
    /// The nginx binary
    #[arg(long)]
    pub(crate) nginx: PathBuf,
    /// Folder for its files
    #[arg(long)]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Forward {
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    #[arg(long)]
    pub(crate) upstream: SocketAddr,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Connect {
    #[arg(long)]
    pub(crate) address: SocketAddr,
    #[arg(long)]
    pub(crate) host: String,
    /// Total number of requests
    #[arg(long)]
    pub(crate) count: u32,
    /// Concurrent requests
    #[arg(long)]
    pub(crate) at_once: u32,
    /// Use TLS 1.3, with this handshake for each connection
    #[arg(long, value_enum, requires = "certificate")]
    pub(crate) handshake: Option<Handshake>,
    /// The certificate that the server must present
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
}

/// The kind of TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Handshake {
    /// With the certificate and a signature
    Full,
    /// With a ticket of the previous connection
    Resumed,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DataPlane {
    /// The port of every pod; each has its own loopback address
    #[arg(long)]
    pub(crate) port: u16,
    /// Number of routes, each for one host
    #[arg(long)]
    pub(crate) routes: u32,
    /// Number of services behind the routes
    #[arg(long)]
    pub(crate) services: u32,
    /// Endpoints of the service that gets the requests; the others have one each
    #[arg(long)]
    pub(crate) endpoints: u32,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Bench::command().debug_assert();
    }

    #[test]
    fn delays_are_a_list() {
        let bench = Bench::try_parse_from(["rouse-bench", "cold-start", "--delay-ms", "0,20,300"]).unwrap();
        let Command::ColdStart(ask) = bench.command else { unreachable!("it is a cold start") };
        assert_eq!(ask.delay_ms, [0, 20, 300]);
    }
}
