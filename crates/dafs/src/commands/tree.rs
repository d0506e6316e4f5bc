//! `dafs tree`: draws directory trees.

use super::for_each;
use crate::copy::view::{self, Operand, Visited, walk};
use crate::failure::Failure;
use crate::session::Sessions;
use crate::show;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};

/// Draw directory trees
///
/// Symlinks are shown with their text and not followed.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Tree {
    /// Directories: paths or URLs
    #[arg(required = true, value_name = "TREE")]
    trees: Vec<OsString>,
    /// Show names that begin with a dot, and objects below them
    #[arg(short, long)]
    all: bool,
    /// Show sizes of files with a unit, such as 1.5M
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    #[allow(dead_code, reason = "the parser prints the help and ends the process")]
    help: Option<bool>,
    /// Show only so many levels
    #[arg(short = 'L', long, value_name = "N")]
    max_depth: Option<usize>,
}

impl Tree {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let result = for_each(&self.trees, |text| {
            let top = Operand::parse(text)?;
            let tree = view::Tree::open(sessions, &top)?;
            writeln!(out, "{top}").map_err(|error| Failure::local("standard output", &error))?;
            // For each level: there are more objects in it.
            let mut more = Vec::new();
            walk(&tree, |visited| {
                more.truncate(visited.depth - 1);
                more.push(!visited.is_last);
                self.show(&tree, visited, &more, &mut out)
            })
        });
        out.flush().map_err(|error| Failure::local("standard output", &error))?;
        result
    }

    fn show(
        &self,
        tree: &view::Tree,
        visited: &Visited<'_>,
        more: &[bool],
        out: &mut BufWriter<StdoutLock<'_>>,
    ) -> Result<(), Failure> {
        let is_hidden =
            visited.path.starts_with(b".") || visited.path.windows(2).any(|two| two == b"/.");
        if self.max_depth.is_some_and(|most| visited.depth > most) || (is_hidden && !self.all) {
            return Ok(());
        }
        let mut line = Vec::new();
        for more in &more[..more.len() - 1] {
            line.extend_from_slice(if *more { b"|   " } else { b"    " });
        }
        line.extend_from_slice(if visited.is_last { b"`-- " } else { b"|-- " });
        let attributes = visited.entry.attributes.as_ref();
        if let Some(found) = attributes.filter(|found| self.human_readable && !found.is_directory())
        {
            line.extend(format!("[{:>5}] ", show::human_size(found.size)).bytes());
        }
        line.extend(show::name_bytes(&visited.entry.name));
        if let Some(found) = attributes.filter(|found| found.is_symlink()) {
            let text = tree.readlink(visited.directory, &visited.entry.name, found);
            let text = text.map_err(|error| tree.failure(visited.path, &error))?;
            line.extend_from_slice(b" -> ");
            line.extend(show::name_bytes(&text));
        }
        line.push(b'\n');
        out.write_all(&line).map_err(|error| Failure::local("standard output", &error))
    }
}
