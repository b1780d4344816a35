//! Tests of the log: formats, filters, and the rate limit of repeated messages.

use std::sync::Mutex;

use serde_json::Value;

use super::*;

/// Keeps what is written.
#[derive(Debug, Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl<'w> MakeWriter<'w> for Paper {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines that `log` writes with this filter.
fn logged(level: &str, format: LogFormat, log: impl FnOnce()) -> Vec<String> {
    let paper = Paper::default();
    let filter = parse(level).unwrap();
    let limit = Arc::new(RateLimit::default());
    let subscriber = subscriber(&filter, format, false, Arc::clone(&limit), paper.clone());
    tracing::subscriber::with_default(subscriber, || {
        log();
        limit.report();
    });
    let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn parse(text: &str) -> Result<LogFilter, String> {
    use rouse_config::settings::SettingKind as _;
    Directives.parse(text, std::path::Path::new(""))
}

#[test]
fn a_json_line_is_an_object_with_time_level_target_message_and_fields() {
    let lines = logged("info", LogFormat::Json, || {
        tracing::warn!(service = "shop/cart", reason = "no \"pods\"\nat all", "cannot be woken");
    });
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let line: Value = serde_json::from_str(line).unwrap();
    for (key, value) in [
        ("level", "WARN"),
        ("message", "cannot be woken"),
        ("service", "shop/cart"),
        ("reason", "no \"pods\"\nat all"),
    ] {
        assert_eq!(line[key], value, "{line}");
    }
    assert!(line["target"].as_str().unwrap().starts_with("rouse_daemon::"), "{line}");
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
    serde_json::from_str::<Value>(&lost_json(7)).unwrap();
}

#[test]
fn a_text_line_has_the_same_parts_and_no_colours_outside_a_terminal() {
    let lines = logged("info", LogFormat::Text, || tracing::info!(pods = 3, "woken"));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains(" INFO rouse_daemon::logging") && line.ends_with("woken pods=3"), "{line}");
    assert!(!line.contains('\u{1b}'), "{line:?}");
}

#[test]
fn filters_choose_levels_of_rouse_and_of_named_libraries() {
    let all = || {
        tracing::debug!("ours");
        tracing::info!(target: "hyper::client", "theirs");
        tracing::warn!(target: "hyper::client", "theirs, and a warning");
    };
    let count = |level: &str| logged(level, LogFormat::Text, all).len();
    for (level, lines) in [
        ("info", 1),
        ("debug", 2),
        ("trace", 2),
        ("warn", 1),
        ("error", 0),
        ("off", 0),
        ("info,rouse_daemon=debug", 2),
        ("off,hyper=info", 2),
        ("debug,hyper=info", 3),
    ] {
        assert_eq!(count(level), lines, "{level}");
    }
}

#[test]
fn a_level_that_does_not_exist_is_refused() {
    for bad in ["", "verbose", "INFO ", "info,rouse", "rouse=loud", "info;debug"] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
    for good in ["info", "off", "warn,rouse_kube=trace", "rouse_daemon::gateway=debug"] {
        assert!(parse(good).is_ok(), "{good:?}");
    }
}

#[test]
fn a_flood_of_one_message_is_suppressed_and_counted() {
    const FLOOD: usize = 10_000;
    let lines = logged("info", LogFormat::Json, || {
        for n in 0..FLOOD {
            tracing::warn!(n, "bad request");
        }
        tracing::warn!("something else");
    });
    let parsed: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| parsed.iter().filter(|line| line["message"] == message).count();
    let shown = of("bad request");
    let suppressed: u64 = parsed.iter().filter_map(|line| line["suppressed"].as_u64()).sum();
    assert!((50..200).contains(&shown), "{shown}");
    assert_eq!(shown + usize::try_from(suppressed).unwrap(), FLOOD);
    assert_eq!(of("something else"), 1, "another message has a limit of its own");
}
