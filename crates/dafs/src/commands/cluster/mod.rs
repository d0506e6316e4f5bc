//! `dafs cluster`: files that are spread over data servers of several machines.

mod demo;
mod progress;
mod scrub;
mod status;
mod waiting;

use super::admin::{Place, other_answer, reload};
use crate::commands::serve::set_umask;
use crate::failure::Failure;
use crate::output::say;
use dafs_server::{AdminReply, AdminRequest, ClusterSecret, NodeReport};
use std::path::PathBuf;

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
    Status(status::Status),
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
        /// Wait until it is empty, and show the progress: files and bytes that were moved and are
        /// left, the rate, and the time that is left
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
        /// Wait until it has its copies again, and show how many files wait for that
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        place: Place,
    },
    Scrub(scrub::Scrub),
    /// Make all copies of a file like the one on a node, when `dafs cluster scrub` cannot tell which is right
    ///
    /// The other copies are given up, and written anew in the background while the file is in use.
    Repair {
        /// The file, as clients name it: /EXPORT/PATH
        path: String,
        /// The number of the node with the right copy
        #[arg(long, value_name = "NODE")]
        from: u32,
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
            What::Status(status) => status.run(),
            What::Add { place } => add(place),
            What::Drain { node, export, undo, wait, place } => {
                let (node, undo, export) = (*node, *undo, export.clone());
                place.order(&AdminRequest::Drain { export: export.clone(), node, undo })?;
                match wait {
                    true => waiting::until_empty(place, export.as_deref(), node),
                    false => Ok(()),
                }
            }
            What::Replace { node, export, wait, place } => {
                let (node, export) = (*node, export.clone());
                place.order(&AdminRequest::Replace { export: export.clone(), node })?;
                match wait {
                    true => waiting::until_repaired(place, export.as_deref(), node),
                    false => Ok(()),
                }
            }
            What::Scrub(scrub) => scrub.run(),
            What::Repair { path, from, place } => {
                place.order(&AdminRequest::Repair { path: path.clone(), node: *from })
            }
            What::Demo(demo) => demo.run(),
        }
    }
}

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
