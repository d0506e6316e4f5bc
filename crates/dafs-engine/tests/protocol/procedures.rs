//! The table of procedures in the documentation names each, its class, and a test that sends it. That
//! of cache hints names each procedure with a hint word, and a test of it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use dafs_wire::dafs::{Class, Procedure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The most functions between a test and the one that makes its request.
const CALLS_MAX: usize = 4;

fn class(class: Class) -> &'static str {
    match class {
        Class::Special => "special",
        Class::BulkFetch => "bulk fetch",
        Class::Simple => "simple",
        Class::FsModifying => "fs-modifying",
        Class::LockModifying => "lock-modifying",
        Class::Callback => "callback",
    }
}

/// The functions of a test binary by name: the file of each, and its text.
type Functions = HashMap<String, Vec<(PathBuf, String)>>;

fn collect(path: &Path, functions: &mut Functions) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), functions);
        }
        return;
    }
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, name)) = code.split_once("fn ") else { continue };
        if !(before.is_empty() || before.starts_with("pub")) {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let length = lines[at..].iter().position(|line| *line == end).unwrap_or(0);
        let name = name.split(['(', '<']).next().unwrap().to_owned();
        let function = (path.to_owned(), lines[at..=at + length].join("\n"));
        functions.entry(name).or_default().push(function);
    }
}

/// Returns the names in front of opening parentheses.
fn calls(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.split('(')
        .map(move |before| before.rsplit(|c: char| !is_part(c)).next().unwrap_or_default())
}

/// True if `test` of `file`, or a function that it calls, has one of the `words`.
fn reaches(functions: &Functions, file: &Path, test: &str, words: &[String]) -> bool {
    let holds = |text: &str, word: &String| {
        let follows = |part: &str| !part.starts_with(|c: char| c.is_alphanumeric());
        text.split(word.as_str()).skip(1).any(follows)
    };
    let (mut names, mut seen) = (vec![test], vec![test]);
    for depth in 0..=CALLS_MAX {
        let mut further = Vec::new();
        for name in names {
            for (path, text) in functions.get(name).into_iter().flatten() {
                if depth == 0 && path != file {
                    continue;
                }
                if words.iter().any(|word| holds(text, word)) {
                    return true;
                }
                further.extend(calls(text).filter(|call| functions.contains_key(*call)));
            }
        }
        further.retain(|name| !seen.contains(name));
        further.sort_unstable();
        further.dedup();
        seen.extend(&further);
        names = further;
    }
    false
}

/// The tests of a documentation page, by the file that has them.
#[derive(Default)]
struct Tests {
    binaries: HashMap<PathBuf, Functions>,
}

impl Tests {
    /// Checks that a test, as a page names it, has one of the words in its code.
    fn check(&mut self, named: &str, words: &[String]) {
        let (file, test) = named.split_once(": ").unwrap();
        let file = root().join("crates").join(file.trim_matches('`'));
        let directory = file.parent().unwrap();
        let functions = self.binaries.entry(directory.to_owned()).or_insert_with(|| {
            let mut functions = Functions::new();
            collect(directory, &mut functions);
            collect(&root().join("crates/dafs-testkit/src/requests.rs"), &mut functions);
            functions
        });
        let is_sent = reaches(functions, &file, test.trim_matches('`'), words);
        assert!(is_sent, "no {test} in {} sends any of {words:?}", file.display());
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the rows of the page's tables with so many cells.
fn rows(page: &str, cells: usize) -> impl Iterator<Item = Vec<&str>> {
    page.lines()
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .filter(move |row: &Vec<&str>| row.len() == cells)
}

/// Returns the procedures whose arguments, or whose chunks, have a hint word.
fn hinted() -> Vec<&'static str> {
    let source = |name: &str| {
        std::fs::read_to_string(root().join("crates/dafs-wire/src/dafs").join(name)).unwrap()
    };
    let (arguments, chunks) = (source("io_args.rs"), source("ids.rs"));
    let has_word = |text: &str, name: &str| {
        let start = [" ", "<'a> "]
            .iter()
            .find_map(|end| text.find(&format!("pub struct {name}{end}")).map(|at| &text[at..]));
        start.is_some_and(|text| {
            text.split("\n}")
                .next()
                .unwrap()
                .split("\n    }")
                .next()
                .unwrap()
                .contains("cache_hint: HintWord")
        })
    };
    assert!(has_word(&chunks, "FileChunk"), "BATCH_SUBMIT has its hints in chunks");
    let hinted = |procedure: &Procedure| {
        *procedure == Procedure::BatchSubmit || has_word(&arguments, &format!("{procedure:?}"))
    };
    Procedure::ALL.into_iter().filter(hinted).map(Procedure::name).collect()
}

#[test]
fn the_table_of_hints_is_whole_and_true() {
    let page = std::fs::read_to_string(root().join("docs/protocol.md")).unwrap();
    let section = page.split("\n## Cache hints\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut tests = Tests::default();
    let mut named = Vec::new();
    for row in rows(section, 3).filter(|row| row[2].contains("tests/")) {
        for name in row[0].split(", ") {
            let procedure = Procedure::ALL.into_iter().find(|procedure| procedure.name() == name);
            let procedure = procedure.unwrap_or_else(|| panic!("there is no {name}"));
            tests.check(row[2], &[format!("Request::{procedure:?}")]);
            named.push(name.to_owned());
        }
    }
    let mut wanted = hinted();
    wanted.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, wanted);
}

#[test]
fn the_table_of_procedures_is_whole_and_true() {
    let table = std::fs::read_to_string(root().join("docs/protocol.md")).unwrap();
    let rows: Vec<Vec<&str>> =
        rows(&table, 5).filter(|cells| cells[0].parse::<u32>().is_ok()).collect();
    assert_eq!(rows.len(), Procedure::ALL.len());
    let mut tests = Tests::default();
    for (row, procedure) in rows.iter().zip(Procedure::ALL) {
        assert_eq!(row[0], (procedure as u32).to_string());
        assert_eq!(row[1], procedure.name());
        assert_eq!(row[2], class(procedure.class()), "{}", row[1]);
        // A client sends a request, and receives a callback.
        let word = |of: &str| format!("{of}::{procedure:?}");
        let words = match procedure.class() {
            Class::Callback => vec![word("Request"), word("Reply"), word("Procedure")],
            _ => vec![word("Request")],
        };
        tests.check(row[4], &words);
    }
}
