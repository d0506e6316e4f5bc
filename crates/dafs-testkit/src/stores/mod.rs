//! Fixtures of the tests of stores: one suite of behaviour for every store (`data`, `extras`, `tree`), worlds to
//! run it in, stores over other stores (`layer`), and short forms of the calls.
#![allow(missing_docs, reason = "the names are the meaning")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

pub mod data;
pub mod extras;
pub mod layer;
pub mod slow;
pub mod tree;

use dafs_mem::VolatileSlice;
use dafs_store::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

pub const READ_WRITE: OpenMode = OpenMode { read: true, write: true };
pub const READ: OpenMode = OpenMode { read: true, write: false };
pub const WRITE: OpenMode = OpenMode { read: false, write: true };

/// Set in the child that runs a test binary again without privileges.
const AGAIN: &str = "DAFS_STORE_TEST_AGAIN";
const NOBODY: u32 = 65_534;

/// A store and a caller that owns its root.
pub struct World {
    pub store: Arc<dyn Store>,
    pub cred: Cred,
    pub dir: Option<TempDir>,
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the user that runs the tests.
pub fn me() -> Cred {
    Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub fn skipped(reason: &str) {
    println!("SKIPPED: {reason}");
}

/// Skips a test without a program that scripts/setup.sh installs. In CI that is a failure.
pub fn missing(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "CI skips nothing: {reason}");
    skipped(reason);
}

pub fn secret() -> ExportSecret {
    ExportSecret::from_bytes(*b"a test's secret.")
}

impl World {
    pub fn root(&self) -> FileId {
        self.store.root()
    }

    pub fn create(&self, dir: &FileId, name: &str) -> Created {
        let attr = SetAttr { mode: Some(0o644), ..SetAttr::default() };
        let how = CreateHow::Guarded;
        self.store.create(&self.cred, dir, name.as_bytes(), how, &attr, READ_WRITE).unwrap()
    }

    pub fn mkdir(&self, dir: &FileId, name: &str) -> FileId {
        let attr = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        self.make(dir, name, NewObject::Directory, &attr).unwrap().id
    }

    pub fn make(
        &self,
        dir: &FileId,
        name: &str,
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.store.make(&self.cred, dir, name.as_bytes(), object, attr)
    }

    pub fn lookup(&self, dir: &FileId, name: &str) -> Result<FileId> {
        self.store.lookup(&self.cred, dir, name.as_bytes()).map(|(id, _)| id)
    }

    pub fn remove(&self, dir: &FileId, name: &str) -> Result<DirChange> {
        self.store.remove(&self.cred, dir, name.as_bytes())
    }

    pub fn rename(&self, from_dir: &FileId, from: &str, to_dir: &FileId, to: &str) -> Result<()> {
        self.store.rename(&self.cred, from_dir, from.as_bytes(), to_dir, to.as_bytes()).map(|_| ())
    }

    /// Returns all names of a directory, in order.
    pub fn names(&self, dir: &FileId) -> Vec<String> {
        let mut names = Vec::new();
        let end = self.store.readdir(&self.cred, dir, 0, false, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        });
        assert_eq!(end, Ok(true));
        names.sort();
        names
    }
}

pub fn write(file: &dyn OpenFile, offset: u64, bytes: &[u8]) -> Result<usize> {
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    file.write_at(&views, offset, Stability::Unstable, Wait::Allowed)
}

pub fn read(file: &dyn OpenFile, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; len];
    let got = file.read_at(&[VolatileSlice::from_mut(&mut bytes)], offset, Wait::Allowed)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Makes a directory for one test, which belongs to the caller. Returns its name.
pub fn fresh_directory(store: &dyn Store, cred: &Cred) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (mode, uid, gid) = (Some(0o755), Some(cred.uid), Some(cred.gid));
    let attr = SetAttr { mode, uid, gid, ..SetAttr::default() };
    let (server, root) = (Cred::new(0, 0), store.root());
    store.make(&server, &root, name.as_bytes(), NewObject::Directory, &attr).unwrap();
    name
}

/// Checks that what a caller has of a store is the same in a later run.
pub fn ids_and_content_outlive<S: Store>(store: S, open_again: impl FnOnce() -> S) {
    let (cred, attr, how) = (me(), SetAttr::default(), CreateHow::Guarded);
    let made = store.create(&cred, &store.root(), b"f", how, &attr, READ_WRITE).unwrap();
    write(&*made.file, 3, b"kept").unwrap();
    made.file.sync().unwrap();
    let (id, root, fs) = (made.id, store.root(), store.fs_id());
    drop((made, store));
    let store = open_again();
    assert_eq!((store.root(), store.fs_id()), (root, fs));
    assert_eq!(store.getattr(&id).unwrap().size, 7);
    let file = store.open(&cred, &id, READ).unwrap();
    assert_eq!(read(&*file, 0, 50).unwrap(), b"\0\0\0kept");
}

/// Runs the tests of some modules of this binary again as an ordinary user, without the tests that
/// call this, which are named `everything_again_...`.
pub fn run_again_without_privileges(modules: &[&str]) {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.uid(NOBODY).gid(NOBODY);
    run_again(command, modules);
}

/// Does the same as root without the capability to open objects by handle, like root in a
/// container.
pub fn run_again_as_root_in_a_container(modules: &[&str]) {
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("setpriv");
    command.arg("--bounding-set=-dac_read_search,-sys_admin").arg(program);
    run_again(command, modules);
}

fn run_again(mut command: std::process::Command, modules: &[&str]) {
    if std::env::var_os(AGAIN).is_some() {
        return;
    }
    if !is_root() {
        return skipped("giving up privileges needs some");
    }
    command.args(modules).args(["--skip", "everything_again", "--nocapture"]);
    command.env(AGAIN, "1").current_dir("/");
    match command.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "run again:\n{text}\n{errors}");
            let ran = |module: &&str| text.contains(&format!("test {module}"));
            let idle: Vec<_> = modules.iter().filter(|module| !ran(module)).collect();
            assert!(text.contains("test result: ok") && idle.is_empty(), "not {idle:?}: {text}");
        }
        Err(error) => skipped(&format!("cannot run the tests again: {error}")),
    }
}

/// Runs one test, named with its module, again in its own mount namespace. True in that run. Skips
/// the test where the system does not permit it.
pub fn in_own_mounts(test: &str) -> bool {
    const INSIDE: &str = "DAFS_STORE_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_root() {
        skipped("mounting needs root");
        return false;
    }
    let possible = std::process::Command::new("unshare").args(["-m", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        skipped("no own mount namespace: unshare(1) is missing or not allowed");
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.arg("-m").arg(program).args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}");
    print!("{text}");
    false
}

/// Calls mount(8). True if that succeeded.
pub fn mount(arguments: &[&str]) -> bool {
    let output = std::process::Command::new("mount").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skipped(&format!("mount: {}", String::from_utf8_lossy(&output.stderr)));
            false
        }
        Err(error) => {
            skipped(&format!("mount: {error}"));
            false
        }
    }
}

/// Makes the tests of the suite, each for every world. A world that is impossible here is `None`. With
/// a list, only those of the optional tests that it names.
#[macro_export]
macro_rules! store_suite {
    (@tests $make:expr, {$($module:ident::$name:ident),* $(,)?}) => {
        $(#[test] fn $name() { $make.iter().for_each($crate::stores::$module::$name); })*
    };
    ($($world:ident: $make:expr),+ $(,)?) => {
        $crate::store_suite! { $($world: $make),+ ; {
            data::every_mode_bit_survives,
            tree::files_without_a_name_can_get_one,
            tree::space_is_told,
        } }
    };
    ($($world:ident: $make:expr),+ ; $optional:tt) => {
        $(mod $world {
            use super::*;
            $crate::store_suite! { @tests $make, $optional }
            $crate::store_suite! { @tests $make, {
                data::attributes_change_one_by_one_and_together,
                data::content_reads_back,
                data::far_writes_leave_holes,
                data::named_attributes_behave_as_files,
                data::opens_keep_to_their_mode,
                data::rights_follow_the_mode,
                data::sizes_change_through_an_open,
                data::stability_and_waiting_do_not_change_content,
                data::symlinks_have_times_but_no_mode,
                data::a_new_owner_counts_also_when_it_is_the_old_one,
                data::an_owner_may_name_the_present_group,
                data::vectors_scatter_and_gather,
                extras::bad_extended_attributes_are_refused,
                extras::extended_attributes_are_kept,
                extras::files_are_copied_and_cloned,
                extras::holes_and_data_are_found,
                extras::lists_follow_the_mode_and_the_other_way_round,
                extras::named_users_and_inheritance_are_kept_where_they_can_be,
                extras::posix_lists_keep_their_masks_and_follow_the_mode,
                extras::space_is_set_aside_and_given_back,
                tree::any_bytes_make_a_name,
                tree::changes_of_a_directory_are_told,
                tree::creating_respects_what_is_there,
                tree::directories_go_up_to_the_root_and_no_further,
                tree::every_kind_can_be_made,
                tree::exclusive_creates_know_their_own,
                tree::forged_ids_are_refused,
                tree::hard_links_are_one_object,
                tree::listings_bear_changes_in_between,
                tree::listings_in_pages_miss_and_repeat_nothing,
                tree::names_and_attributes_can_be_made_stable,
                tree::names_are_checked_everywhere,
                tree::removals_take_only_their_kind,
                tree::removed_directories_are_stale,
                tree::removed_files_live_until_closed,
                tree::renames_replace_what_fits,
                tree::threads_do_not_disturb_each_other,
                tree::wrong_kinds_are_named,
            } }
        })+
    };
}
