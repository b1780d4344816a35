//! Parses a client's bytes by a strict and simple reading of RFC 9112 that shares no code with the gateway.
//!
//! Where the RFC leaves a choice, the reader follows the gateway's rules, and these must be refused: more than one empty
//! line before a request, a list of equal lengths, any coding but `chunked`, white space before a chunk's extension, an
//! absolute target that differs from its Host, a Host that is not a name with an optional port, a Connection or Upgrade
//! beyond ASCII, more than the limits. What the gateway may refuse or forward unchanged has a name in [`Asked::odd`].

use std::net::Ipv6Addr;

/// All that one client sent.
#[derive(Debug)]
pub(crate) struct View {
    /// The complete requests after which the connection continues.
    pub(crate) asked: Vec<Asked>,
    pub(crate) end: End,
}

/// How the stream ends.
#[derive(Debug)]
pub(crate) enum End {
    /// With a complete request. Another may follow.
    Clean,
    /// A request was the last on its connection, whether or not bytes follow.
    Closed,
    /// A head breaks a rule.
    BadHead(&'static str),
    /// A body breaks a rule; its request as far as it is good.
    BadBody(&'static str, Asked),
    /// Before a head was complete.
    InHead,
    /// Before a body was complete; its request as far as received.
    InBody(Asked),
}

/// One request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) method: Vec<u8>,
    /// As a pod must get it.
    pub(crate) target: Vec<u8>,
    pub(crate) host: Vec<u8>,
    pub(crate) headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) fate: Fate,
    /// It requests an upgrade to another protocol.
    pub(crate) upgrade: bool,
    /// The reason why the gateway may refuse it.
    pub(crate) odd: Option<&'static str>,
    /// Its head announces a body, possibly an empty one.
    pub(crate) has_body: bool,
    last: bool,
}

/// What the gateway must do with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Forward it to the pod.
    #[default]
    Forwarded,
    /// No route matches: 404.
    NoRoute,
    /// CONNECT: 405.
    Tunnel,
}

/// Why reading stopped.
enum Stop {
    /// The bytes ran out.
    Short,
    Bad(&'static str),
}

type Read<T> = Result<T, Stop>;

/// Reads a whole stream.
pub(crate) fn read(stream: &[u8]) -> View {
    let (mut rest, mut asked) = (stream, Vec::new());
    loop {
        if rest.is_empty() {
            return View { asked, end: End::Clean };
        }
        let mut request = match head(&mut rest) {
            Ok(request) => request,
            Err(Stop::Short) => return View { asked, end: End::InHead },
            Err(Stop::Bad(rule)) => return View { asked, end: End::BadHead(rule) },
        };
        match body(&mut request, &mut rest) {
            Ok(()) => {}
            Err(Stop::Short) => return View { asked, end: End::InBody(request) },
            Err(Stop::Bad(rule)) => return View { asked, end: End::BadBody(rule, request) },
        }
        let (last, fate) = (request.last, request.fate);
        asked.push(request);
        if fate == Fate::Tunnel {
            // Everything after it is refused, or never read.
            return View { asked, end: End::InHead };
        }
        if last {
            return View { asked, end: End::Closed };
        }
    }
}

/// A line without its CRLF.
fn line<'a>(rest: &mut &'a [u8]) -> Read<&'a [u8]> {
    let lf = rest.iter().position(|byte| *byte == b'\n').ok_or(Stop::Short)?;
    let (line, after) = (&rest[..lf], &rest[lf + 1..]);
    *rest = after;
    match line.split_last() {
        Some((b'\r', line)) => Ok(line),
        _ => Err(Stop::Bad("bare LF")),
    }
}

fn head(rest: &mut &[u8]) -> Read<Asked> {
    let start = *rest;
    let mut first = line(rest)?;
    if first.is_empty() {
        first = line(rest)?;
        if first.is_empty() {
            return Err(Stop::Bad("empty lines"));
        }
    }
    // Before the head is complete, only line ends are checked: the gateway may refuse earlier.
    let mut lines = Vec::new();
    loop {
        match line(rest)? {
            [] => break,
            line => lines.push(line),
        }
    }
    if first.len() > 16 * 1024 && first.iter().take_while(|byte| **byte != b' ').count() > 1000 {
        return Err(Stop::Bad("long method"));
    }
    if first.len() > 16 * 1024 || start.len() - rest.len() > 64 * 1024 || lines.len() > 100 {
        return Err(Stop::Bad("too much"));
    }
    let mut request = Asked::default();
    let (target, old) = request_line(&mut request, first)?;
    for line in lines {
        request.headers.push(field(line)?);
    }
    check_host(&mut request, &target, old)?;
    hops(&mut request, old)?;
    Ok(request)
}

/// The unchanged target, and whether the request is HTTP/1.0.
fn request_line(request: &mut Asked, line: &[u8]) -> Read<(Vec<u8>, bool)> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = parts[..] else { return Err(Stop::Bad("request line")) };
    if !token(method) {
        return Err(Stop::Bad("method"));
    }
    if target.is_empty() || target.iter().any(|byte| !byte.is_ascii_graphic() || *byte == b'#') {
        return Err(Stop::Bad("target"));
    }
    request.method = method.to_vec();
    match version {
        b"HTTP/1.1" => Ok((target.to_vec(), false)),
        b"HTTP/1.0" => Ok((target.to_vec(), true)),
        _ => Err(Stop::Bad("version")),
    }
}

fn field(line: &[u8]) -> Read<(Vec<u8>, Vec<u8>)> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Stop::Bad("folded"));
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Stop::Bad("no colon"))?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !token(name) {
        return Err(Stop::Bad("header name"));
    }
    if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(Stop::Bad("header value"));
    }
    Ok((name.to_ascii_lowercase(), blanks_off(value).to_vec()))
}

/// Checks the host of the request, which decides where it goes.
fn check_host(request: &mut Asked, target: &[u8], old: bool) -> Read<()> {
    let host = match &request.all("host")[..] {
        [] if old => Vec::new(),
        [] => return Err(Stop::Bad("no Host")),
        [host] if is_host(host) => host.clone(),
        [_] => return Err(Stop::Bad("Host")),
        _ => return Err(Stop::Bad("two Hosts")),
    };
    if request.method == b"CONNECT" {
        let framed =
            !request.all("content-length").is_empty() || !request.all("transfer-encoding").is_empty();
        let with_port = is_host(target)
            && target.iter().rev().take_while(|byte| **byte != b']').any(|byte| *byte == b':');
        request.fate = Fate::Tunnel;
        return if with_port && !framed { Ok(()) } else { Err(Stop::Bad("CONNECT")) };
    }
    let (path, host) = match target {
        [b'/', ..] => (target.to_vec(), host),
        b"*" if request.method == b"OPTIONS" => (target.to_vec(), host),
        _ => {
            let text = String::from_utf8_lossy(target).into_owned();
            let (scheme, after) = text.split_once("://").ok_or(Stop::Bad("target form"))?;
            if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
                return Err(Stop::Bad("scheme"));
            }
            let end = after.find(['/', '?']).unwrap_or(after.len());
            let (authority, path) = after.split_at(end);
            if !is_host(authority.as_bytes()) {
                return Err(Stop::Bad("authority"));
            }
            // HTTP/1.0 may omit Host.
            if !(host.is_empty() || host.eq_ignore_ascii_case(authority.as_bytes())) {
                return Err(Stop::Bad("another host"));
            }
            let slash = if path.starts_with('/') { "" } else { "/" };
            (format!("{slash}{path}").into_bytes(), authority.as_bytes().to_vec())
        }
    };
    let path = escaped(&path);
    if !is_uri(&path) {
        request.odd = Some("a target that is no URI");
    }
    let name = String::from_utf8_lossy(&host).to_ascii_lowercase();
    let name = if name.starts_with('[') { &name } else { name.split(':').next().unwrap_or_default() };
    // A route matches a path, and `*` is not one.
    let ours = matches!(name, "cart.test" | "cart.test.") && path != b"*";
    request.fate = if ours { Fate::Forwarded } else { Fate::NoRoute };
    (request.target, request.host) = (path, host);
    Ok(())
}

/// Parses the headers that concern the connection.
fn hops(request: &mut Asked, old: bool) -> Read<()> {
    let (connection, upgrade) = (request.all("connection"), request.all("upgrade"));
    if connection.iter().chain(&upgrade).any(|value| !value.is_ascii()) {
        return Err(Stop::Bad("beyond ASCII"));
    }
    let has = |wanted: &str| connection.iter().any(|value| names(value).iter().any(|name| name == wanted));
    request.last = has("close") || old && !has("keep-alive");
    let h2c = |value: &Vec<u8>| names(value).iter().any(|name| name == "h2c" || name.starts_with("h2c/"));
    if !old && has("upgrade") && upgrade.first().is_some_and(|value| !h2c(value)) {
        (request.upgrade, request.last) = (true, true);
    }
    let (lengths, codings) = (request.all("content-length"), request.all("transfer-encoding"));
    match (&lengths[..], &codings[..]) {
        ([], []) => Ok(()),
        ([_, _, ..], _) => Err(Stop::Bad("two lengths")),
        (_, [_, _, ..]) => Err(Stop::Bad("two codings")),
        ([_], [_]) => Err(Stop::Bad("length and coding")),
        ([length], []) => number(length).map(|_| ()).ok_or(Stop::Bad("length")),
        ([], [_]) if old => Err(Stop::Bad("coding in HTTP/1.0")),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Ok(()),
        ([], [_]) => Err(Stop::Bad("coding")),
    }
}

fn body(request: &mut Asked, rest: &mut &[u8]) -> Read<()> {
    if let [length] = &request.all("content-length")[..] {
        let length = number(length).unwrap();
        request.has_body = true;
        let there = rest.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        request.body = rest[..there].to_vec();
        *rest = &rest[there..];
        return if there as u64 == length { Ok(()) } else { Err(Stop::Short) };
    }
    if request.all("transfer-encoding").is_empty() {
        return Ok(());
    }
    request.has_body = true;
    loop {
        let size = chunk_line(line(rest)?)?;
        if size == 0 {
            break;
        }
        let there = rest.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        request.body.extend_from_slice(&rest[..there]);
        *rest = &rest[there..];
        match rest {
            [b'\r', b'\n', after @ ..] => *rest = after,
            [] | [b'\r'] => return Err(Stop::Short),
            _ => return Err(Stop::Bad("end of a chunk")),
        }
    }
    let start = rest.len();
    loop {
        let line = line(rest)?;
        if start - rest.len() > 16 * 1024 || request.trailers.len() > 100 {
            return Err(Stop::Bad("too much"));
        }
        if line.is_empty() {
            return Ok(());
        }
        let (name, value) = field(line)?;
        if matches!(&name[..], b"content-length" | b"transfer-encoding" | b"host") {
            return Err(Stop::Bad("trailer"));
        }
        request.trailers.push((name, value));
    }
}

fn chunk_line(line: &[u8]) -> Read<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, extension) = line.split_at(digits);
    let plain = |byte: &u8| *byte == b'\t' || *byte == b' ' || byte.is_ascii_graphic();
    if size.is_empty() || size.len() > 16 {
        return Err(Stop::Bad("chunk size"));
    }
    if !extension.is_empty() && extension[0] != b';' || !extension.iter().all(plain) || extension.len() > 256
    {
        return Err(Stop::Bad("chunk extension"));
    }
    let size =
        i64::from_str_radix(&String::from_utf8_lossy(size), 16).map_err(|_| Stop::Bad("chunk size"))?;
    u64::try_from(size).map_err(|_| Stop::Bad("chunk size"))
}

impl Asked {
    /// All values of a header.
    fn all(&self, name: &str) -> Vec<Vec<u8>> {
        let fits = self.headers.iter().filter(|(other, _)| other == name.as_bytes());
        fits.map(|(_, value)| value.clone()).collect()
    }
}

fn token(bytes: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !bytes.is_empty() && bytes.iter().all(fits)
}

fn blanks_off(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(from) = value.iter().position(|byte| !blank(byte)) else { return b"" };
    let to = value.iter().rposition(|byte| !blank(byte)).unwrap();
    &value[from..=to]
}

fn names(list: &[u8]) -> Vec<String> {
    let parts = list.split(|byte| *byte == b',').map(blanks_off);
    parts.map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect()
}

/// A number that also fits a signed integer.
fn number(digits: &[u8]) -> Option<u64> {
    let text = str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok())
}

fn is_host(value: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(value) else { return false };
    let (name, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let Some((address, after)) = inner.split_once(']') else { return false };
            if address.parse::<Ipv6Addr>().is_err() {
                return false;
            }
            ("literal", after)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let named = |label: &str| {
        let fits = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
        (1..=63).contains(&label.len()) && label.chars().all(fits)
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let ported = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.len() <= 5 && port.parse::<u16>().is_ok()
    };
    name.len() <= 253
        && name.split('.').all(named)
        && (port.is_empty() || port.strip_prefix(':').is_some_and(ported))
}

/// The target as forwarded: clients may send bytes that a URI does not allow.
fn escaped(path: &[u8]) -> Vec<u8> {
    let text: String = path.iter().map(|byte| char::from(*byte)).collect();
    let escapes = [('"', "%22"), ('<', "%3C"), ('>', "%3E"), ('`', "%60")];
    escapes.into_iter().fold(text, |text, (from, to)| text.replace(from, to)).into_bytes()
}

/// Whether RFC 3986 allows every byte of a path with its query.
fn is_uri(path: &[u8]) -> bool {
    path.iter().enumerate().all(|(at, byte)| match byte {
        b'%' => path.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit)),
        _ => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?".contains(byte),
    })
}
