//! `dafs cluster status`: the nodes of a metadata server, once or again and again.

use super::nodes;
use crate::commands::admin::Place;
use crate::failure::Failure;
use crate::output::{complain, print, say, say_json};
use dafs_server::NodeReport;
use indicatif::BinaryBytes;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

/// Show the nodes of the metadata server, and the whole cluster on the last line
///
/// The exit status is 1 when a node is missing or silent.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    place: Place,
    /// Repeat it until interrupted
    #[arg(long, short)]
    watch: bool,
    /// Seconds between two of them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600), requires = "watch")]
    seconds: u32,
    /// Print one JSON object per node
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if !self.watch {
            return show(&nodes(&self.place)?, self.json);
        }
        let interval = Duration::from_secs(self.seconds.into());
        let mut found = Ok(nodes(&self.place)?);
        let is_screen = stdout().is_terminal() && !self.json;
        loop {
            if is_screen {
                // The top left corner of an empty screen.
                print("\x1b[H\x1b[2J")?;
            }
            match found.and_then(|nodes: Vec<NodeReport>| show(&nodes, self.json)) {
                Ok(()) | Err(Failure::Reported) => {}
                // A server that starts again is there in a moment.
                Err(Failure::Unreachable(text)) => complain!("dafs: {text}"),
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(interval);
            found = nodes(&self.place).map_err(passing);
        }
    }
}

/// Returns the failure of a query after one that was answered: a server that ends may give no answer.
fn passing(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(text) => Failure::Unreachable(text),
        other => other,
    }
}

/// Prints the nodes. Fails when one cannot be used, for scripts.
fn show(nodes: &[NodeReport], json: bool) -> Result<(), Failure> {
    if nodes.is_empty() {
        let text = "no export of this server has nodes: see [[export.node]]";
        return Err(Failure::Failed(text.to_owned()));
    }
    if !json {
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
    nodes.iter().try_for_each(|node| show_node(node, json))?;
    if !json {
        say!("{}", summary(nodes))?;
    }
    match nodes.iter().all(|node| node.connected || node.empty) {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

/// Returns the whole cluster on one line. States that no node has are left out.
fn summary(nodes: &[NodeReport]) -> String {
    let counts: Vec<_> = ["ready", "draining", "missing", "silent", "empty"]
        .into_iter()
        .map(|word| (nodes.iter().filter(|node| state(node) == word).count(), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    // Nothing is known of the space of a node that is away.
    let there = || nodes.iter().filter(|node| node.connected);
    let sum = |bytes: fn(&NodeReport) -> u64| BinaryBytes(there().map(bytes).sum());
    let (free, total) = (sum(|node| node.available_bytes), sum(|node| node.total_bytes));
    let mut text = format!("{} nodes: {}; {free} of {total} free", nodes.len(), counts.join(", "));
    let to_repair: Option<u64> = nodes.iter().map(|node| node.files_to_mend).sum();
    match to_repair {
        Some(0) => {}
        Some(count) => text.push_str(&format!("; {count} copies to repair")),
        None => text.push_str("; copies to repair: not known"),
    }
    text
}

/// Returns the state of a node in a word.
fn state(node: &NodeReport) -> &'static str {
    match (node.connected, node.leaving, node.empty) {
        (_, _, true) => "empty",
        (false, _, false) if node.silent => "silent",
        (false, _, false) => "missing",
        (true, true, false) => "draining",
        (true, false, false) => "ready",
    }
}

fn show_node(node: &NodeReport, json: bool) -> Result<(), Failure> {
    if json {
        return say_json(node);
    }
    let mut remarks = String::new();
    if node.leaving {
        let (files, bytes) = (node.moved_files, BinaryBytes(node.moved_bytes));
        remarks = format!(", {files} files moved, {bytes}");
        if let (Some(files), Some(bytes)) = (node.left_files, node.left_bytes) {
            remarks.push_str(&format!("; {files} to move, {}", BinaryBytes(bytes)));
        }
    }
    match node.files_to_mend {
        Some(0) => {}
        Some(count) => remarks.push_str(&format!("; copies to repair: {count}")),
        None => remarks.push_str("; copies to repair: not known, see the log of the server"),
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
            silent: false,
            trouble: String::new(),
            total_bytes: 1 << 30,
            available_bytes: 1 << 29,
            leaving,
            empty: false,
            moved_files: 0,
            moved_bytes: 0,
            left_files: None,
            left_bytes: None,
            files_to_mend: Some(files_to_mend),
            read_bytes: 0,
            written_bytes: 0,
            indirect_bytes: 0,
        }
    }

    #[test]
    fn a_query_without_an_answer_does_not_end_the_watch() {
        let failed = passing(Failure::Failed("the server did not answer".to_owned()));
        assert!(matches!(failed, Failure::Unreachable(text) if text.contains("did not answer")));
        assert!(matches!(passing(Failure::OutputClosed), Failure::OutputClosed));
    }

    #[test]
    fn a_cluster_has_one_line_without_states_that_no_node_has() {
        let well = [node(0, true, false, 0), node(1, true, false, 0)];
        assert_eq!(summary(&well), "2 nodes: 2 ready; 1.00 GiB of 2.00 GiB free");
        let ill = [node(0, true, true, 3), node(1, false, false, 4), node(2, true, false, 0)];
        let expected = "3 nodes: 1 ready, 1 draining, 1 missing; 1.00 GiB of 2.00 GiB free; 7 copies \
                        to repair";
        assert_eq!(summary(&ill), expected);
    }

    #[test]
    fn a_node_that_does_not_answer_is_not_called_missing() {
        let silent = NodeReport { silent: true, ..node(0, false, false, 0) };
        let expected = "2 nodes: 1 ready, 1 silent; 512.00 MiB of 1.00 GiB free";
        assert_eq!(summary(&[silent, node(1, true, false, 0)]), expected);
    }

    #[test]
    fn copies_that_cannot_be_counted_are_not_called_none() {
        let unknown = NodeReport { files_to_mend: None, ..node(0, true, false, 0) };
        let expected = "2 nodes: 2 ready; 1.00 GiB of 2.00 GiB free; copies to repair: not known";
        assert_eq!(summary(&[unknown, node(1, true, false, 3)]), expected);
    }
}
