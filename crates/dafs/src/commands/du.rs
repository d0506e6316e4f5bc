//! `dafs du`: the space that trees take.

use super::for_each;
use crate::copy::view::{Operand, Tree, walk};
use crate::failure::Failure;
use crate::output::say;
use crate::remote::Attributes;
use crate::session::Sessions;
use crate::show::{self, readable};
use serde_json::json;
use std::collections::HashSet;
use std::ffi::OsString;

/// Show the space that directory trees take
///
/// One line for each directory, those inside first: the allocated bytes of all objects in and below it,
/// in kibibytes. A file with several names counts once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Du {
    /// Directories or files: paths or URLs
    #[arg(required = true, value_name = "TREE")]
    trees: Vec<OsString>,
    /// Show sizes with a unit, such as 1.5M
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    #[allow(dead_code, reason = "the parser prints the help and ends the process")]
    help: Option<bool>,
    /// Count the lengths of files in place of the allocated bytes
    #[arg(long)]
    apparent_size: bool,
    /// Show only the total of each operand
    #[arg(short, long)]
    summarize: bool,
    /// Show only directories so many levels below the operand
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A directory whose objects are being added up.
struct Sum {
    path: Vec<u8>,
    bytes: u64,
}

impl Du {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        for_each(&self.trees, |text| {
            let top = Operand::parse(text)?;
            self.tree(&Tree::open(sessions, &top)?)
        })
    }

    fn tree(&self, tree: &Tree) -> Result<(), Failure> {
        let mut known = HashSet::new();
        let mut sums = vec![Sum { path: Vec::new(), bytes: self.bytes(&tree.attributes) }];
        let walked = walk(tree, |visited| {
            self.end(tree, &mut sums, visited.depth)?;
            let Some(attributes) = &visited.entry.attributes else { return Ok(()) };
            if attributes.is_directory() {
                let (path, bytes) = (visited.path.to_vec(), self.bytes(attributes));
                sums.push(Sum { path, bytes });
            } else if attributes.links <= 1 || known.insert(attributes.file_id) {
                // INVARIANT: `end` leaves the directory of the object.
                if let Some(sum) = sums.last_mut() {
                    sum.bytes = sum.bytes.saturating_add(self.bytes(attributes));
                }
            }
            Ok(())
        });
        self.end(tree, &mut sums, 0)?;
        walked
    }

    /// Shows the directories that end before an object at `depth`, and adds each to the one above.
    fn end(&self, tree: &Tree, sums: &mut Vec<Sum>, depth: usize) -> Result<(), Failure> {
        while sums.len() > depth {
            let Some(ended) = sums.pop() else { return Ok(()) };
            if let Some(above) = sums.last_mut() {
                above.bytes = above.bytes.saturating_add(ended.bytes);
            }
            let depth_max = if self.summarize { Some(0) } else { self.max_depth };
            if depth_max.is_none_or(|most| sums.len() <= most) {
                self.show(tree, &ended)?;
            }
        }
        Ok(())
    }

    fn show(&self, tree: &Tree, sum: &Sum) -> Result<(), Failure> {
        let name = tree.top.join(&sum.path);
        if self.json {
            let (name, path) = (name.to_string(), readable(&sum.path));
            return say!("{}", json!({ "name": name, "path": path, "bytes": sum.bytes }));
        }
        let bytes = match self.human_readable {
            true => show::human_size(sum.bytes),
            false => sum.bytes.div_ceil(1024).to_string(),
        };
        say!("{bytes:<7} {name}")
    }

    fn bytes(&self, attributes: &Attributes) -> u64 {
        if self.apparent_size { attributes.size } else { attributes.space_used }
    }
}
