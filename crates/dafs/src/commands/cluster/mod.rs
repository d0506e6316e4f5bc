//! `dafs cluster`: files that are spread over data servers of several machines.

mod demo;

use super::admin::{Place, other_answer, reload};
use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, ClusterSecret, NodeReport};
use indicatif::BinaryBytes;
use std::path::PathBuf;
use std::time::Duration;

/// Set up and inspect a cluster: one metadata server, and data servers that keep stripes of files
#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make the secret that all servers of a cluster share; copy it to each of them
    Init {
        /// The file to make; only its owner can read it
        #[arg(long, value_name = "FILE")]
        secret: PathBuf,
    },
    /// Show the nodes of the metadata server, and the whole cluster on the last line
    Status {
        #[command(flatten)]
        place: Place,
        /// Print one JSON object per node
        #[arg(long)]
        json: bool,
    },
    /// Add the nodes that the configuration file of the metadata server on this host names
    ///
    /// Write an [[export.node]] with `control` into the file first. The server reads the whole file
    /// again, as with `dafs reload`, without an interruption. New files use new nodes from then on.
    /// Nodes that are empty and no longer in the file are removed.
    Add {
        #[command(flatten)]
        place: Place,
    },
    /// Move all files off a node, while they are in use
    ///
    /// New files avoid it from now on. When `dafs cluster status` says that it is empty, take it out of
    /// the configuration file and run `dafs cluster add`.
    Drain {
        /// The number of the node
        node: u32,
        /// The export that it is a part of, if several have nodes
        #[arg(long)]
        export: Option<String>,
        /// Let it take files again, and leave the files there that have not been moved
        #[arg(long, conflicts_with = "wait")]
        undo: bool,
        /// Wait until it is empty
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Replace a lost directory of a data server with an empty one, where files have copies
    ///
    /// The copies on the lost directory are given up if other copies are up to date. Then the data
    /// server joins with the empty directory that it has now, and gets those copies again. Not for
    /// a file system that is just not mounted: mount it.
    Replace {
        /// The number of the node
        node: u32,
        /// The export that it is a part of, if several have nodes
        #[arg(long)]
        export: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    Demo(demo::Demo),
}

impl Cluster {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.what {
            What::Init { secret } => {
                set_umask();
                ClusterSecret::make(secret).map_err(|error| Failure::Failed(error.to_string()))?;
                say!("{} was made; give it to all servers of the cluster", secret.display())
            }
            What::Status { place, json } => status(place, *json),
            What::Add { place } => add(place),
            What::Drain { node, export, undo, wait, place } => {
                let (node, undo, export) = (*node, *undo, export.clone());
                place.order(&AdminRequest::Drain { export: export.clone(), node, undo })?;
                if *wait { wait_until_empty(place, export.as_deref(), node) } else { Ok(()) }
            }
            What::Replace { node, export, place } => {
                place.order(&AdminRequest::Replace { export: export.clone(), node: *node })
            }
            What::Demo(demo) => demo.run(),
        }
    }
}

/// Time between two queries whether a node is empty.
const LOOK: Duration = Duration::from_millis(500);

fn nodes(place: &Place) -> Result<Vec<NodeReport>, Failure> {
    match place.ask(&AdminRequest::Nodes)? {
        AdminReply::Nodes(nodes) => Ok(nodes),
        _ => Err(other_answer()),
    }
}

fn add(place: &Place) -> Result<(), Failure> {
    let name = |node: &NodeReport| (node.export.clone(), node.number);
    let before: Vec<_> = nodes(place)?.iter().map(name).collect();
    say!("{}", reload(place)?)?;
    let after = nodes(place)?;
    let new: Vec<_> = after.iter().filter(|node| !before.contains(&name(node))).collect();
    let names: Vec<_> = after.iter().map(name).collect();
    let gone = before.iter().filter(|name| !names.contains(name));
    if new.is_empty() && gone.clone().count() == 0 {
        let text = "the configuration file names no other nodes than before: write an [[export.node]] \
                    into it first";
        return Err(Failure::Failed(text.to_owned()));
    }
    new.into_iter()
        .try_for_each(|node| say!("node {} of {:?} is in use", node.number, node.export))?;
    gone.cloned().try_for_each(|(export, node)| say!("node {node} of {export:?} is left out"))
}

fn wait_until_empty(place: &Place, export: Option<&str>, number: u32) -> Result<(), Failure> {
    loop {
        let nodes = nodes(place)?;
        let mut found = nodes.iter().filter(|node| {
            node.number == number && node.leaving && export.is_none_or(|name| name == node.export)
        });
        match found.next() {
            Some(node) if node.empty => return say!("node {number} is empty"),
            Some(_) => std::thread::sleep(LOOK),
            None => return Err(Failure::Failed(format!("node {number} takes files again"))),
        }
    }
}

/// Fails when a node cannot be used, for scripts.
fn status(place: &Place, json: bool) -> Result<(), Failure> {
    let nodes = nodes(place)?;
    if !json && !nodes.is_empty() {
        say!(
            "{:<12} {:>6} {:<8} {:>10} {:>10} {:>10} {:>10}  place",
            "export",
            "node",
            "state",
            "space",
            "free",
            "read",
            "written"
        )?;
    }
    nodes.iter().try_for_each(|node| show(node, json))?;
    if nodes.is_empty() {
        let text = "no export of this server has nodes: see [[export.node]]";
        return Err(Failure::Failed(text.to_owned()));
    }
    if !json {
        say!("{}", summary(&nodes))?;
    }
    match nodes.iter().all(|node| node.connected || node.empty) {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Returns the whole cluster on one line. States that no node has are left out.
fn summary(nodes: &[NodeReport]) -> String {
    let counts: Vec<_> = ["ready", "leaving", "missing", "empty"]
        .into_iter()
        .map(|word| (nodes.iter().filter(|node| state(node) == word).count(), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let sum = |bytes: fn(&NodeReport) -> u64| BinaryBytes(nodes.iter().map(bytes).sum());
    let (left, total) = (sum(|node| node.available_bytes), sum(|node| node.total_bytes));
    let mut text = format!("{} nodes: {}; {left} of {total} left", nodes.len(), counts.join(", "));
    let to_repair: u64 = nodes.iter().map(|node| node.files_to_mend).sum();
    if to_repair > 0 {
        text.push_str(&format!("; {to_repair} copies to repair"));
    }
    text
}

/// Returns the state of a node in a word.
fn state(node: &NodeReport) -> &'static str {
    match (node.connected, node.leaving, node.empty) {
        (_, _, true) => "empty",
        (false, _, false) => "missing",
        (true, true, false) => "leaving",
        (true, false, false) => "ready",
    }
}

fn show(node: &NodeReport, json: bool) -> Result<(), Failure> {
    if json {
        return say_json(node);
    }
    let mut remarks = String::new();
    if node.leaving {
        let (files, bytes) = (node.moved_files, BinaryBytes(node.moved_bytes));
        remarks = format!(", {files} files moved, {bytes}");
    }
    if node.files_to_mend > 0 {
        remarks.push_str(&format!("; copies to repair: {}", node.files_to_mend));
    }
    if node.indirect_bytes > 0 {
        let bytes = BinaryBytes(node.indirect_bytes);
        remarks.push_str(&format!("; clients used this node for {bytes} of other nodes"));
    }
    if !node.trouble.is_empty() {
        remarks = format!("{remarks}: {}", node.trouble);
    }
    // Nothing is known of a node that is away.
    let bytes = |count: u64| match node.connected {
        true => BinaryBytes(count).to_string(),
        false => "-".to_owned(),
    };
    say!(
        "{:<12} {:>6} {:<8} {:>10} {:>10} {:>10} {:>10}  {}{remarks}",
        node.export,
        node.number,
        state(node),
        bytes(node.total_bytes),
        bytes(node.available_bytes),
        bytes(node.read_bytes),
        bytes(node.written_bytes),
        node.place,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u32, connected: bool, leaving: bool, files_to_mend: u64) -> NodeReport {
        NodeReport {
            export: "a".to_owned(),
            number,
            place: String::new(),
            addresses: Vec::new(),
            connected,
            trouble: String::new(),
            total_bytes: 1 << 30,
            available_bytes: 1 << 29,
            leaving,
            empty: false,
            moved_files: 0,
            moved_bytes: 0,
            files_to_mend,
            read_bytes: 0,
            written_bytes: 0,
            indirect_bytes: 0,
        }
    }

    #[test]
    fn a_cluster_has_one_line_without_states_that_no_node_has() {
        let well = [node(0, true, false, 0), node(1, true, false, 0)];
        assert_eq!(summary(&well), "2 nodes: 2 ready; 1.00 GiB of 2.00 GiB left");
        let ill = [node(0, true, true, 3), node(1, false, false, 4), node(2, true, false, 0)];
        let expected =
            "3 nodes: 1 ready, 1 leaving, 1 missing; 1.50 GiB of 3.00 GiB left; 7 copies to repair";
        assert_eq!(summary(&ill), expected);
    }
}
