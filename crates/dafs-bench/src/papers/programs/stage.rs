//! A network with a server for programs, and the run of a trial there.

use super::Works;
use super::berkeley::{Task, file_name};
use super::trials::{Door, Trial, Work};
use crate::child::{Process, await_word};
use crate::cpu;
use crate::fronts::Front;
use crate::limit::Limit;
use crate::link::Node;
use crate::papers::cells::Network;
use crate::papers::results::Sample;
use crate::papers::world;
use crate::report;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Bytes of a session's start and end, which cross any network.
const SESSION_BYTES: u64 = 1 << 20;

/// The longest wait for a program, which has less time of its own.
const WORD_SECONDS: i64 = 1000;

/// A network with its server.
pub(super) struct Stage {
    /// The address of the server's files.
    pub(super) url: String,
    host: Ipv4Addr,
    nfs_port: u16,
    /// The folder that the server exports.
    pub(super) export: PathBuf,
    /// An empty folder for mounts.
    point: PathBuf,
    server: Process,
    /// As for the sweep of blocks: none, one, or server and client.
    nodes: Vec<Node>,
}

impl Stage {
    /// Starts the server of a network, with the files that are in `files`.
    pub(super) fn start(
        network: Network,
        megabits: u32,
        folder: &Path,
        files: &Path,
    ) -> Result<Self> {
        let nodes = world::nodes(network, megabits)?;
        let host = world::host(&nodes);
        let folder = folder.join(network.name());
        let (export, point) = (folder.join("export"), folder.join("mount"));
        for each in [&export, &point] {
            std::fs::create_dir_all(each)?;
        }
        for file in std::fs::read_dir(files)? {
            let file = file?;
            std::fs::hard_link(file.path(), export.join(file.file_name()))?;
        }
        let directory = export.to_str().context("the directory's name is not UTF-8")?;
        let server =
            world::start(nodes.first(), &["serve-all", directory, &host.to_string()], &[])?;
        let mut ports = server.address.split(' ');
        let (dafs, nfs) = (ports.next(), ports.next());
        let (dafs, nfs) = dafs.zip(nfs).context("no dafs server")?;
        let nfs_port = nfs.parse()?;
        let transport = if network == Network::Free { "shm" } else { "iwarp" };
        // A program whose server is gone, because the run was killed, ends as well.
        let url = format!("dafs://{host}:{dafs}/?transport={transport}&recovery=0");
        Ok(Self { url, host, nfs_port, export, point, server, nodes })
    }

    /// The node of the clients.
    pub(super) fn node(&self) -> Option<&Node> {
        self.nodes.last()
    }

    /// The address of a file, for commands of libnfs.
    pub(super) fn nfs_url(&self, file: &str) -> String {
        let Self { host, nfs_port: port, .. } = self;
        let options = format!("version=3&nfsport={port}&mountport={port}&autoreconnect=0");
        // Before the last slash stands the directory to mount.
        format!("nfs://{host}//{file}?{options}")
    }

    /// The processor time of the server.
    pub(super) fn server_time(&self) -> Result<Duration> {
        cpu::process_time(Some(self.server.id()))
    }

    /// Runs a trial and checks the way of its bytes.
    pub(super) fn run(
        &self,
        trial: &Trial,
        works: &Works,
        limit: Option<&Limit>,
    ) -> Result<Sample> {
        let is_wide = trial.work == Work::Gzip && trial.step > 1;
        if is_wide {
            // Two processes share all processors with the server.
            cpu::unpin()?;
        }
        let before = limit.map_or_else(Vec::new, Limit::words);
        let crossed_before = self.node().map(Node::crossed).transpose()?;
        let outcome = self.run_through(trial, works, &before);
        if is_wide {
            cpu::pin(0)?;
        }
        let (sample, file_bytes) = outcome?;
        let crossed = self.node().map(Node::crossed).transpose()?;
        let crossed_bytes =
            crossed.zip(crossed_before).map(|(after, before)| after.since(before).to_node);
        check(trial, file_bytes, sample.bytes, crossed_bytes)?;
        Ok(Sample { crossed_bytes, ..Sample::from(sample) })
    }

    /// Runs a trial through its door, which is closed at the end. `before` stands before each command line.
    /// Returns the size of its files as well.
    fn run_through(
        &self,
        trial: &Trial,
        works: &Works,
        before: &[String],
    ) -> Result<(report::Sample, u64)> {
        let front = world::at(self.node(), || match trial.door {
            Door::Run | Door::RunPlain => Front::run(&self.url, before),
            Door::Mount => Front::mount(&self.url, self.point.clone(), before),
            Door::Nfs | Door::Api | Door::Library | Door::Cached => {
                Ok(Front::plain(PathBuf::new()))
            }
        })?;
        self.work(trial, works, &front)
    }

    /// Does the work of a trial. Returns the size of its files as well.
    fn work(&self, trial: &Trial, works: &Works, front: &Front) -> Result<(report::Sample, u64)> {
        const MISSING: &str = "a trial without its program";
        if trial.work == Work::Gzip {
            let gzip = works.gzip.as_ref().context(MISSING)?;
            return Ok((gzip.run(trial, front, self)?, gzip.bytes));
        }
        if trial.work == Work::Pages {
            let pages = works.pages.as_ref().context(MISSING)?;
            let task = pages.task(trial, &self.url, &front.root);
            let sample = self.measure(front, &std::env::current_exe()?, &task)?;
            return Ok((sample, pages.bytes));
        }
        let Some(database) = trial.work.database() else {
            let tpcc = works.tpcc.as_ref().context(MISSING)?;
            return Ok((tpcc.run(trial, front, self)?, tpcc.bytes));
        };
        let berkeley = works.berkeley.as_ref().context(MISSING)?;
        let task = berkeley.task(database, trial.step, trial.door, &front.root);
        let file = self.export.join(file_name(database, trial.step));
        let sample = self.measure(front, &berkeley.program, &task)?;
        Ok((sample, std::fs::metadata(file)?.len()))
    }

    /// Runs a program that tells how far it is.
    pub(super) fn measure(
        &self,
        front: &Front,
        program: &Path,
        task: &Task,
    ) -> Result<report::Sample> {
        let mut command = front.command(program);
        command.args(&task.words);
        let mut program = world::at(self.node(), || Program::start(&mut command))?;
        let process = program.hear("ready")?;
        let sample = report::Sample::of(
            || {
                let client = cpu::process_time(Some(process))?
                    + cpu::ended_children_time(process)?
                    + front.helper_time()?;
                Ok((client, self.server_time()?))
            },
            || {
                program.go()?;
                program.hear("done")?;
                Ok((task.operations, task.bytes))
            },
        )?;
        program.end()?;
        Ok(sample)
    }
}

/// A program that tells how far it is, and waits for a word each time.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts it in the network of the calling thread.
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, input, output })
    }

    /// Waits until it says `word`. Returns its process id.
    fn hear(&mut self, word: &str) -> Result<u32> {
        await_word(&self.output, WORD_SECONDS)?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let process = line.strip_prefix(word).and_then(|process| process.trim().parse().ok());
        process.with_context(|| format!("a program has ended before it was {word}"))
    }

    fn go(&mut self) -> Result<()> {
        Ok(writeln!(self.input)?)
    }

    /// Waits for its end.
    fn end(mut self) -> Result<()> {
        self.go()?;
        let status = self.child.wait()?;
        ensure!(status.success(), "a program ended with {status}");
        Ok(())
    }
}

/// Checks that a network was crossed by what the program has read, by what its cache lacked, and not at
/// all where memory is shared.
fn check(
    trial: &Trial,
    file_bytes: u64,
    read_bytes: u64,
    crossed_bytes: Option<u64>,
) -> Result<()> {
    let Some(crossed) = crossed_bytes else { return Ok(()) };
    let name = trial.door.name();
    if trial.network == Network::Free && trial.door != Door::Nfs {
        let most = SESSION_BYTES.max(file_bytes / 10);
        ensure!(crossed <= most, "{crossed} bytes of {name} crossed a network");
        return Ok(());
    }
    let least = match trial.work {
        // All of the file is read. Whatever reads ahead may read more.
        Work::Gzip | Work::Sizes | Work::Queue => file_bytes / 10 * 9,
        Work::Pages if trial.door == Door::Library => read_bytes,
        // Some pages are.
        Work::Counts | Work::Pages | Work::Tpcc => 1,
    };
    let most = match trial.door {
        // Each page once, with headers.
        Door::Cached => file_bytes / 2 * 3 + SESSION_BYTES,
        _ => u64::MAX,
    };
    let is_right = (least..=most).contains(&crossed);
    ensure!(is_right, "{crossed} of {file_bytes} bytes of {name} crossed the network");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_another_way_are_found() {
        let trial = |work, network| Trial { work, step: 50, network, door: Door::Run };
        let check = |trial: &Trial, crossed| check(trial, 100 << 20, 200 << 20, crossed);
        let link = |work, crossed| check(&trial(work, Network::Link), Some(crossed));
        assert!(link(Work::Queue, 100 << 20).is_ok());
        assert!(link(Work::Queue, 50 << 20).is_err());
        assert!(link(Work::Sizes, 0).is_err());
        assert!(link(Work::Counts, 4096).is_ok());
        assert!(link(Work::Counts, 0).is_err());
        let free = |crossed| check(&trial(Work::Queue, Network::Free), Some(crossed));
        assert!(free(4096).is_ok());
        assert!(free(50 << 20).is_err());
        let nfs = Trial { door: Door::Nfs, ..trial(Work::Gzip, Network::Free) };
        assert!(check(&nfs, Some(100 << 20)).is_ok());
        assert!(check(&nfs, Some(4096)).is_err());
        assert!(check(&trial(Work::Queue, Network::Link), None).is_ok());
        let pages = |door, crossed| {
            check(&Trial { door, ..trial(Work::Pages, Network::Link) }, Some(crossed))
        };
        assert!(pages(Door::Library, 200 << 20).is_ok());
        assert!(pages(Door::Library, 100 << 20).is_err(), "a cache that there should not be");
        assert!(pages(Door::Cached, 100 << 20).is_ok());
        assert!(pages(Door::Cached, 200 << 20).is_err(), "a page was fetched twice");
    }

    #[test]
    fn a_program_is_heard_and_one_that_ends_early_is_found() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready $$; read -r line; echo done $$; read -r line"]);
        let mut program = Program::start(&mut command).expect("it starts");
        let process = program.hear("ready").expect("it is ready");
        assert_eq!(process, program.child.id());
        program.go().expect("it waits");
        assert_eq!(program.hear("done").expect("it is done"), process);
        program.end().expect("it ends well");
        let mut program = Program::start(Command::new("true").arg("now")).expect("it starts");
        assert!(program.hear("ready").is_err());
    }
}
