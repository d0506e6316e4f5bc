//! A mount namespace with the needed files alone, for a server that opens files by handle.
//!
//! A small file system in memory becomes the root. Each file or directory of a rule is mounted into
//! it, at its path. `/proc` has this process alone.
//!
//! Invariants
//! * No file below a mount that this module makes gives privileges (`nosuid`). Only those of
//!   [`Access::Device`] are devices (`nodev`). No file that a client can make there is mapped as code
//!   (`noexec`).
//! * A failure before the last step leaves the process in the namespace with all files.
//! * Mounts that the host makes below an export later appear in it, as slave mounts do. They have the
//!   flags that the host gave them, and none of those above.
//!
//! The kernel opens any file of a file system by its handle, whatever part of it is mounted. So a
//! handle that the server's own code forges reaches all of the file system of an export.

use crate::limits::ROOT_OPTIONS;
use crate::policy::{Access, FileRule};
use crate::report::Lack;
use crate::sys;
use crate::system::PROC;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    unmount,
};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// The new root is mounted here first. The directory exists everywhere, and its files were opened
/// before.
const STAGE: &str = "/etc";

/// A file or directory to mount.
struct Source {
    file: OwnedFd,
    is_directory: bool,
    access: Access,
}

/// The mounts of the new root.
struct Plan {
    /// By real path, so that a directory stands before those in it.
    sources: BTreeMap<PathBuf, Source>,
    /// Paths of rules with symlinks in them, and where they lead.
    links: Vec<(PathBuf, PathBuf)>,
}

/// Makes the namespace and enters it.
///
/// # Errors
/// The step that fails.
pub(crate) fn enter(rules: &[FileRule]) -> Result<(), Lack> {
    let namespace = |error: io::Error| Lack::Namespace(error.to_string());
    // The current directory may have been removed.
    let working_directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    sys::new_mount_namespace().map_err(namespace)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|error| namespace(error.into()))?;
    enter_planned(&Plan::of(rules)?, &working_directory)
}

fn enter_planned(plan: &Plan, working_directory: &Path) -> Result<(), Lack> {
    let stage = Path::new(STAGE);
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", stage, "tmpfs", flags, ROOT_OPTIONS)
        .map_err(|error| failed(Path::new("/"))(error.into()))?;
    let entered = plan.carry_out(stage, working_directory);
    if entered.is_err() {
        // The directory below must not stay hidden. After the last step the stage is the root, and
        // cannot be unmounted.
        let _ = rustix::process::chdir(working_directory);
        let _ = unmount(stage, UnmountFlags::DETACH);
    }
    entered
}

/// Makes the error of a failed mount.
fn failed(path: &Path) -> impl Fn(io::Error) -> Lack + use<> {
    let path = path.to_owned();
    move |error| Lack::Mount { path: path.clone(), error: error.to_string() }
}

impl Plan {
    /// Fills the new root, and makes it the root of the process.
    fn carry_out(&self, stage: &Path, working_directory: &Path) -> Result<(), Lack> {
        for (path, source) in &self.sources {
            source.mount_at(stage, path).map_err(failed(path))?;
        }
        show_own_process(stage).map_err(failed(Path::new("/proc")))?;
        for (named, real) in &self.links {
            link(stage, named, real).map_err(failed(named))?;
        }
        // Relative paths stay valid.
        directory(stage, working_directory).map_err(failed(working_directory))?;
        sys::set_mount_attributes(stage, libc::MOUNT_ATTR_RDONLY, false)
            .map_err(failed(Path::new("/")))?;
        change_root(stage, working_directory).map_err(failed(Path::new("/")))
    }

    fn of(rules: &[FileRule]) -> Result<Self, Lack> {
        let mut plan = Self { sources: BTreeMap::new(), links: Vec::new() };
        for rule in rules {
            let failed =
                |error: io::Error| Lack::File { path: rule.path.clone(), error: error.to_string() };
            let real = match fs::canonicalize(&rule.path) {
                Ok(real) => real,
                Err(error) if rule.optional && error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if real == Path::new("/") {
                return Err(Lack::Everything(rule.path.clone()));
            }
            if real != rule.path {
                plan.links.push((rule.path.clone(), real.clone()));
            }
            let access = plan.sources.get(&real).map_or(rule.access, |has| has.access);
            let source = Source::open(&real, access.max(rule.access)).map_err(failed)?;
            plan.sources.insert(real, source);
        }
        plan.leave_out_covered();
        Ok(plan)
    }

    /// Removes sources inside of others that have the same use or a wider one.
    fn leave_out_covered(&mut self) {
        let uses: Vec<_> =
            self.sources.iter().map(|(path, source)| (path.clone(), source.access)).collect();
        self.sources.retain(|path, source| {
            !uses.iter().any(|(other, access)| {
                path != other && path.starts_with(other) && *access >= source.access
            })
        });
    }
}

impl Source {
    fn open(path: &Path, access: Access) -> io::Result<Self> {
        let file = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let is_directory = FileType::from_raw_mode(fstat(&file)?.st_mode).is_dir();
        Ok(Self { file, is_directory, access })
    }

    fn mount_at(&self, stage: &Path, path: &Path) -> io::Result<()> {
        let target = below(stage, path);
        // Inside of another mount the place exists.
        if target.symlink_metadata().is_err() {
            if let Some(parent) = path.parent() {
                directory(stage, parent)?;
            }
            match self.is_directory {
                true => make_directory(&target)?,
                false => drop(fs::File::create(&target)?),
            }
        }
        // The descriptor leads to the file also where the new root hides its path.
        mount_bind_recursive(format!("/proc/self/fd/{}", self.file.as_raw_fd()), &target)?;
        sys::set_mount_attributes(&target, self.attributes(), true)
    }

    fn attributes(&self) -> u64 {
        libc::MOUNT_ATTR_NOSUID
            | match self.access {
                // Libraries are mapped as code.
                Access::Read => libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NODEV,
                Access::Device => libc::MOUNT_ATTR_NOEXEC,
                Access::Change => libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC,
            }
    }
}

/// The place of an absolute path in the new root.
fn below(stage: &Path, path: &Path) -> PathBuf {
    stage.join(path.strip_prefix("/").unwrap_or(path))
}

/// Makes a directory that all users may search, whatever the umask: threads that act as callers
/// search it, too.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Makes a directory in the new root, with those above it. Follows no symlink, because in this stage
/// it would lead to the host's files.
fn directory(stage: &Path, path: &Path) -> io::Result<()> {
    let mut place = stage.to_owned();
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        place.push(name);
        match place.symlink_metadata() {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_directory(&place)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a symlink in the new root, unless a mount has the path already.
fn link(stage: &Path, named: &Path, real: &Path) -> io::Result<()> {
    let Some(parent) = named.parent() else { return Ok(()) };
    directory(stage, parent)?;
    let mut place = stage.to_owned();
    for component in parent.components() {
        // Of "x/.." the mounts know the real path.
        if component == Component::ParentDir {
            return Ok(());
        }
        let Component::Normal(name) = component else { continue };
        place.push(name);
        if !place.symlink_metadata()?.is_dir() {
            return Ok(());
        }
    }
    let place = below(stage, named);
    match place.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => symlink(real, place),
        _ => Ok(()),
    }
}

/// Mounts the part of `/proc` about this process. Directories of other processes would show their
/// files and memory.
fn show_own_process(stage: &Path) -> io::Result<()> {
    // The number may be another one than that in this process's own namespace.
    let process = fs::read_link("/proc/self")?;
    let own = Path::new("/proc").join(&process);
    for path in [own.as_path()].into_iter().chain(PROC.iter().map(Path::new)) {
        if path.exists() {
            let source = Source::open(path, Access::Read)?;
            source.mount_at(stage, path)?;
        }
    }
    let proc = below(stage, Path::new("/proc"));
    symlink(&process, proc.join("self"))?;
    symlink("self/mounts", proc.join("mounts"))?;
    symlink("self/net", proc.join("net"))
}

/// Makes `stage` the root, and forgets the old one.
fn change_root(stage: &Path, working_directory: &Path) -> io::Result<()> {
    rustix::process::chdir(stage)?;
    // The old root is mounted over the new one, and then unmounted.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir(working_directory).or_else(|_| rustix::process::chdir("/"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &Path, access: Access) -> FileRule {
        FileRule { path: path.to_owned(), access, optional: false }
    }

    #[test]
    fn a_rule_inside_of_a_wider_one_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        let (export, state) = (real.join("export"), real.join("export/state"));
        fs::create_dir_all(&state).unwrap();
        let mounts = |rules: &[FileRule]| {
            let plan = Plan::of(rules).ok().unwrap();
            let uses = plan.sources.iter().map(|(path, source)| (path.clone(), source.access));
            uses.collect::<Vec<_>>()
        };
        let (read, change) = (Access::Read, Access::Change);
        let all = [rule(&export, change), rule(&state, read)];
        assert_eq!(mounts(&all), [(export.clone(), change)]);
        let all = [rule(&export, read), rule(&state, change)];
        assert_eq!(mounts(&all), [(export.clone(), read), (state.clone(), change)]);
        // One path with two uses has the wider one.
        let all = [rule(&state, change), rule(&state, read)];
        assert_eq!(mounts(&all), [(state, change)]);
    }

    #[test]
    fn paths_with_symlinks_stay_valid_and_the_whole_file_system_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(real.join("real")).unwrap();
        symlink("real", real.join("named")).unwrap();
        let plan = Plan::of(&[rule(&real.join("named"), Access::Read)]).ok().unwrap();
        assert_eq!(plan.links, [(real.join("named"), real.join("real"))]);
        let lack = Plan::of(&[rule(Path::new("/"), Access::Read)]).err().unwrap();
        assert_eq!(lack, Lack::Everything(PathBuf::from("/")));
        let absent = rule(&real.join("absent"), Access::Read);
        assert!(matches!(Plan::of(std::slice::from_ref(&absent)), Err(Lack::File { .. })));
        assert!(Plan::of(&[FileRule { optional: true, ..absent }]).is_ok());
    }

    #[test]
    fn a_failure_hides_no_files_of_the_host() {
        let capabilities = rustix::thread::capabilities(None).unwrap();
        if !capabilities.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN) {
            println!("SKIPPED: it needs CAP_SYS_ADMIN");
            return;
        }
        let outcome = sys::testing::in_child(|| {
            // The target of the second mount is a file inside of the first, and no directory.
            let dir = tempfile::tempdir().unwrap();
            let real = fs::canonicalize(dir.path()).unwrap();
            fs::create_dir(real.join("export")).unwrap();
            let rules = [rule(&real.join("export"), Access::Change)];
            sys::new_mount_namespace().unwrap();
            let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            mount_change("/", slave).unwrap();
            let mut plan = Plan::of(&rules).ok().unwrap();
            let broken = Source::open(Path::new("/proc/version"), Access::Read).unwrap();
            plan.sources.insert(real.join("export"), broken);
            let export = Source::open(&real.join("export"), Access::Change).unwrap();
            plan.sources.insert(real.join("export/below"), export);
            let before = fs::read_dir(STAGE).unwrap().count();
            let lack = enter_planned(&plan, Path::new("/")).err();
            let after = fs::read_dir(STAGE).unwrap().count();
            format!("{lack:?} {}", before == after && before > 0)
        });
        assert!(outcome.starts_with("Some(Mount {") && outcome.ends_with("true"), "{outcome}");
    }

    #[test]
    fn no_directory_is_made_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, host) = (dir.path().join("stage"), dir.path().join("host"));
        fs::create_dir(&stage).unwrap();
        fs::create_dir(&host).unwrap();
        symlink(&host, stage.join("lib")).unwrap();
        directory(&stage, Path::new("/lib/below")).unwrap();
        link(&stage, Path::new("/lib/named"), Path::new("/real")).unwrap();
        assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
        link(&stage, Path::new("/var/run/named"), Path::new("/run/real")).unwrap();
        assert_eq!(fs::read_link(stage.join("var/run/named")).unwrap(), Path::new("/run/real"));
    }
}
