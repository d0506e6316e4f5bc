//! Nodes that join and leave while an export is served.
//!
//! Invariants
//! * A data server joins only when it is reachable, because new files lie on all nodes from then
//!   on.
//! * A node leaves only when it has no data.

use super::striped::{OpenNode, Striped};
use crate::config::{ExportSource, NodeConfig, NodePlace};
use crate::limits::JOIN_TIME;
use dafs_cluster::RemoteNode;
use dafs_store::node::Node as _;
use std::sync::Arc;
use std::time::Instant;

impl Striped {
    /// Changes the nodes of the export to those of the present configuration. The text of an error
    /// says how to correct it. Then no node has joined or left.
    pub(super) fn change_nodes(
        &self,
        from: &ExportSource,
        to: &ExportSource,
    ) -> Result<(), String> {
        let (Some((was, rest)), Some((is, same))) = (parts(from), parts(to)) else {
            return Err("its files are placed in another way: restart the server".to_owned());
        };
        if rest != same {
            return Err("only its nodes can be changed while it is served: restart the server \
                        for the rest"
                .to_owned());
        }
        let known = |nodes: &[NodeConfig], number| {
            nodes.iter().find(|node| node.number == number).map(|node| node.place.clone())
        };
        let mut added = Vec::new();
        for node in is {
            let number = node.number;
            match (known(was, number), &node.place) {
                (Some(place), now) if place == *now => {}
                (Some(_), _) => {
                    return Err(format!("node {number} is elsewhere now: restart the server"));
                }
                (None, NodePlace::Remote(control)) => added.push((number, control)),
                (None, NodePlace::Directory { .. }) => {
                    return Err(format!(
                        "node {number} is a directory of this machine: restart the server to take \
                        it in"
                    ));
                }
            }
        }
        let gone = was.iter().map(|node| node.number).filter(|&number| known(is, number).is_none());
        let gone: Vec<_> = gone.collect();
        for &number in &gone {
            if !self.progress.lock().is_empty(&self.store, number) {
                return Err(format!(
                    "node {number} is not empty: leave it in the configuration until \
                     `dafs cluster drain {number} --wait` has ended"
                ));
            }
        }
        let added = added.into_iter().map(|(number, control)| self.join(number, control));
        let added = added.collect::<Result<Vec<_>, String>>()?;
        for node in added {
            let number = node.number();
            self.store.add_node(node.clone()).map_err(|error| format!("node {number}: {error}"))?;
            self.nodes.lock().push(OpenNode::Remote(node));
            tracing::info!(number, "a node has joined");
        }
        for number in gone {
            self.store.remove_node(number).map_err(|error| format!("node {number}: {error}"))?;
            self.nodes.lock().retain(|open| open.node().number() != number);
            tracing::info!(number, "a node has left");
        }
        Ok(())
    }

    /// Connects to a data server, and checks that it is reachable.
    fn join(&self, number: u32, control: &str) -> Result<Arc<RemoteNode>, String> {
        let node = self.joining.connect(number, control).map_err(|error| error.to_string())?;
        if let Some(metadata) = self.metadata.get() {
            node.answer_by(metadata.clone());
        }
        let end = Instant::now() + JOIN_TIME;
        while !node.status().connected {
            if Instant::now() > end {
                let trouble = node.status().trouble;
                return Err(format!("node {number} at {control} cannot be used: {trouble}"));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(node)
    }
}

/// Splits the source of an export into its nodes and the rest.
fn parts(source: &ExportSource) -> Option<(&[NodeConfig], ExportSource)> {
    match source {
        ExportSource::Striped { path, unit_bytes, copies, nodes, cluster_secret } => {
            let (path, cluster_secret) = (path.clone(), cluster_secret.clone());
            let rest = ExportSource::Striped {
                path,
                unit_bytes: *unit_bytes,
                copies: *copies,
                nodes: Vec::new(),
                cluster_secret,
            };
            Some((nodes, rest))
        }
        _ => None,
    }
}
