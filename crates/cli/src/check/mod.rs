//! `rouse check`: surveys a cluster, and prints what keeps `rouse gateway` from working, with the next steps.

mod args;
mod findings;
mod image;
mod report;

use std::borrow::Cow;
use std::time::Duration;

use rouse_daemon::process::time_of_day;
use rouse_kube::client::connect::{Client, connect};
use rouse_kube::survey::{Survey, SurveyScope, survey};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};

pub use args::{CheckArgs, CheckFormat, HELP};
use findings::{Advice, There, judge};
use report::{Outcome, Report};

use crate::CommandError;
use crate::Streams;

/// With `--wait`, the pause between two checks.
const PAUSE: Duration = Duration::from_secs(1);

/// `rouse check`.
pub(crate) fn command(args: &CheckArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| CommandError::Io { what: "cannot start the runtime".to_owned(), error })?;
    let report = runtime.block_on(look(args, streams))?;
    match args.output {
        CheckFormat::Text => report.text(streams.out)?,
        CheckFormat::Json => report.json(streams.out)?,
    }
    match report.count(Outcome::Failure) {
        0 => Ok(()),
        failed => {
            // Flush, so that the error comes after the report.
            streams.out.flush()?;
            Err(CommandError::Failed(format!("{failed} of the checks failed")))
        }
    }
}

/// Checks until nothing fails, or until `--wait` is over.
async fn look(args: &CheckArgs, streams: &mut Streams<'_>) -> Result<Report, CommandError> {
    let advice = advice(args);
    let client = connect(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let deadline = Instant::now() + args.wait.get();
    let mut announced = false;
    loop {
        let report = once(&client, args, &advice).await;
        let failed = report.count(Outcome::Failure);
        if failed == 0 || Instant::now() >= deadline {
            return Ok(report);
        }
        if !announced {
            writeln!(streams.err, "{failed} of the checks fail; checking again for up to {}", args.wait)?;
            announced = true;
        }
        sleep_until(deadline.min(Instant::now() + PAUSE)).await;
    }
}

async fn once(client: &Client, args: &CheckArgs, advice: &Advice) -> Report {
    let wanted = SurveyScope {
        namespace: args.namespace.clone(),
        gateway: args.gateway.clone(),
        account: args.service_account.clone(),
        now: time_of_day(),
    };
    let seen = survey(client, &wanted).await;
    let image = match &seen {
        Ok(Survey { gateway: Ok(Some(_)), .. }) => image::of_gateway(client, &args.gateway).await,
        _ => None,
    };
    judge(&seen, &Advice { there: There { image, ..There::default() }, ..advice.clone() })
}

fn advice(args: &CheckArgs) -> Advice {
    let mut kubectl = "kubectl".to_owned();
    if let Some(kubeconfig) = &args.kubeconfig {
        kubectl = format!("{kubectl} --kubeconfig {}", quoted(&kubeconfig.display().to_string()));
    }
    if let Some(context) = &args.context {
        kubectl = format!("{kubectl} --context {}", quoted(context));
    }
    let there = There::default();
    Advice { kubectl, namespace: args.namespace.clone(), gateway: args.gateway.clone(), there }
}

/// `text` quoted as one word for a shell, in a command that people copy.
fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@=-".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Asked {
        #[command(flatten)]
        args: CheckArgs,
    }

    #[test]
    fn commands_that_people_copy_mean_to_a_shell_what_was_asked() {
        let kubectl = |kubeconfig: &str, context: &str| {
            let words = ["check", "--kubeconfig", kubeconfig, "--context", context];
            advice(&Asked::try_parse_from(words).unwrap().args).kubectl
        };
        assert_eq!(
            kubectl("/home/a_b/.kube/config", "me@c:1=x"),
            "kubectl --kubeconfig /home/a_b/.kube/config --context me@c:1=x"
        );
        assert_eq!(kubectl("my config", "a'; b"), r"kubectl --kubeconfig 'my config' --context 'a'\''; b'");
        assert_eq!(kubectl("$(b)", ""), "kubectl --kubeconfig '$(b)' --context ''");
    }
}
