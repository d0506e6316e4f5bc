//! Programs in C, compiled as by a user, against a real server.

use dafs_testkit::{Cached, PAGE_BYTES, Served, eventually, pattern};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use tempfile::TempDir;

/// The library as it is installed.
static INSTALLED: LazyLock<TempDir> = LazyLock::new(|| {
    let prefix = TempDir::new().unwrap();
    let script = here().join("../../scripts/install.sh");
    run(Command::new(script)
        .args(["library", "development"])
        .env("PREFIX", prefix.path())
        .env("ARCHIVE", archive())
        .env("STRIP", "no")
        .env_remove("DESTDIR")
        .env_remove("LIBDIR"));
    prefix
});

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library that cargo has built beside this test.
fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libdafs_capi") && name.ends_with(".a")
    };
    let of = |dir: &Path| dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let found = of(deps).chain(of(deps.parent().unwrap())).filter(is_archive);
    found.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&text));
    output
}

/// Compiles a program and runs it with the server's URL.
fn program(source: &str, served: &Served, more: &[&str]) -> String {
    let lib = INSTALLED.path().join("lib");
    let program = TempDir::new().unwrap();
    let binary = program.path().join("program");
    run(Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&binary, &here().join(source)])
        .arg("-I")
        .arg(INSTALLED.path().join("include"))
        .arg("-L")
        .arg(&lib)
        .args(["-ldafs", "-Wl,-rpath"])
        .arg(&lib));
    let output = run(Command::new("timeout").arg("120").arg(&binary).arg(served.url()).args(more));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program that says "done" at its end, over both transports.
fn run_on_each_transport(source: &str, served: &Served) {
    for transport in ["1", "2"] {
        let said = program(source, served, &[transport]);
        assert!(said.ends_with("done\n"), "{said}");
    }
}

#[test]
fn hints_reach_the_cache_of_the_server() {
    const BYTES: usize = 2 << 20;
    for transport in ["1", "2"] {
        let served = Served::new();
        let cold = |name| Cached::cold(&served.path().join(name), &pattern(BYTES));
        let files = ["once", "again", "half", "ahead", "random"].map(cold);
        let [Some(once), Some(again), Some(half), Some(ahead), Some(random)] = files else {
            return;
        };
        let said = program("tests/c/hints.c", &served, &[transport]);
        assert!(said.ends_with("done\n"), "{said}");
        eventually("what is read once leaves", || once.bytes() == 0);
        assert_eq!(again.bytes(), BYTES);
        assert_eq!((half.bytes_in(0..1 << 20), half.bytes()), (BYTES / 2, BYTES / 2));
        eventually("what is needed comes", || ahead.bytes() == BYTES);
        assert_eq!(random.bytes(), PAGE_BYTES);
    }
}

#[test]
fn blocks_that_the_server_shows_are_read_without_requests() {
    let served = Served::with(|setup| setup.optimistic = true);
    std::fs::write(served.path().join("file"), pattern(20 * 4096)).unwrap();
    let said = program("tests/c/optimistic.c", &served, &["no"]);
    assert!(said.ends_with("done\n"), "{said}");
    assert_eq!(served.exposure_counts().grants, 0);
    let said = program("tests/c/optimistic.c", &served, &["yes"]);
    assert!(said.ends_with("done\n"), "{said}");
    let counts = served.exposure_counts();
    assert!(counts.grants > 0 && counts.published >= 20, "{counts:?}");
    assert!(counts.missed < 10_000, "{counts:?}");
}

#[test]
fn the_examples_work() {
    let served = Served::new();
    for transport in ["1", "2"] {
        let said = program("examples/hello.c", &served, &[transport]);
        assert!(said.contains("read back 14 bytes: hello, server"), "{said}");
        let said = program("examples/asynchronous.c", &served, &[transport]);
        assert!(said.contains("64 blocks, 4194304 bytes"), "{said}");
    }
    assert_eq!(std::fs::read(served.path().join("hello")).unwrap(), b"hello, server\n");
    let blocks = std::fs::read(served.path().join("blocks")).unwrap();
    assert!(
        blocks.chunks(65536).enumerate().all(|(at, block)| block.iter().all(|b| *b == at as u8))
    );
}

#[test]
fn the_examples_of_the_page_work() {
    let page = std::fs::read_to_string(here().join("../../docs/c.md")).unwrap();
    let blocks = page.split("```c\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let blocks: Vec<&str> = blocks.collect();
    let [begin, chain] = blocks[..] else { panic!("the page has {} blocks", blocks.len()) };
    let served = Served::new();
    let begin = begin.replace("dafs://server/", &served.url());
    let text = format!(
        r#"
#include <dafs.h>
#include <stdio.h>

static void use(char *memory, int64_t bytes)
{{
    printf("%.*s\n", (int)bytes, memory);
}}

int main(void)
{{
dap_chain_t chain;
dap_attributes_t attributes;
char memory[100];
int64_t results[3];
{begin}
use(memory, dap_read(file, memory, sizeof memory, 0));
{chain}
printf("%llu bytes\n", (unsigned long long)attributes.size);
return dap_disconnect(session);
}}
"#
    );
    let tree = served.path().join("tree");
    std::fs::create_dir_all(tree.join("directory")).unwrap();
    std::fs::write(tree.join("file"), "the file").unwrap();
    std::fs::write(tree.join("directory/file"), "the other file").unwrap();
    let source = TempDir::new().unwrap();
    let path = source.path().join("page.c");
    std::fs::write(&path, text).unwrap();
    let said = program(path.to_str().unwrap(), &served, &[]);
    assert_eq!(said, "the file\nthe other file\n14 bytes\n");
}

#[test]
fn everything_there_is() {
    let served = Served::new();
    run_on_each_transport("tests/c/everything.c", &served);
}

#[test]
fn bad_input_is_an_error_code() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), pattern(1 << 20)).unwrap();
    run_on_each_transport("tests/c/bad_input.c", &served);
}

#[test]
fn descriptors_that_a_program_takes_away_are_missed_and_not_used() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), pattern(1 << 16)).unwrap();
    run_on_each_transport("tests/c/descriptors.c", &served);
}

#[test]
fn a_program_with_many_operations_under_way_makes_few_system_calls() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), pattern(1 << 18)).unwrap();
    run_on_each_transport("tests/c/calls.c", &served);
}

#[test]
fn the_application_tells_who_the_user_is() {
    let passwords = TempDir::new().unwrap();
    let path = passwords.path().join("users");
    let (uid, gid) = process();
    let line = dafs_engine::password_line("anna", uid, gid, &[], b"secret");
    std::fs::write(&path, line + "\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let served = Served::with(|setup| setup.auth.password_file = Some(path));
    run_on_each_transport("tests/c/credentials.c", &served);
}

/// The user and group of this process.
fn process() -> (u32, u32) {
    let metadata = std::fs::metadata("/proc/self").unwrap();
    (metadata.uid(), metadata.gid())
}

#[test]
fn only_the_header_can_be_linked_against() {
    let library = INSTALLED.path().join("lib/libdafs.so.1");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .filter(|n| *n != "DAFS_1")
        .collect();
    let header = std::fs::read_to_string(here().join("include/dafs.h")).unwrap();
    for name in &names {
        let plain = name.strip_suffix("@@DAFS_1").unwrap_or_else(|| panic!("{name}"));
        assert!(header.contains(&format!("{plain}(")), "{plain} is not in the header");
    }
    // Symbols that programs were linked against are never removed: lines are only added to this
    // list.
    let promised = std::fs::read_to_string(here().join("symbols")).unwrap();
    let mut names: Vec<String> = names.iter().map(|name| name.replace("@@", " ")).collect();
    names.sort();
    assert_eq!(names, promised.lines().collect::<Vec<_>>());
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(String::from_utf8(dynamic.stdout).unwrap().contains("[libdafs.so.1]"));
}
