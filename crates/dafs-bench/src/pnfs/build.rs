//! A source build in three stages, by a client that has a tree of its own: its files are unpacked; a
//! script asks for features as `configure` does, by small files that it makes, reads and removes; a C
//! program of some units is compiled and linked as make does. `native.py` has the same.
//!
//! Not obvious
//! * A compiler's input is first read from the file system and stored in the local folder, once, as
//!   in the page cache of a kernel. Each further use only opens and closes the file at the server.
//! * Objects are written back, are stable when they are closed, and are read again by the linker.
//!
//! Invariants
//! * The program is read back and run. It prints the expected output only if each unit is in it.

use super::UNIT_BYTES;
use super::load::{WINDOW, go};
use super::patterns::{Done, last_of, write_all};
use anyhow::{Context, Result, bail, ensure};
use dafs_mem::Site;
use dafs_nfs_client::mount::{Create, Handle, Memory, Mount, OpenOptions};
use dafs_wire::nfs4::Status;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Files with code, besides the one with `main`.
const UNITS: u64 = 12;

/// Functions in each unit, and other units whose headers it includes.
const FUNCTIONS: u64 = 40;
const NEIGHBOURS: u64 = 3;

/// Copies of the tree that are unpacked, because one is small.
const COPIES: u64 = 4;

/// Features that a script asks for, and the small file of each.
const FEATURES: u64 = 48;
const FEATURE_SOURCE: &[u8] = b"int main(void)\n{\n    return 0;\n}\n";

const COMPILER: &str = "cc";
const PROGRAM: &str = "program";

/// The function that unit `number` computes.
fn value(number: u64, mut x: u64) -> u64 {
    for step in 0..FUNCTIONS {
        x = x.wrapping_mul(2 * step + 3).wrapping_add(number);
    }
    x
}

/// The expected output of the program.
fn wanted() -> String {
    format!("{}\n", (0..UNITS).fold(1, |x, number| value(number, x)))
}

/// The headers that a unit includes.
fn includes(number: u64) -> impl Iterator<Item = String> {
    (0..=NEIGHBOURS).map(move |next| format!("unit{}.h", (number + next) % UNITS))
}

/// The sources to compile, each with the headers that it includes.
fn units() -> Vec<(String, Vec<String>)> {
    let unit = |number| (format!("unit{number}"), includes(number).collect());
    let main = ("main".to_owned(), (0..UNITS).map(|number| format!("unit{number}.h")).collect());
    (0..UNITS).map(unit).chain([main]).collect()
}

/// The files of the tree, by their names.
fn tree() -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for (name, headers) in units() {
        let mut source = String::new();
        headers.iter().try_for_each(|header| writeln!(source, "#include \"{header}\""))?;
        let Some(number) = name.strip_prefix("unit").and_then(|number| number.parse::<u64>().ok())
        else {
            source += "int printf(const char *, ...);\nint main(void)\n{\n    unsigned long long x = 1;\n";
            (0..UNITS).try_for_each(|unit| writeln!(source, "    x = unit{unit}(x);"))?;
            source += "    return printf(\"%llu\\n\", x) < 0;\n}\n";
            files.push((format!("{name}.c"), source));
            continue;
        };
        for step in 0..FUNCTIONS {
            writeln!(
                source,
                "/* Step {step} of unit {number}: the value of the step before, times an odd number. */\n\
                 static unsigned long long step{step}(unsigned long long x)\n{{\n    return x * {}ULL + {number}ULL;\n}}",
                2 * step + 3
            )?;
        }
        writeln!(source, "unsigned long long unit{number}(unsigned long long x)\n{{")?;
        (0..FUNCTIONS).try_for_each(|step| writeln!(source, "    x = step{step}(x);"))?;
        source += "    return x;\n}\n";
        files.push((format!("{name}.c"), source));
        let mut header = format!("#ifndef UNIT{number}_H\n#define UNIT{number}_H\n");
        (0..FUNCTIONS).try_for_each(|step| {
            writeln!(
                header,
                "/* A constant of unit {number}. */\n#define UNIT{number}_{step} {step}"
            )
        })?;
        writeln!(header, "unsigned long long unit{number}(unsigned long long x);\n#endif")?;
        files.push((format!("{name}.h"), header));
    }
    Ok(files)
}

/// Writes the tree for the loads, with a list of work: a line with the name and the headers of each
/// unit, and the expected output.
pub(super) fn write_tree(folder: &Path) -> Result<()> {
    std::fs::create_dir(folder)?;
    for (name, text) in tree()? {
        std::fs::write(folder.join(name), text)?;
    }
    let line = |(name, headers): (String, Vec<String>)| format!("{name} {}\n", headers.join(" "));
    std::fs::write(folder.join("units"), units().into_iter().map(line).collect::<String>())?;
    Ok(std::fs::write(folder.join("wanted"), wanted())?)
}

fn compile(folder: &Path, arguments: &[String]) -> Result<()> {
    let output = Command::new(COMPILER).args(arguments).current_dir(folder).output()?;
    if !output.status.success() {
        bail!("{COMPILER} {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Runs a program in a folder, and returns its output.
fn printed(program: &Path) -> Result<String> {
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755))?;
    let output = Command::new(program).output()?;
    ensure!(output.status.success(), "the program that was built fails: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A client with its tree.
struct Build<'a> {
    mount: &'a Mount,
    /// The prefix of all names on the server.
    path: &'a str,
    /// The folder of its files there.
    directory: Handle,
    memory: &'a Memory,
    /// The working directory of the compiler.
    folder: tempfile::TempDir,
    /// The server's files that are already there.
    known: BTreeSet<String>,
    bytes: u64,
}

/// The sources in the folder of a tree, by their names.
fn sources(tree: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(tree)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a name is not UTF-8")?;
        if name.contains('.') {
            files.push((name, std::fs::read(entry.path())?));
        }
    }
    Ok(files)
}

/// Unpacks copies of the tree in the folder `tree`. A transaction is a file.
pub(super) fn unpack(mount: &Mount, path: &str, memory: &Memory, tree: &Path) -> Result<Done> {
    let mut build = Build::new(mount, path, memory)?;
    let files = sources(tree)?;
    go()?;
    for copy in 0..COPIES {
        for (name, content) in &files {
            build.store(&format!("{copy}-{name}"), content)?;
        }
    }
    Ok(Done { bytes: build.bytes, transactions: COPIES * files.len() as u64 })
}

/// Asks for features: makes a small file, reads it, looks for one that is not there, and removes the
/// first. A transaction is a feature.
pub(super) fn configure(mount: &Mount, path: &str, memory: &Memory) -> Result<Done> {
    let mut build = Build::new(mount, path, memory)?;
    go()?;
    for feature in 0..FEATURES {
        let (source, absent) = (format!("feature{feature}.c"), format!("feature{feature}.h"));
        build.store(&source, FEATURE_SOURCE)?;
        build.fetch(&source)?;
        let found =
            mount.open_at(&build.directory, build.name(&absent).as_bytes(), &OpenOptions::read());
        let status = found.map(drop).err().and_then(|error| error.status());
        ensure!(status == Some(Status::NoEnt), "the open of {absent}: {status:?}");
        mount.remove(&build.directory, build.name(&source).as_bytes())?;
    }
    Ok(Done { bytes: build.bytes, transactions: FEATURES })
}

/// Builds the program of the tree in the folder `tree`. The client first gets a copy of the tree.
pub(super) fn run(mount: &Mount, path: &str, memory: &Memory, tree: &Path) -> Result<Done> {
    let mut build = Build::new(mount, path, memory)?;
    let units = std::fs::read_to_string(tree.join("units"))?;
    let wanted = std::fs::read_to_string(tree.join("wanted"))?;
    for (name, content) in sources(tree)? {
        build.store(&name, &content)?;
    }
    build.bytes = 0;
    go()?;
    let mut objects = Vec::new();
    for line in units.lines() {
        let mut words = line.split(' ');
        let name = words.next().context("a line is empty")?;
        let (source, object) = (format!("{name}.c"), format!("{name}.o"));
        build.fetch(&source)?;
        words.try_for_each(|header| build.fetch(header))?;
        compile(build.folder.path(), &["-O1", "-c", &source, "-o", &object].map(str::to_owned))?;
        build.give(&object)?;
        objects.push(object);
    }
    objects.iter().try_for_each(|object| build.fetch(object))?;
    let transactions = objects.len() as u64 + 1;
    objects.extend(["-o".to_owned(), PROGRAM.to_owned()]);
    compile(build.folder.path(), &objects)?;
    build.give(PROGRAM)?;
    build.fetch(PROGRAM)?;
    let printed = printed(&build.folder.path().join(PROGRAM))?;
    ensure!(printed == wanted, "the program that was built prints {printed:?}, not {wanted:?}");
    Ok(Done { bytes: build.bytes, transactions })
}

impl<'a> Build<'a> {
    fn new(mount: &'a Mount, path: &'a str, memory: &'a Memory) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
        let directory = mount.resolve_parent(path.as_bytes())?.dir;
        Ok(Self { mount, path, directory, memory, folder, known: BTreeSet::new(), bytes: 0 })
    }

    /// The name of a file in the folder of the server.
    fn name(&self, name: &str) -> String {
        format!("{}-{name}", last_of(self.path))
    }

    /// Opens a file of the server, reads it if it is not there yet, and closes it.
    fn fetch(&mut self, name: &str) -> Result<()> {
        let (directory, options) = (&self.directory, OpenOptions::read());
        let file = self.mount.open_at(directory, self.name(name).as_bytes(), &options)?;
        if self.known.insert(name.to_owned()) {
            let (mut reader, mut content) =
                (file.reader(0, UNIT_BYTES, WINDOW as u32)?, Vec::new());
            while let Some(piece) = reader.next_piece()? {
                let at = content.len();
                content.resize(at + piece.view.len(), 0);
                piece.view.copy_to(&mut content[at..], Site::Inspect);
            }
            self.bytes += content.len() as u64;
            std::fs::write(self.folder.path().join(name), content)?;
        }
        Ok(file.close()?)
    }

    /// Writes a build product to the server, from where its users read it.
    fn give(&mut self, name: &str) -> Result<()> {
        let made = self.folder.path().join(name);
        let content = std::fs::read(&made)?;
        std::fs::remove_file(made)?;
        self.store(name, &content)
    }

    fn store(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o666);
        let file = self.mount.open_at(&self.directory, self.name(name).as_bytes(), &options)?;
        write_all(&file, self.memory, content)?;
        self.bytes += content.len() as u64;
        Ok(file.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sources_of_a_tree_are_unpacked_and_no_list_of_work() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = dir.path().join("tree");
        write_tree(&folder).expect("written");
        let mut found: Vec<String> =
            sources(&folder).expect("sources").into_iter().map(|(name, _)| name).collect();
        let mut wanted: Vec<String> =
            tree().expect("a tree").into_iter().map(|(name, _)| name).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
    }

    /// Builds in the folder, from just the declared includes of each unit.
    fn build(tree: &Path, folder: &Path) -> Result<String> {
        let units = std::fs::read_to_string(tree.join("units"))?;
        let mut objects = Vec::new();
        for line in units.lines() {
            let (name, headers) = line.split_once(' ').context("no headers")?;
            let own = folder.join(name);
            std::fs::create_dir(&own)?;
            for file in headers.split(' ').map(str::to_owned).chain([format!("{name}.c")]) {
                std::fs::copy(tree.join(&file), own.join(&file))?;
            }
            compile(&own, &["-c".to_owned(), format!("{name}.c")])?;
            objects.push(format!("{name}/{name}.o"));
        }
        objects.extend(["-o".to_owned(), PROGRAM.to_owned()]);
        compile(folder, &objects)?;
        printed(&folder.join(PROGRAM))
    }

    #[test]
    fn the_tree_builds_and_what_it_prints_needs_every_unit() {
        let dir = tempfile::tempdir().expect("a directory");
        let (tree, folder) = (dir.path().join("tree"), dir.path().join("built"));
        write_tree(&tree).expect("written");
        std::fs::create_dir(&folder).expect("a directory");
        let wanted = std::fs::read_to_string(tree.join("wanted")).expect("a line");
        assert_eq!(build(&tree, &folder).expect("it builds"), wanted);
        let (source, other) = (tree.join("unit7.c"), dir.path().join("other"));
        let text = std::fs::read_to_string(&source).expect("a source");
        std::fs::write(&source, text.replace("* 5ULL", "* 9ULL")).expect("written");
        std::fs::create_dir(&other).expect("a directory");
        assert_ne!(build(&tree, &other).expect("it builds"), wanted);
    }
}
