//! Compares what a client sent, the responses it got, and what the pod received.

use crate::pod::Got;
use crate::reader::{Asked, End, Fate, View};

/// One response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// The digest of the request that the pod parsed, if the response is from the pod.
    pub(crate) echo: Option<u64>,
    /// It announces the end of the connection.
    pub(crate) close: bool,
}

/// The outcome of a case.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answers: Vec<Answered>,
    /// Received bytes that are not a response.
    pub(crate) stray: Vec<u8>,
    /// The connection has ended.
    pub(crate) ended: bool,
    /// An expected response did not arrive.
    pub(crate) silent: bool,
    pub(crate) got: Vec<Got>,
}

/// The verdict on a case.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) forwarded: usize,
    /// The rule that was broken, and was enforced.
    pub(crate) refused: Option<&'static str>,
    /// The oddity that was refused although the request is valid.
    pub(crate) stricter: Option<&'static str>,
}

/// Checks that all three agree; the error describes the difference.
pub(crate) fn judge(view: &View, outcome: &Outcome) -> Result<Verdict, String> {
    let mut verdict = Verdict::default();
    if outcome.silent {
        return Err("the client got no response".into());
    }
    if !outcome.stray.is_empty() {
        return Err("the client answers something that is no answer".into());
    }
    let (whole, parts): (Vec<&Got>, Vec<&Got>) = outcome.got.iter().partition(|got| got.whole);
    let (mut whole, mut answers) = (whole.into_iter(), outcome.answers.iter());
    // hyper may end a connection rather than read a body that is not needed.
    let mut may_end = false;
    for asked in &view.asked {
        let Some(answer) = answers.next() else {
            if !(may_end && outcome.ended) {
                return Err(format!("no answer to {}", asked.target.escape_ascii()));
            }
            return nothing_more(whole, &parts).map(|()| verdict);
        };
        if asked.odd.is_some() && answer.status == 400 && answer.echo.is_none() {
            verdict.stricter = asked.odd;
            return last(answers, outcome).and_then(|()| nothing_more(whole, &parts)).map(|()| verdict);
        }
        let wanted = match asked.fate {
            Fate::Forwarded => 200,
            Fate::NoRoute => 404,
            Fate::Tunnel => 405,
        };
        if answer.status != wanted {
            return Err(format!("{} instead of {wanted} for {}", answer.status, asked.target.escape_ascii()));
        }
        if asked.fate == Fate::Forwarded {
            let got = whole.next().ok_or("an answer to something that no pod got")?;
            if answer.echo != Some(digest(&got.method, &got.target, &got.body)) {
                return Err(format!("another's answer to {}", asked.target.escape_ascii()));
            }
            is_same(got, asked)?;
            verdict.forwarded += 1;
        }
        may_end |= asked.fate == Fate::NoRoute && asked.has_body;
    }
    if let Some(got) = whole.next() {
        return Err(format!("the pod got a request that no client sent: {}", got.target.escape_ascii()));
    }
    match &view.end {
        End::Clean => {
            if !may_end && (outcome.ended || outcome.answers.iter().any(|answers| answers.close)) {
                return Err("the connection was ended for nothing".into());
            }
            nothing_more(whole, &parts)?;
        }
        End::Closed => {
            last(answers.clone(), outcome)?;
            nothing_more(whole, &parts)?;
        }
        End::BadHead(rule) => {
            match answers.next() {
                Some(Answered { status: 400..=505, echo: None, .. }) => verdict.refused = Some(rule),
                None if may_end => {}
                answer => return Err(format!("{rule}: {answer:?} instead of a refusal")),
            }
            last(answers.clone(), outcome)?;
            nothing_more(whole, &parts)?;
        }
        End::InHead => {
            only_refusals(answers.as_slice(), 1)?;
            nothing_more(whole, &parts)?;
        }
        End::BadBody(_, part) | End::InBody(part) => {
            let extra = usize::from(part.fate == Fate::NoRoute);
            only_refusals(answers.as_slice(), 1 + extra)?;
            match (&parts[..], part.fate) {
                ([], _) => {}
                ([got], Fate::Forwarded) => is_part(got, part)?,
                _ => return Err("the pod got parts of a request that is not for it".into()),
            }
            if let End::BadBody(rule, _) = &view.end {
                verdict.refused = Some(rule);
            }
            if !outcome.ended {
                return Err("the connection goes on after a body that is not good".into());
            }
        }
    }
    Ok(verdict)
}

fn only_refusals(answers: &[Answered], most: usize) -> Result<(), String> {
    let fits = |answers: &Answered| (400..600).contains(&answers.status) && answers.echo.is_none();
    if answers.len() <= most && answers.iter().all(fits) {
        Ok(())
    } else {
        Err(format!("too many answers: {answers:?}"))
    }
}

fn last<'a>(mut answers: impl Iterator<Item = &'a Answered>, outcome: &Outcome) -> Result<(), String> {
    match answers.next() {
        Some(answers) => Err(format!("one more answer: {answers:?}")),
        None if !outcome.ended => Err("the connection goes on".into()),
        None => Ok(()),
    }
}

fn nothing_more<'a>(whole: impl Iterator<Item = &'a Got>, parts: &[&'a Got]) -> Result<(), String> {
    match whole.chain(parts.iter().copied()).next() {
        None => Ok(()),
        Some(got) => Err(format!("the pod got more than was sent: {}", got.target.escape_ascii())),
    }
}

/// Checks that the pod received exactly the request.
fn is_same(got: &Got, asked: &Asked) -> Result<(), String> {
    is_like(got, asked)?;
    if got.body != asked.body {
        let (got, asked) = (got.body.escape_ascii(), asked.body.escape_ascii());
        return Err(format!("the pod got another body: \"{got}\" instead of \"{asked}\""));
    }
    if let Some((name, _)) = got.trailers.iter().find(|trailer| !asked.trailers.contains(trailer)) {
        return Err(format!("the pod got a trailer that no client sent: {}", name.escape_ascii()));
    }
    Ok(())
}

/// Checks that the pod received a part of the request, and did not treat it as complete.
pub(crate) fn is_part(got: &Got, asked: &Asked) -> Result<(), String> {
    is_like(got, asked)?;
    if got.whole || !asked.body.starts_with(&got.body) {
        return Err(format!("the pod got another part of a body: \"{}\"", got.body.escape_ascii()));
    }
    Ok(())
}

fn is_like(got: &Got, asked: &Asked) -> Result<(), String> {
    for (what, got, asked) in [("method", &got.method, &asked.method), ("target", &got.target, &asked.target)]
    {
        if got != asked {
            return Err(format!(
                "another {what}: {} instead of {}",
                got.escape_ascii(),
                asked.escape_ascii()
            ));
        }
    }
    let mut left = asked.headers.clone();
    let client = got.client.to_string();
    for (name, value) in &got.headers {
        let fits = match &name[..] {
            b"host" | b"x-forwarded-host" => *value == asked.host,
            b"x-forwarded-for" => value == client.as_bytes(),
            b"x-forwarded-proto" => value == b"http",
            b"te" => value == b"trailers",
            b"via" if value == b"1.1 rouse-test" => true,
            b"connection" => asked.upgrade && value == b"upgrade",
            // These frame the body, which is compared as a whole.
            b"content-length" | b"transfer-encoding" => true,
            name if name.starts_with(b"x-rouse-") || name.starts_with(b"x-forwarded-") => false,
            b"forwarded" | b"keep-alive" | b"proxy-connection" => false,
            b"upgrade" if !asked.upgrade => false,
            _ => match left.iter().position(|(other, sent)| (other, sent) == (name, value)) {
                Some(place) => {
                    left.swap_remove(place);
                    true
                }
                None => false,
            },
        };
        if !fits {
            return Err(format!(
                "a header that no client sent: {}: {}",
                name.escape_ascii(),
                value.escape_ascii()
            ));
        }
    }
    Ok(())
}

/// A hash that identifies a request.
pub(crate) fn digest(method: &[u8], target: &[u8], body: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for part in [method, target, body] {
        for byte in part.iter().chain(b"\n") {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    sum
}
