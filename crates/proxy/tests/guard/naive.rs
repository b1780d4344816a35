//! A naive model of the guard: it checks all bytes at once, with strings and lists. The fuzz target uses it, too.

use rouse_proxy::budget::HeadLimits;
use rouse_proxy::downstream::http1_validator::FramingPhase;

/// The expected verdict on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The offset of the first refused byte, and whether it is in a head.
    pub(crate) refused: Option<(usize, bool)>,
    pub(crate) requests: u64,
    /// The phase at the end of the stream; meaningless if it was refused.
    pub(crate) phase: FramingPhase,
}

enum Stop {
    /// The bytes end in this phase.
    End(FramingPhase),
    At(usize, bool),
}

pub(crate) fn judge(bytes: &[u8], limits: HeadLimits) -> Verdict {
    let (mut at, mut requests) = (0, 0);
    if bytes.first() == Some(&0x16) {
        return Verdict { refused: Some((0, true)), requests, phase: FramingPhase::Head };
    }
    loop {
        match message(bytes, at, limits, &mut requests) {
            Ok(end) => at = end,
            Err(Stop::End(phase)) => return Verdict { refused: None, requests, phase },
            Err(Stop::At(at, in_head)) => {
                return Verdict { refused: Some((at, in_head)), requests, phase: FramingPhase::Head };
            }
        }
    }
}

/// The line at `at` without its CRLF, and where the next begins.
fn line(bytes: &[u8], at: usize, cap: usize, phase: FramingPhase) -> Result<(&[u8], usize), Stop> {
    let in_head = phase != FramingPhase::Body;
    for (offset, byte) in bytes[at..].iter().enumerate() {
        if offset >= cap {
            return Err(Stop::At(at + offset, in_head));
        }
        if *byte == b'\n' {
            let line = &bytes[at..at + offset];
            let good = line.ends_with(b"\r") && !line[..line.len() - 1].contains(&b'\r');
            let good = good.then(|| (&line[..line.len() - 1], at + offset + 1));
            return good.ok_or(Stop::At(at + offset, in_head));
        }
    }
    let rest = &bytes[at..];
    Err(Stop::End(if phase == FramingPhase::Between && !(rest.is_empty() || rest == b"\r") {
        FramingPhase::Head
    } else {
        phase
    }))
}

fn message(bytes: &[u8], mut at: usize, limits: HeadLimits, requests: &mut u64) -> Result<usize, Stop> {
    let cap = limits.head.min(limits.line + 2);
    let (mut first, mut next) = line(bytes, at, cap, FramingPhase::Between)?;
    if first.is_empty() {
        at = next;
        (first, next) = line(bytes, at, cap, FramingPhase::Between)?;
    }
    let request = request_line(first).ok_or(Stop::At(next - 1, true))?;
    let mut headers = Vec::new();
    loop {
        let (text, end) = line(bytes, next, limits.head - (next - at), FramingPhase::Head)?;
        next = end;
        if text.is_empty() {
            break;
        }
        headers.push(header(text).ok_or(Stop::At(next - 1, true))?);
        if headers.len() > limits.headers || !agree(&request, &headers) {
            return Err(Stop::At(next - 1, true));
        }
    }
    let all =
        |name: &str| headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.clone()).collect::<Vec<_>>();
    if request.new && all("host").is_empty() {
        return Err(Stop::At(next - 1, true));
    }
    *requests += 1;
    if request.method == "CONNECT" {
        return Err(if next < bytes.len() { Stop::At(next, true) } else { Stop::End(FramingPhase::Between) });
    }
    let words = |value: &String| value.split(',').map(|word| word.trim().to_lowercase()).collect::<Vec<_>>();
    let asked = all("connection").iter().flat_map(words).any(|word| word == "upgrade");
    let other = |value: &String| !words(value).iter().any(|word| word == "h2c" || word.starts_with("h2c/"));
    let end = if all("transfer-encoding").is_empty() {
        let length: u64 = all("content-length").first().map_or(0, |length| length.parse().unwrap());
        let there = (bytes.len() - next) as u64;
        if there < length {
            return Err(Stop::End(FramingPhase::Body));
        }
        next + usize::try_from(length).unwrap()
    } else {
        chunks(bytes, next, limits)?
    };
    let switches = request.new && asked && all("upgrade").first().is_some_and(other);
    if switches { Err(Stop::End(FramingPhase::Opaque)) } else { Ok(end) }
}

fn chunks(bytes: &[u8], mut at: usize, limits: HeadLimits) -> Result<usize, Stop> {
    loop {
        let (text, next) = line(bytes, at, limits.extension + 18, FramingPhase::Body)?;
        let size = chunk_size(text, limits).ok_or(Stop::At(next - 1, false))?;
        at = next;
        if size == 0 {
            break;
        }
        if ((bytes.len() - at) as u64) < size {
            return Err(Stop::End(FramingPhase::Body));
        }
        at += usize::try_from(size).unwrap();
        for expected in *b"\r\n" {
            match bytes.get(at) {
                None => return Err(Stop::End(FramingPhase::Body)),
                Some(byte) if *byte == expected => at += 1,
                Some(_) => return Err(Stop::At(at, false)),
            }
        }
    }
    let (begin, mut count) = (at, 0);
    loop {
        let (text, next) = line(bytes, at, limits.trailers - (at - begin), FramingPhase::Body)?;
        at = next;
        if text.is_empty() {
            return Ok(at);
        }
        count += 1;
        let name = header(text).map(|(name, _)| name).ok_or(Stop::At(at - 1, false))?;
        if count > limits.headers || ["host", "content-length", "transfer-encoding"].contains(&&*name) {
            return Err(Stop::At(at - 1, false));
        }
    }
}

fn chunk_size(text: &[u8], limits: HeadLimits) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let (size, extension) = text.split_at(text.find(';').unwrap_or(text.len()));
    let good = size.chars().all(|c| c.is_ascii_hexdigit()) && (1..=16).contains(&size.len());
    let visible = extension.chars().all(|c| c == '\t' || c == ' ' || c.is_ascii_graphic());
    let size = u64::from_str_radix(size, 16).ok()?;
    (good && visible && extension.len() <= limits.extension && size < 1 << 63).then_some(size)
}

struct Request {
    method: String,
    new: bool,
    authority: Option<String>,
}

fn token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

fn request_line(text: &[u8]) -> Option<Request> {
    let text = str::from_utf8(text).ok()?;
    let [method, target, version] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let new = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return None,
    };
    if !token(method) || target.is_empty() || !target.chars().all(|c| c.is_ascii_graphic() && c != '#') {
        return None;
    }
    let lower = target.to_lowercase();
    let authority = if method == "CONNECT" {
        let port = target.rsplit(':').next()?;
        if !host(target) || port.len() == target.len() || port.contains(']') {
            return None;
        }
        None
    } else if target.starts_with('/') || (method == "OPTIONS" && target == "*") {
        None
    } else {
        let rest = lower.strip_prefix("http://").or_else(|| lower.strip_prefix("https://"))?;
        let authority = rest.split(['/', '?']).next()?;
        Some(authority.to_owned()).filter(|authority| host(authority))?.into()
    };
    Some(Request { method: method.to_owned(), new, authority })
}

fn host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (text, None),
    };
    let digits = |port: &str| {
        port.chars().all(|c| c.is_ascii_digit()) && port.len() <= 5 && port.parse::<u16>().is_ok()
    };
    if !port.is_none_or(digits) {
        return false;
    }
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// A header's name in lower case and its value, each byte as a character.
fn header(text: &[u8]) -> Option<(String, String)> {
    let text: String = text.iter().map(|byte| char::from(*byte)).collect();
    let (name, value) = text.split_once(':')?;
    let good = value.bytes().zip(value.chars()).all(|(_, c)| c == '\t' || !(c < ' ' || c == '\x7f'));
    (token(name) && good).then(|| (name.to_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
}

/// Whether the headers so far are consistent.
fn agree(request: &Request, headers: &[(String, String)]) -> bool {
    let all = |name: &str| headers.iter().filter(|(n, _)| n == name).map(|(_, v)| &**v).collect::<Vec<_>>();
    let (lengths, encodings, hosts) = (all("content-length"), all("transfer-encoding"), all("host"));
    let number = |text: &&str| {
        text.chars().all(|c| c.is_ascii_digit()) && text.parse::<u64>().is_ok_and(|length| length < 1 << 63)
    };
    let same = |text: &&str| request.authority.as_ref().is_none_or(|own| own.eq_ignore_ascii_case(text));
    lengths.len() + encodings.len() <= usize::from(request.method != "CONNECT")
        && lengths.iter().all(number)
        && encodings.iter().all(|text| text.eq_ignore_ascii_case("chunked") && request.new)
        && hosts.len() <= 1
        && hosts.iter().all(|text| host(text) && same(text))
        && all("connection").iter().chain(&all("upgrade")).all(|text| text.is_ascii())
}
