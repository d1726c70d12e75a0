//! A process of a benchmark that takes commands in lines, and replies in lines.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::subjects::BoxError;

/// It should end at the end of its input, which is closed when this is dropped.
pub(crate) struct Worker {
    process: Child,
    commands: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a build of the benchmarks with these arguments.
    pub(crate) fn start(build: &Path, args: &[&str]) -> Result<Self, BoxError> {
        let mut process = Command::new(build)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", build.display()))?;
        let commands = process.stdin.take().ok_or("no pipe")?;
        let replies = BufReader::new(process.stdout.take().ok_or("no pipe")?).lines();
        Ok(Self { process, commands, replies })
    }

    pub(crate) async fn send(&mut self, command: &str) -> Result<(), BoxError> {
        self.commands.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(())
    }

    pub(crate) async fn receive(&mut self) -> Result<String, BoxError> {
        Ok(self.replies.next_line().await?.ok_or("a worker has ended")?)
    }

    /// Waits until the process has ended.
    pub(crate) async fn end(mut self) -> Result<(), BoxError> {
        drop(self.commands);
        self.process.wait().await?;
        Ok(())
    }

    pub(crate) async fn ask(&mut self, command: &str) -> Result<String, BoxError> {
        self.send(command).await?;
        self.receive().await
    }
}
