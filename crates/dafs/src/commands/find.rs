//! `dafs find`: searches trees for objects.

use super::for_each;
use crate::copy::filter::Glob;
use crate::copy::view::{Operand, Tree, Visited, walk};
use crate::failure::Failure;
use crate::remote::{Attributes, ObjectType};
use crate::session::Sessions;
use crate::show;
use clap::ValueEnum;
use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;

/// Search directory trees for objects that meet all conditions
///
/// Prints the path or URL of each, those of a directory behind it. Symlinks are not followed.
#[derive(Debug, clap::Args)]
pub(crate) struct Find {
    /// Directories: paths or URLs
    #[arg(required = true, value_name = "TREE")]
    trees: Vec<OsString>,
    /// The name matches; with a slash in GLOB, the path below TREE does
    #[arg(long, value_name = "GLOB")]
    name: Option<OsString>,
    /// The type of the object
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    kind: Option<Kind>,
    /// It is at least so long; k, m or g may follow the number
    #[arg(long, value_name = "BYTES", value_parser = crate::commands::bench::bytes)]
    min_size: Option<u64>,
    /// It is at most so long
    #[arg(long, value_name = "BYTES", value_parser = crate::commands::bench::bytes)]
    max_size: Option<u64>,
    /// It lies at most so many levels below TREE
    #[arg(long, value_name = "N")]
    max_depth: Option<usize>,
    /// End each line with a zero byte
    #[arg(short = '0', long)]
    print0: bool,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "print0")]
    json: bool,
}

/// The types of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A file
    #[value(name = "f")]
    File,
    /// A directory
    #[value(name = "d")]
    Directory,
    /// A symlink
    #[value(name = "l")]
    Symlink,
    /// A named pipe
    #[value(name = "p")]
    Fifo,
    /// A socket
    #[value(name = "s")]
    Socket,
    /// A block device
    #[value(name = "b")]
    BlockDevice,
    /// A character device
    #[value(name = "c")]
    CharDevice,
}

impl Kind {
    fn object(self) -> ObjectType {
        match self {
            Self::File => ObjectType::Regular,
            Self::Directory => ObjectType::Directory,
            Self::Symlink => ObjectType::Symlink,
            Self::Fifo => ObjectType::Fifo,
            Self::Socket => ObjectType::Socket,
            Self::BlockDevice => ObjectType::BlockDevice,
            Self::CharDevice => ObjectType::CharDevice,
        }
    }
}

impl Find {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        let glob = self.name.as_ref().map(|text| Glob::parse(text)).transpose();
        let glob = glob.map_err(|why| Failure::Usage(format!("--name: {why}")))?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        let result = for_each(&self.trees, |text| {
            let tree = Tree::open(sessions, &Operand::parse(text)?)?;
            walk(&tree, |visited| {
                if !self.meets(glob.as_ref(), visited) {
                    return Ok(());
                }
                self.show(&tree, visited, &mut out)
                    .map_err(|error| Failure::local("standard output", &error))
            })
        });
        out.flush().map_err(|error| Failure::local("standard output", &error))?;
        result
    }

    fn meets(&self, glob: Option<&Glob>, visited: &Visited<'_>) -> bool {
        let has = |test: &dyn Fn(&Attributes) -> bool| {
            visited.entry.attributes.as_ref().is_some_and(test)
        };
        self.max_depth.is_none_or(|most| visited.depth <= most)
            && glob.is_none_or(|glob| glob.matches(visited.path))
            && self.kind.is_none_or(|kind| has(&|found| found.kind == kind.object()))
            && self.min_size.is_none_or(|least| has(&|found| found.size >= least))
            && self.max_size.is_none_or(|most| has(&|found| found.size <= most))
    }

    fn show(
        &self,
        tree: &Tree,
        visited: &Visited<'_>,
        out: &mut BufWriter<StdoutLock<'_>>,
    ) -> std::io::Result<()> {
        let place = tree.top.join(visited.path);
        if self.json {
            let object = match (&place, &visited.entry.attributes) {
                (Operand::Remote(url), Some(found)) => {
                    show::object_json(url, &visited.entry.name, found)
                }
                (place, _) => serde_json::json!({ "path": place.to_string() }),
            };
            return writeln!(out, "{object}");
        }
        let end: &[u8] = if self.print0 { b"\0" } else { b"\n" };
        let text = match &place {
            Operand::Local(path) => show::name_bytes(path.as_os_str().as_bytes()),
            Operand::Remote(url) => url.to_string().into_bytes(),
        };
        out.write_all(&[&text[..], end].concat())
    }
}
