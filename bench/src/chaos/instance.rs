//! A process that checks. It takes commands in lines, and replies in lines.

use std::env;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::held::Uses;
use crate::subjects::BoxError;

/// Its process ends at the end of its input, which is closed when this is dropped.
pub(super) struct Instance {
    process: Child,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

/// What the checks of a section came to, those of the key without leases and those of the key with leases.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    pub(super) exact: Report,
    pub(super) leased: Report,
    /// The uses of permits that are held.
    pub(super) held: Uses,
}

/// What the checks of a key, and of others, came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    /// Of the key that all instances check.
    pub(super) admitted: u64,
    pub(super) failed: u64,
    /// How many checks took longer than the timeout and 5 ms.
    pub(super) late: u64,
    pub(super) checks: u64,
    /// 99.9% of the checks took no longer.
    pub(super) p999: Duration,
    pub(super) slowest: Duration,
    pub(super) resident_kib: u64,
    /// How many checks leases have decided.
    pub(super) by_lease: u64,
    /// How long the process decided without Redis.
    pub(super) alone: Duration,
}

impl Instance {
    pub(super) fn start(url: &str) -> Result<Self, BoxError> {
        let mut process = Command::new(env::current_exe()?)
            .args(["chaos-worker", "--subject", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = process.stdin.take().ok_or("no pipe")?;
        let replies = BufReader::new(process.stdout.take().ok_or("no pipe")?).lines();
        Ok(Self { process, commands, replies })
    }

    /// Checks this key from now on.
    pub(super) async fn begin(&mut self, key: &str) -> Result<(), BoxError> {
        self.send(&format!("begin {key}")).await
    }

    pub(super) async fn end(&mut self) -> Result<Reports, BoxError> {
        self.send("end").await?;
        self.receive().await?.parse()
    }

    /// Reports when Redis decides again.
    pub(super) async fn watch(&mut self) -> Result<(), BoxError> {
        self.send("watch").await
    }

    pub(super) async fn recovered(&mut self) -> Result<(), BoxError> {
        self.receive().await.map(|_| ())
    }

    /// Sends a signal with the shell, because a system call would need unsafe code.
    pub(super) fn signal(&self, name: &str) -> Result<(), BoxError> {
        let pid = self.process.id().ok_or("the worker has ended")?;
        let kill = format!("kill -{name} {pid}");
        let status = std::process::Command::new("sh").args(["-c", &kill]).status()?;
        if status.success() { Ok(()) } else { Err(kill.into()) }
    }

    pub(super) async fn kill(&mut self) -> Result<(), BoxError> {
        Ok(self.process.kill().await?)
    }

    async fn send(&mut self, command: &str) -> Result<(), BoxError> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(())
    }

    async fn receive(&mut self) -> Result<String, BoxError> {
        Ok(self.replies.next_line().await?.ok_or("a worker has ended")?)
    }
}

impl Reports {
    pub(super) fn write(&self) -> String {
        let reports = [self.exact, self.leased].map(|report| report.write()).join(" ");
        format!("{reports} {}", self.held.write())
    }
}

impl Report {
    fn write(&self) -> String {
        let Self { admitted, failed, late, checks, resident_kib, by_lease, .. } = self;
        let [p999, slowest, alone] =
            [self.p999, self.slowest, self.alone].map(|time| time.as_micros());
        format!(
            "{admitted} {failed} {late} {checks} {p999} {slowest} {resident_kib} {by_lease} {alone}"
        )
    }

    fn new(numbers: [u64; 9]) -> Self {
        let [admitted, failed, late, checks, p999, slowest, resident_kib, by_lease, alone] =
            numbers;
        let [p999, slowest, alone] = [p999, slowest, alone].map(Duration::from_micros);
        Self { admitted, failed, late, checks, p999, slowest, resident_kib, by_lease, alone }
    }
}

impl FromStr for Reports {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let (numbers, held) = text.rsplit_once(' ').ok_or("no uses")?;
        let numbers = numbers.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let (exact, leased) = numbers.split_at(numbers.len() / 2);
        match (exact.try_into(), leased.try_into()) {
            (Ok(exact), Ok(leased)) => {
                let (exact, leased) = (Report::new(exact), Report::new(leased));
                Ok(Self { exact, leased, held: held.parse()? })
            }
            _ => Err(format!("not a report: {text}").into()),
        }
    }
}
