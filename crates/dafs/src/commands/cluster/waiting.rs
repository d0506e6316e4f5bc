//! Waiting for work that a metadata server does on its nodes, with its progress.

use super::nodes;
use super::progress::{Meter, Progress};
use crate::commands::admin::Place;
use crate::failure::Failure;
use crate::output::say;
use dafs_server::NodeReport;
use std::time::Duration;

/// Time between two queries.
const LOOK: Duration = Duration::from_millis(500);

/// Returns the node with this number.
fn find(place: &Place, export: Option<&str>, number: u32) -> Result<Option<NodeReport>, Failure> {
    let is_it =
        |node: &NodeReport| node.number == number && export.is_none_or(|name| name == node.export);
    Ok(nodes(place)?.into_iter().find(is_it))
}

fn gone(number: u32) -> Failure {
    Failure::Failed(format!("there is no node {number} any more"))
}

/// Waits until a node that is being drained is empty.
pub(super) fn until_empty(place: &Place, export: Option<&str>, number: u32) -> Result<(), Failure> {
    let mut meter = Meter::new();
    let mut before = None;
    loop {
        match find(place, export, number)?.ok_or_else(|| gone(number))? {
            node if node.empty => {
                drop(meter);
                return say!("node {number} is empty");
            }
            node if node.leaving => {
                // The server counts from its start.
                let moved = (node.moved_files, node.moved_bytes);
                let (files, bytes) = *before.get_or_insert(moved);
                let progress = Progress {
                    files: node.moved_files.saturating_sub(files),
                    bytes: node.moved_bytes.saturating_sub(bytes),
                    left: node.left_files.zip(node.left_bytes),
                };
                meter.show(&progress, &node.trouble);
            }
            _ => return Err(Failure::Failed(format!("node {number} takes files again"))),
        }
        std::thread::sleep(LOOK);
    }
}

/// Waits until the copies on a node are complete.
pub(super) fn until_repaired(
    place: &Place,
    export: Option<&str>,
    number: u32,
) -> Result<(), Failure> {
    let mut meter = Meter::new();
    let mut most = 0;
    loop {
        let node = find(place, export, number)?.ok_or_else(|| gone(number))?;
        let left = node.files_to_mend.ok_or_else(|| {
            let text = "the server cannot read its list of files to repair: see its log";
            Failure::Failed(text.to_owned())
        })?;
        if node.connected && left == 0 {
            drop(meter);
            return say!("the copies on node {number} are complete");
        }
        most = left.max(most);
        meter.show_files(most - left, left, &node.trouble);
        std::thread::sleep(LOOK);
    }
}
