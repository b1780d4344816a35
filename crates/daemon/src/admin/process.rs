//! Metrics of the process (CPU, memory, threads, open files) under the usual names of Prometheus clients, and its version.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry as Metrics;
use rustix::process::{Resource, getrlimit};

/// The unit of times in `/proc/self/stat`. The kernel shows it to processes on all machines that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Exports the metrics of the process at each scrape.
#[derive(Debug)]
pub struct ProcessCollector;

impl ProcessCollector {
    /// Registers the collector in `metrics`.
    pub fn register(metrics: &mut Metrics) {
        metrics.register_collector(Box::new(Self));
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "The version of Rouse that runs; always 1";
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)];
        let mut info = encoder.encode_descriptor("rouse_build_info", help, None, MetricType::Gauge)?;
        info.encode_family(&labels)?.encode_gauge(&1_i64)?;

        // Leave out values that the system does not provide.
        let stat = fs::read_to_string("/proc/self/stat").ok();
        if let Some(stat) = stat.as_deref().and_then(Stat::parse) {
            let help = "Processor time used, in seconds";
            let name = "process_cpu_seconds";
            let mut cpu = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            cpu.encode_counter::<[(&str, &str); 0], _, u64>(&stat.cpu_seconds, None)?;
            gauge(&mut encoder, "process_threads", "Threads", &stat.threads)?;
            if let Some(boot) = boot_seconds() {
                let help = "When the process started, in seconds since 1970";
                gauge(&mut encoder, "process_start_time_seconds", help, &(boot + stat.started_after_boot))?;
            }
        }
        if let Some(bytes) = resident_bytes() {
            gauge(&mut encoder, "process_resident_memory_bytes", "Resident memory", &bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // Reading the folder opens one more descriptor.
            let count = i64::try_from(open.count()).unwrap_or(i64::MAX).saturating_sub(1);
            gauge(&mut encoder, "process_open_fds", "Open file descriptors", &count)?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            gauge(&mut encoder, "process_max_fds", "How many file descriptors may be open", &most)?;
        }
        Ok(())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(value)
}

/// The exported fields of `/proc/self/stat`.
struct Stat {
    cpu_seconds: f64,
    threads: i64,
    started_after_boot: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name may have spaces and brackets of its own. The first field after it is the third: see proc(5).
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number.checked_sub(3)?).copied();
        let seconds = |number: usize| Some(field(number)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
        Some(Self {
            cpu_seconds: seconds(14)? + seconds(15)?,
            threads: field(20)?.parse().ok()?,
            started_after_boot: seconds(22)?,
        })
    }
}

/// When the machine was started, in seconds since 1970.
fn boot_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

fn resident_bytes() -> Option<i64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))?;
    kib.trim().parse::<i64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let rest = "S 1 2 2 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 1234 10000000 300";
        let stat = Stat::parse(&format!("42 (a) b (c) {rest}")).unwrap();
        assert_eq!((stat.cpu_seconds, stat.threads, stat.started_after_boot), (3.0, 7, 12.34));
        assert!(Stat::parse("42 (rouse) S 1").is_none());
    }
}
