//! The command line: what can be measured, and the hidden parts that the measurements start as processes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// What Rouse costs and how fast it wakes, measured beside its peers
#[derive(Debug, Parser)]
#[command(name = "rouse-bench", version)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// How long the first request waits, counted from when the app listens
    ColdStart(ColdStart),
    /// CPU per request of Rouse and its peers, memory of idle connections, system calls
    Proxy(Proxy),
    /// CPU per request of Rouse as routes, services and endpoints grow in number
    Growth(Growth),
    /// System calls and allocations per request of Rouse
    Counts(Common),
    /// How long the first request waits on a real cluster, through Rouse and KEDA HTTP add-on
    ClusterColdStart(ClusterColdStart),
    /// How fast a gateway knows a large cluster, and a change of it
    ClusterSize(ClusterSize),
    /// An app that says when it listened and starts as slowly as it is told
    #[command(hide = true)]
    App,
    /// Becomes an nginx that answers / with 1 KiB and /large with 1 MiB (HOST, PORT)
    #[command(hide = true)]
    Upstream(Upstream),
    /// Answers the same over HTTP/2 without TLS (HOST, PORT)
    #[command(hide = true)]
    UpstreamH2c,
    /// The least that a proxy can do: bytes there, bytes back
    #[command(hide = true)]
    Forward(Forward),
    /// Sends requests, each over a connection of its own
    #[command(hide = true)]
    Connect(Connect),
    /// Rouse's data plane by itself, as large as it is told
    #[command(hide = true)]
    DataPlane(DataPlane),
}

/// What every measurement takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The product [default: `rouse` beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) rouse: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    #[default]
    Text,
    /// Everything that was measured
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct ColdStart {
    #[command(flatten)]
    pub(crate) common: Common,
    /// How many cold starts for each delay
    #[arg(long, default_value = "50", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) count: u32,
    /// How long the app takes to listen, in milliseconds
    #[arg(long, value_delimiter = ',', default_value = "0,300")]
    pub(crate) delay_ms: Vec<u64>,
    /// How many starts by hand with `curl --retry` at most: each takes a second or more
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
    /// Where KEDA's interceptor is, with its app (e2e/cluster/keda) [default: without KEDA]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) keda: Option<SocketAddr>,
    /// How many cold starts in each way, in turns
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
    /// How many services
    #[arg(long, default_value = "2000", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) services: u32,
    /// How many endpoints each has
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) endpoints: u32,
    /// How many changes are followed
    #[arg(long, default_value = "500", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) changes: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    pub(crate) common: Common,
    /// How often each cell is measured
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(crate) rounds: u32,
    /// How many requests, in percent of the usual: less is faster and coarser
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) requests: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Proxy {
    #[command(flatten)]
    pub(crate) matrix: Matrix,
    /// Only these, by the beginning of their names; Rouse always takes part
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) peers: Vec<String>,
    /// Only these loads, by the beginning of their names
    #[arg(long, value_name = "NAMES", value_delimiter = ';')]
    pub(crate) scenes: Vec<String>,
    /// Where to put a picture of the result
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Where tools that are not part of the system are kept [default: ~/.cache/rouse/tools]
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
    /// nginx
    #[arg(long)]
    pub(crate) nginx: PathBuf,
    /// A folder of its own
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
    /// How many requests in all
    #[arg(long)]
    pub(crate) count: u32,
    /// How many at a time
    #[arg(long)]
    pub(crate) at_once: u32,
    /// Over TLS 1.3, with this handshake each time
    #[arg(long, value_enum, requires = "certificate")]
    pub(crate) handshake: Option<Handshake>,
    /// What the server must show
    #[arg(long, value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
}

/// How a TLS connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Handshake {
    /// With the certificate and a signature
    Full,
    /// With a ticket of the connection before
    Resumed,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DataPlane {
    /// Where every pod listens, each on a loopback address of its own
    #[arg(long)]
    pub(crate) port: u16,
    /// How many routes, each of a host
    #[arg(long)]
    pub(crate) routes: u32,
    /// How many services these lead to
    #[arg(long)]
    pub(crate) services: u32,
    /// How many endpoints the service has that is asked; the others have one each
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
