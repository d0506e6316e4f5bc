//! `dafs cluster`: files that are spread over data servers of several machines.

mod demo;

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::say;
use dafs_server::{AdminReply, AdminRequest, ClusterSecret, NodeReport};
use indicatif::BinaryBytes;
use std::path::PathBuf;

/// Set up and look at a cluster: one metadata server, and data servers that keep stripes of files
#[derive(Debug, clap::Args)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make the secret that all servers of a cluster have; copy it to each of them
    Init {
        /// The file to make; only its owner can read it
        #[arg(long, value_name = "FILE")]
        secret: PathBuf,
    },
    /// Show the nodes of the metadata server on this host
    Status {
        #[command(flatten)]
        place: Place,
        /// Print one JSON object per node
        #[arg(long)]
        json: bool,
    },
    Demo(demo::Demo),
}

impl Cluster {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.what {
            What::Init { secret } => {
                ClusterSecret::make(secret).map_err(|error| Failure::Failed(error.to_string()))?;
                say!("{} was made; give it to all servers of the cluster", secret.display())
            }
            What::Status { place, json } => status(place, *json),
            What::Demo(demo) => demo.run(),
        }
    }
}

/// Fails when a node cannot be used, for scripts.
fn status(place: &Place, json: bool) -> Result<(), Failure> {
    let nodes = match place.ask(&AdminRequest::Nodes)? {
        AdminReply::Nodes(nodes) => nodes,
        AdminReply::Failed(text) => return Err(Failure::Failed(text)),
        _ => return Err(other_answer()),
    };
    if !json && !nodes.is_empty() {
        say!(
            "{:<12} {:>6} {:<8} {:>10} {:>10}  place",
            "export",
            "node",
            "state",
            "space",
            "left"
        )?;
    }
    nodes.iter().try_for_each(|node| show(node, json))?;
    if nodes.is_empty() {
        let text = "no export of this server has nodes: see [[export.node]]";
        return Err(Failure::Failed(text.to_owned()));
    }
    match nodes.iter().all(|node| node.connected) {
        true => Ok(()),
        false => Err(Failure::Reported),
    }
}

fn show(node: &NodeReport, json: bool) -> Result<(), Failure> {
    if json {
        let text =
            serde_json::to_string(node).map_err(|error| Failure::Failed(error.to_string()))?;
        return say!("{text}");
    }
    let mut trouble = if node.connected { String::new() } else { format!(": {}", node.trouble) };
    if node.files_to_mend > 0 {
        trouble.push_str(&format!("; copies to be mended: {}", node.files_to_mend));
    }
    say!(
        "{:<12} {:>6} {:<8} {:>10} {:>10}  {}{trouble}",
        node.export,
        node.number,
        if node.connected { "there" } else { "missing" },
        BinaryBytes(node.total_bytes).to_string(),
        BinaryBytes(node.available_bytes).to_string(),
        node.place,
    )
}
