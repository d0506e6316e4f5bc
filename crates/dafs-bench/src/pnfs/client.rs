//! A process that is a client of a case or a pattern. It tells how far it is, and waits for a word each
//! time.

use super::patterns::Done;
use crate::child::await_word;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The longest wait for a client: the time of gigabytes on a link.
const WORD_SECONDS: i64 = 1800;

/// A client at its node. If dropped early, it ends with its input.
pub(super) struct Client {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("no output")?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Starts all clients at one time, and returns the seconds until the last of them is done.
    pub(super) fn run_together(mut clients: Vec<Self>) -> Result<f64> {
        clients.iter_mut().try_for_each(|client| client.expect("ready"))?;
        let began = Instant::now();
        clients.iter_mut().try_for_each(Self::go)?;
        clients.iter_mut().try_for_each(|client| client.expect("done"))?;
        let seconds = began.elapsed().as_secs_f64();
        clients.into_iter().try_for_each(Self::end)?;
        Ok(seconds)
    }

    pub(super) fn line(&mut self) -> Result<String> {
        await_word(&self.output, WORD_SECONDS)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<()> {
        ensure!(self.line()? == word, "a client has failed");
        Ok(())
    }

    /// Waits until a pattern is done.
    pub(super) fn done(&mut self) -> Result<Done> {
        let line = self.line()?;
        let numbers = line.strip_prefix("done ").and_then(|numbers| numbers.split_once(' '));
        let (bytes, transactions) = numbers.context("a client has failed")?;
        Ok(Done { bytes: bytes.parse()?, transactions: transactions.parse()? })
    }

    pub(super) fn go(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no input")?;
        Ok(input.write_all(b"go\n")?)
    }

    pub(super) fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "a client has failed at the end");
        Ok(())
    }
}
