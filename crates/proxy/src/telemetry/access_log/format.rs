//! Formats the access log line of a request. Text from clients is escaped: it cannot forge a line or control a terminal.

use std::fmt::Write as _;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use http::Version;

use super::AccessLogEntry;

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// One JSON object.
    #[default]
    Json,
    /// Apache's combined format.
    Combined,
}

/// A text that is not the name of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown access log format {0:?}: expected json or combined")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "json" => Ok(Self::Json),
            "combined" => Ok(Self::Combined),
            _ => Err(UnknownFormat(text.into())),
        }
    }
}

impl Format {
    /// The line of a request that ended at `now`, with a newline.
    pub fn line(self, entry: &AccessLogEntry<'_>, now: SystemTime) -> String {
        let mut line = String::with_capacity(512);
        let time = Time::of(now);
        match self {
            Self::Json => json(&mut line, entry, &time),
            Self::Combined => combined(&mut line, entry, &time),
        }
        line.push('\n');
        line
    }
}

/// Writing to a String cannot fail.
macro_rules! put {
    ($line:expr, $($text:tt)*) => {{ write!($line, $($text)*).ok(); }};
}

fn json(line: &mut String, entry: &AccessLogEntry<'_>, time: &Time) {
    let Time { year, month, day, hour, minute, second, millis, .. } = time;
    put!(line, r#"{{"time":"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z""#);
    put!(line, r#","client":"{}""#, entry.client);
    for (name, text) in [
        ("method", entry.method.as_bytes()),
        ("target", entry.target.as_bytes()),
        ("protocol", protocol(entry.version).as_bytes()),
        ("host", entry.host),
    ] {
        put!(line, r#","{name}":"#);
        quoted(line, text);
    }
    let micros = entry.took.as_micros();
    put!(line, r#","status":{},"bytes":{}"#, entry.status, entry.sent);
    put!(line, r#","seconds":{}.{:06}"#, micros / 1_000_000, micros % 1_000_000);
    for (name, text) in [
        ("user_agent", entry.agent),
        ("referer", entry.referer),
        ("route", entry.route.as_bytes()),
        ("error", entry.error.unwrap_or_default().as_bytes()),
        ("trace_id", entry.trace.unwrap_or_default().as_bytes()),
    ] {
        if !text.is_empty() {
            put!(line, r#","{name}":"#);
            quoted(line, text);
        }
    }
    if let Some(upstream) = entry.upstream {
        put!(line, r#","upstream":"{upstream}""#);
    }
    put!(line, r#","cold_start":{}}}"#, entry.cold_start);
}

/// A JSON string. Bytes that are not UTF-8 become U+FFFD, and characters that a terminal or a careless reader may interpret are
/// escaped.
fn quoted(line: &mut String, text: &[u8]) {
    line.push('"');
    for char in String::from_utf8_lossy(text).chars() {
        match char {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            _ if is_unsafe(char) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    put!(line, "\\u{unit:04x}");
                }
            }
            _ => line.push(char),
        }
    }
    line.push('"');
}

/// Control characters (C0 and C1), line separators, and characters that change the direction of text.
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}')
        || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `host ident user [time] "request" status bytes "referer" "agent"`.
fn combined(line: &mut String, entry: &AccessLogEntry<'_>, time: &Time) {
    let Time { year, month_name, day, hour, minute, second, .. } = time;
    put!(line, "{} - - ", entry.client.ip().to_canonical());
    put!(line, r#"[{day:02}/{month_name}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000] ""#);
    for part in [entry.method, " ", entry.target, " ", protocol(entry.version)] {
        escape(line, part.as_bytes());
    }
    put!(line, r#"" {} "#, entry.status);
    // Apache writes a dash for an empty body.
    if entry.sent == 0 {
        line.push('-');
    } else {
        put!(line, "{}", entry.sent);
    }
    for text in [entry.referer, entry.agent] {
        line.push_str(" \"");
        escape(line, if text.is_empty() { b"-" } else { text });
        line.push('"');
    }
}

/// Escapes like Apache: `\"`, `\\`, and `\xhh` for all that is not printable ASCII.
fn escape(line: &mut String, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' => line.push_str("\\\""),
            b'\\' => line.push_str("\\\\"),
            b' '..=b'~' => line.push(char::from(byte)),
            _ => put!(line, "\\x{byte:02x}"),
        }
    }
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// A date and time in UTC.
#[derive(Debug, PartialEq, Eq)]
struct Time {
    year: u64,
    month: u64,
    month_name: &'static str,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
    millis: u32,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Time {
    /// The date and time of `now`; the epoch if it is before that.
    fn of(now: SystemTime) -> Self {
        let since: Duration = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = since.as_secs();
        // Years that begin in March end with the leap day, and 400 of them always have the same number of days.
        let days = seconds / 86_400 + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            month_name: usize::try_from(month).ok().and_then(|month| MONTHS.get(month - 1)).unwrap_or(&"Jan"),
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
            hour: seconds / 3_600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            millis: since.subsec_millis(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 42)
    }

    fn entry() -> AccessLogEntry<'static> {
        AccessLogEntry {
            client: "192.0.2.7:5555".parse().unwrap(),
            method: "GET",
            target: "/a?b=c",
            version: Version::HTTP_11,
            host: b"cart.test",
            status: 200,
            sent: 5,
            took: Duration::from_micros(1_023_456),
            agent: b"curl/8",
            referer: b"",
            route: "shop/cart",
            upstream: Some("[fd00::1]:8080".parse().unwrap()),
            cold_start: true,
            error: None,
            trace: Some("0af7651916cd43dd8448eb211c80319c"),
        }
    }

    #[test]
    fn a_json_line_has_known_fields_only() {
        assert_eq!(
            Format::Json.line(&entry(), at(1_000_000_000)),
            concat!(
                r#"{"time":"2001-09-09T01:46:40.042Z","client":"192.0.2.7:5555","method":"GET","target":"/a?b=c","#,
                r#""protocol":"HTTP/1.1","host":"cart.test","status":200,"bytes":5,"seconds":1.023456,"#,
                r#""user_agent":"curl/8","route":"shop/cart","trace_id":"0af7651916cd43dd8448eb211c80319c","#,
                r#""upstream":"[fd00::1]:8080","cold_start":true}"#,
                "\n"
            )
        );
        let failed = AccessLogEntry {
            status: 504,
            sent: 0,
            upstream: None,
            trace: None,
            error: Some("readiness_timeout"),
            version: Version::HTTP_2,
            ..entry()
        };
        let line = Format::Json.line(&failed, at(0));
        assert!(
            line.contains(r#""protocol":"HTTP/2.0""#) && line.contains(r#""status":504,"bytes":0"#),
            "{line}"
        );
        assert!(line.contains(r#""error":"readiness_timeout""#) && !line.contains("upstream"), "{line}");
    }

    #[test]
    fn the_combined_format_is_that_of_apache() {
        assert_eq!(
            Format::Combined
                .line(&AccessLogEntry { referer: b"http://x.test/", ..entry() }, at(1_000_000_000)),
            "192.0.2.7 - - [09/Sep/2001:01:46:40 +0000] \"GET /a?b=c HTTP/1.1\" 200 5 \"http://x.test/\" \"curl/8\"\n"
        );
        let bare = AccessLogEntry {
            client: "[::ffff:192.0.2.7]:1".parse().unwrap(),
            sent: 0,
            agent: b"",
            ..entry()
        };
        assert_eq!(
            Format::Combined.line(&bare, at(0)),
            "192.0.2.7 - - [01/Jan/1970:00:00:00 +0000] \"GET /a?b=c HTTP/1.1\" 200 - \"-\" \"-\"\n"
        );
    }

    #[test]
    fn client_text_cannot_forge_a_line_or_control_a_terminal() {
        let evil = "a\"b\\c\r\nd\t\u{1b}[31m\0\u{7f}\u{9b}\u{2028}\u{202e}é";
        let entry = AccessLogEntry {
            method: evil,
            target: evil,
            host: evil.as_bytes(),
            agent: evil.as_bytes(),
            referer: b"\xff\r\n\x1b]0;x\x07\"",
            route: evil,
            trace: Some(evil),
            ..entry()
        };
        for format in [Format::Json, Format::Combined] {
            let line = format.line(&entry, at(0));
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(line.ends_with('\n'));
            let text = line.trim_end_matches('\n');
            assert!(!text.chars().any(|char| char.is_control() || is_unsafe(char)), "{text:?}");
        }
        let json = Format::Json.line(&entry, at(0));
        let spelled = concat!(r#"a\"b\\c\u000d\u000ad\u0009\u001b[31m\u0000\u007f\u009b\u2028\u202e"#, "é");
        assert_eq!(json.matches(spelled).count(), 6, "{json}");
        assert!(json.contains("\"referer\":\"\u{fffd}\\u000d\\u000a\\u001b]0;x\\u0007\\\"\""), "{json}");
        let combined = Format::Combined.line(&entry, at(0));
        assert!(combined.is_ascii(), "{combined}");
        let spelled = r#"a\"b\\c\x0d\x0ad\x09\x1b[31m\x00\x7f\xc2\x9b\xe2\x80\xa8\xe2\x80\xae\xc3\xa9"#;
        assert_eq!(combined.matches(spelled).count(), 3, "{combined}");
        assert!(combined.contains(r#""\xff\x0d\x0a\x1b]0;x\x07\"""#), "{combined}");
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (seconds, year, month, day, hour) in [
            (0, 1970, 1, 1, 0),
            (951_782_400, 2000, 2, 29, 0),
            (951_868_800, 2000, 3, 1, 0),
            (1_709_164_799, 2024, 2, 28, 23),
            (1_709_164_800, 2024, 2, 29, 0),
            (1_735_689_599, 2024, 12, 31, 23),
            (4_107_542_400, 2100, 3, 1, 0),
        ] {
            let time = Time::of(at(seconds));
            assert_eq!((time.year, time.month, time.day, time.hour), (year, month, day, hour), "{seconds}");
        }
        assert_eq!(
            Time::of(SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            Time { millis: 0, ..Time::of(at(0)) }
        );
    }

    #[test]
    fn formats_are_parsed_by_name() {
        assert_eq!("json".parse(), Ok(Format::Json));
        assert_eq!("combined".parse(), Ok(Format::Combined));
        let error = "xml".parse::<Format>().unwrap_err().to_string();
        assert_eq!(error, r#"unknown access log format "xml": expected json or combined"#);
    }
}
