//! An HTTP client of the admin API: one request per connection.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::CommandError;

/// Short: the admin API is on this machine or near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest response body: no list of services is longer.
const LONGEST: usize = 64 << 20;

/// A client of the admin API.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
}

/// A response of the admin API.
#[derive(Debug)]
pub(crate) struct AdminAnswer {
    pub(crate) status: StatusCode,
    body: Bytes,
}

impl AdminAnswer {
    /// The body of a successful response, or the error of another.
    pub(crate) fn expect_ok(self) -> Result<Bytes, CommandError> {
        if self.status.is_success() { Ok(self.body) } else { Err(CommandError::Failed(self.error())) }
    }

    /// The error text of the response.
    pub(crate) fn error(&self) -> String {
        let said = serde_json::from_slice::<Value>(&self.body).ok();
        let said = said.as_ref().and_then(|json| json.get("error")?.as_str());
        said.map_or_else(|| format!("the admin API answered {}", self.status), str::to_owned)
    }
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Sends a request, and waits for the whole response.
    pub(crate) async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<AdminAnswer, CommandError> {
        let whole = async {
            let (response, _connection) = self.send(method, path, body).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LONGEST).collect().await;
            let body = body.map_err(|error| self.broken(&*error))?.to_bytes();
            Ok(AdminAnswer { status, body })
        };
        timeout(ANSWER_TIMEOUT, whole).await.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Writes the text at `path` to `out`: an endless one as it arrives, another when it is complete.
    pub(crate) async fn copy(
        &self,
        path: &str,
        endless: bool,
        out: &mut dyn Write,
    ) -> Result<(), CommandError> {
        let response = timeout(ANSWER_TIMEOUT, self.send(Method::GET, path, None)).await;
        let (response, _connection) = response.unwrap_or_else(|_| Err(self.silent()))?;
        let status = response.status();
        let body = response.into_body();
        if !status.is_success() {
            let body = Limited::new(body, LONGEST).collect().await.map_err(|error| self.broken(&*error))?;
            let error = AdminAnswer { status, body: body.to_bytes() }.error();
            let unknown = status == StatusCode::NOT_FOUND;
            return Err(if unknown { CommandError::Input(error) } else { CommandError::Failed(error) });
        }
        if endless { follow(body, out).await } else { Ok(out.write_all(&self.whole(body).await?)?) }
    }

    /// Reads a body to its end. The server resets a connection that is not read, so a slow reader (such as a pager) must come
    /// after this. Not limited: an operator may let the server keep much output.
    async fn whole(&self, mut body: Incoming) -> Result<Vec<u8>, CommandError> {
        let mut text = Vec::new();
        while let Some(frame) = timeout(ANSWER_TIMEOUT, body.frame()).await.map_err(|_| self.silent())? {
            let frame = frame.map_err(|error| self.broken(&error))?;
            text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
        Ok(text)
    }

    /// Sends a request. The connection lasts as long as the returned guard.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
    ) -> Result<(Response<Incoming>, JoinSet<()>), CommandError> {
        let stream = match timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return Err(self.refused()),
            Ok(Err(error)) => return Err(self.broken(&error)),
            Err(_) => return Err(self.silent()),
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // An error is also returned by the request.
            connection.await.ok();
        });
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.address.to_string());
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::<Bytes>::from(body.unwrap_or_default()));
        let request =
            request.map_err(|error| CommandError::Input(format!("cannot request {path}: {error}")))?;
        let response = sender.send_request(request).await.map_err(|error| self.broken(&error))?;
        Ok((response, driver))
    }

    fn refused(&self) -> CommandError {
        CommandError::Failed(format!(
            "nothing listens on {0}: no `rouse up` has its admin API there\n  start one with `rouse up`, or name its \
             admin address with --admin (it prints it as \"admin on http://…\")",
            self.address
        ))
    }

    fn silent(&self) -> CommandError {
        CommandError::Failed(format!(
            "{} does not answer in time: is that the admin address of a `rouse up`? --admin names another",
            self.address
        ))
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> CommandError {
        let mut said = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            said = format!("{said}: {error}");
            source = error.source();
        }
        CommandError::Failed(format!(
            "the request to {} failed: {said}\n  is that the admin address of a `rouse up`? --admin names another",
            self.address
        ))
    }
}

/// Writes a body as it arrives. An error also ends it: `rouse up` was stopped.
async fn follow(mut body: Incoming, out: &mut dyn Write) -> Result<(), CommandError> {
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            out.write_all(data)?;
            out.flush()?;
        }
    }
    Ok(())
}
