//! `rouse explain scaling`: how a running controller, or `rouse up`, scales a service, and what its idle policy has learned.

mod text;

use http::{Method, StatusCode};
use rouse_core::endpoint::ServiceId;
use rouse_daemon::admin::ScalingExplanation;

use crate::admin_client::{Client, runtime};
use crate::args::{ExplainScaling, ScalingFormat};
use crate::{CommandError, Streams};

/// Asks it, and prints its answer.
pub(super) fn run(args: &ExplainScaling, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let service: &ServiceId = &args.service;
    let path = format!("/api/v1/scaling/{}/{}", service.namespace(), service.name());
    let answer = runtime()?.block_on(Client::new(args.admin).request(Method::GET, &path, None))?;
    if answer.status == StatusCode::NOT_FOUND {
        let why = answer.error();
        return Err(CommandError::Failed(format!(
            "{why}\n  --admin must be the admin address of a `rouse controller` or of `rouse up`"
        )));
    }
    let body = answer.expect_ok()?;
    if args.output == ScalingFormat::Json {
        streams.out.write_all(&body)?;
        return Ok(writeln!(streams.out)?);
    }
    let reports: Vec<ScalingExplanation> = serde_json::from_slice(&body)
        .map_err(|error| CommandError::Failed(format!("the answer cannot be read: {error}")))?;
    Ok(text::write(streams.out, service, &reports)?)
}
