//! The life cycle of a pod process: start, output, stop, exit.

use std::error::Error as _;
use std::fs::File;
use std::io::BufRead as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{GENEROUS, HELPER, eventually, exit_of, helper, run, run_until_up, spawn, start, texts};
use rouse_local::output::{AppLog, Batch, LONGEST_LINE, LogFile, Stream};
use rouse_local::process::{Exit, ExitStatus, Launcher, Process, ProcessState, Start};
use tokio::time::Instant;

#[tokio::test]
async fn how_a_pod_ended_is_told() {
    let cases = [
        ("exit 0", ExitStatus::Code(0), "exited with code 0"),
        ("exit 3", ExitStatus::Code(3), "exited with code 3"),
        ("exit 255", ExitStatus::Code(255), "exited with code 255"),
        ("kill -SEGV $$$$", ExitStatus::Signal(11), "was killed by SIGSEGV"),
        ("kill -KILL $$$$", ExitStatus::Signal(9), "was killed by SIGKILL"),
        ("kill -USR1 $$$$", ExitStatus::Signal(10), "was killed by signal 10"),
    ];
    for (script, how, text) in cases {
        let (process, _log) = run(script).await;
        let exit = exit_of(&process).await;
        assert_eq!(exit, Exit { how: Some(how), by_us: false }, "{script}");
        assert_eq!((exit.to_string().as_str(), process.state()), (text, ProcessState::Exited(exit)));
    }
}

#[tokio::test]
async fn a_stop_asks_first_and_lets_the_pod_finish() {
    let (process, log) = run_until_up(&helper("polite")).await;
    assert_eq!(process.state(), ProcessState::Running);
    process.stop(GENEROUS);
    assert!(matches!(process.state(), ProcessState::Stopping | ProcessState::Exited(_)));
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Code(7)), by_us: true });
    assert_eq!(texts(&log), ["up", "asked", "bye"]);
}

#[tokio::test]
async fn a_stop_kills_after_the_grace_and_not_before() {
    let (process, _log) = run_until_up(&helper("deaf")).await;
    let before = Instant::now();
    process.stop(Duration::from_millis(300));
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Signal(9)), by_us: true });
    assert!(before.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn a_second_stop_can_shorten_the_grace_but_not_lengthen_it() {
    let deaf = helper("deaf");
    let killed = Exit { how: Some(ExitStatus::Signal(9)), by_us: true };
    let (process, log) = run_until_up(&deaf).await;
    process.stop(Duration::MAX);
    eventually("it was asked", || texts(&log).contains(&"asked".to_owned())).await;
    process.stop(Duration::ZERO);
    assert_eq!(exit_of(&process).await, killed);
    assert_eq!(texts(&log).iter().filter(|text| *text == "asked").count(), 1, "it is asked once");

    let (process, _log) = run_until_up(&deaf).await;
    process.stop(Duration::from_millis(50));
    process.stop(Duration::from_hours(1));
    assert_eq!(exit_of(&process).await, killed);
}

#[tokio::test]
async fn a_stop_waits_for_the_server_behind_a_shell_that_dies_at_once() {
    let (process, log) = run_until_up(&format!("{HELPER} polite & wait")).await;
    process.stop(GENEROUS);
    assert_eq!(exit_of(&process).await, Exit { how: Some(ExitStatus::Signal(15)), by_us: true });
    assert_eq!(texts(&log), ["up", "asked", "bye"]);
}

#[tokio::test]
async fn the_command_gets_its_address_environment_and_folder() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap();
    let script = "echo \"$0 $1\"; printenv PORT HOST GREETING ROUSE_POD_UID; pwd";
    let start = start(&["sh", "-c", script, "$PORT", "at-${HOST}"], &here);
    let (address, log) = (start.address.address(), Arc::clone(&start.log));
    let process = spawn(start).await.unwrap();
    exit_of(&process).await;
    let (port, host) = (address.port().to_string(), address.ip().to_string());
    let (uid, here) = (process.uid().as_str(), here.to_str().unwrap());
    let expected = [&format!("{port} at-{host}"), &port, &host, "hi", uid, here];
    assert_eq!(texts(&log), expected);
    assert_eq!((process.address(), process.name().as_ref()), (address, "app-1"));
}

#[tokio::test]
async fn the_output_is_complete_when_the_pod_is_gone() {
    let script = "echo one; echo two >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; printf '\\377partial'";
    let (process, log) = run(script).await;
    exit_of(&process).await;
    let of = |stream| log.tail().into_iter().filter(move |line| line.stream == stream).map(|line| line.text);
    let stdout: Vec<_> = of(Stream::Stdout).collect();
    assert_eq!(stdout.len(), 4, "{stdout:?}");
    assert_eq!((&*stdout[0], &*stdout[3]), ("one", "\u{fffd}partial"));
    assert_eq!((stdout[1].len(), stdout[2].len()), (LONGEST_LINE, 20_000 - LONGEST_LINE));
    assert_eq!(of(Stream::Stderr).collect::<Vec<_>>(), ["two".into()]);
    assert!(log.tail().iter().all(|line| &*line.pod == "app-1"));
}

/// Runs a command as a pod with this log.
async fn run_logged(log: &Arc<AppLog>, argv: &[&str]) -> Process {
    spawn(Start { log: Arc::clone(log), ..start(argv, Path::new("/")) }).await.unwrap()
}

/// A log with a file in `folder`.
fn log_in(folder: &Path, keep: usize) -> Arc<AppLog> {
    AppLog::with_file(keep, Some(LogFile::open(folder, "app").unwrap()))
}

/// A log in `folder` on a simulated slow disk: it takes 64 KiB, and more when the returned end is read.
fn log_on_slow_disk(folder: &Path, keep: usize) -> (Arc<AppLog>, File) {
    let path = folder.join("app.log");
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let disk = File::options().read(true).write(true).open(&path).unwrap();
    (log_in(folder, keep), disk)
}

#[tokio::test]
async fn a_pod_that_prints_without_end_is_not_held_up_by_a_slow_follower() {
    let log = AppLog::new(10_000);
    let mut slow = log.follow();
    let process = run_logged(&log, &["sh", "-c", "seq 1 20000; exit 4"]).await;
    assert_eq!(exit_of(&process).await.how, Some(ExitStatus::Code(4)));
    let kept = texts(&log);
    assert!((100..200).contains(&kept.len()) && kept.last().unwrap() == "20000", "{kept:?}");
    let Batch { missed, lines } = slow.next().await.unwrap();
    assert_eq!((usize::try_from(missed).unwrap(), lines.len()), (20_000 - kept.len(), kept.len()));
}

#[tokio::test]
async fn a_pod_waits_for_a_slow_disk_and_no_line_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (log, disk) = log_on_slow_disk(folder.path(), 1000);
    let process = run_logged(&log, &["seq", "1", "100000"]).await;
    let read = tokio::task::spawn_blocking(move || {
        let lines = std::io::BufReader::new(disk).lines().map(Result::unwrap);
        let mut all = Vec::new();
        for line in lines {
            all.push(line.strip_prefix("app-1 | ").unwrap().parse::<usize>().unwrap());
            if all.last() == Some(&100_000) {
                break;
            }
        }
        all
    });
    let all = tokio::time::timeout(GENEROUS, read).await.expect("every line comes").unwrap();
    assert_eq!(all, (1..=100_000).collect::<Vec<_>>());
    assert_eq!(exit_of(&process).await.how, Some(ExitStatus::Code(0)));
}

#[tokio::test]
async fn output_that_a_stuck_disk_does_not_take_is_missed_visibly() {
    let folder = tempfile::tempdir().unwrap();
    let (log, disk) = log_on_slow_disk(folder.path(), 1 << 20);
    // More than the disk takes, but less than disk and pipe together, so the pod can end.
    let process = run_logged(&log, &["seq", "1", "15000"]).await;
    assert_eq!(exit_of(&process).await.how, Some(ExitStatus::Code(0)));
    let last = log.tail().pop().unwrap();
    assert_eq!((&*last.pod, last.stream), ("rouse", Stream::Stderr));
    assert_eq!(
        &*last.text,
        "the output of app-1 could not be written within 10s: its last lines may be missing"
    );
    drop(disk);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_told_once_and_holds_up_no_pod() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("app.log")).unwrap();
    let log = log_in(folder.path(), 1 << 20);
    let process = run_logged(&log, &["seq", "1", "5000"]).await;
    assert_eq!(exit_of(&process).await.how, Some(ExitStatus::Code(0)));
    assert_eq!(texts(&log).last().unwrap(), "5000");
    let told: Vec<_> = log.tail().into_iter().filter(|line| &*line.pod == "rouse").collect();
    assert!(told.len() == 1 && told[0].text.contains("app.log"), "{told:?}");
}

#[tokio::test]
async fn what_cannot_be_run_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let here = folder.path();
    let gone = here.join("gone");
    let cases: [(&str, &Path, &[&str]); 3] = [
        ("no-such-command", here, &["command not found", "\"no-such-command\"", "PATH (/"]),
        ("./script", here, &["\"./script\" could not be run", "#! line", "No such file"]),
        ("sh", &gone, &["working directory", "gone", "does not exist"]),
    ];
    for (program, workdir, words) in cases {
        let start = start(&[program], workdir);
        let uid = start.uid.clone();
        let error = spawn(start).await.unwrap_err();
        let text = format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
        assert!(words.iter().all(|word| text.contains(word)), "{text:?} should say {words:?}");
        assert_eq!(crate::harness::marked(uid.as_str()), []);
    }
    eventually("no zombie is left", || crate::harness::zombies(std::process::id()) == 0).await;
}

#[tokio::test]
async fn a_guardian_that_is_none_is_told() {
    let launcher = Launcher::new("/no/such/rouse", ["guard"]);
    let error = Process::spawn(&launcher, start(&["true"], Path::new("/"))).await.unwrap_err();
    assert_eq!(error.to_string(), "the guardian process /no/such/rouse could not be started");
    let launcher = Launcher::new("/bin/true", ["guard"]);
    let error = Process::spawn(&launcher, start(&["true"], Path::new("/"))).await.unwrap_err();
    assert_eq!(error.to_string(), "the guardian process /bin/true did not report whether the command runs");
}

#[tokio::test]
async fn only_rouse_can_start_a_guardian() {
    let mut command = tokio::process::Command::new(HELPER);
    let output =
        command.args(["guard", "echo", "hi"]).stdin(std::process::Stdio::null()).output().await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), b"".as_slice()));
    assert!(error.contains("only `rouse` itself"), "{error}");
}
