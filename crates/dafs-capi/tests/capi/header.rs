//! The header and the manual pages match the sources.

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const SOURCES: [&str; 17] = [
    "error",
    "handle",
    "options",
    "session",
    "attributes",
    "names",
    "directory",
    "file",
    "hint",
    "buffer",
    "transfer",
    "group",
    "batch",
    "chain",
    "lock",
    "fence",
    "mount",
];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source(name: &str) -> PathBuf {
    here().join("src").join(name).with_extension("rs")
}

fn header() -> String {
    let config = Config {
        language: Language::C,
        style: Style::Type,
        documentation_style: DocumentationStyle::C99,
        cpp_compat: true,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        include_guard: Some("DAFS_H".into()),
        header: Some(
            "/* dafs.h -- the direct access file system client for C; dafs(3) tells how to begin.\n \
             *\n \
             * Made from the sources of the library; do not edit. Modelled on the published\n \
             * description of the DAFS API, not on its specification.\n \
             *\n \
             * Functions return 0 or a number, or a negative DAP_E_...; dap_last_error() has the\n \
             * sentence. Offsets, lengths and sizes are in bytes. Handles are numbers: a closed one is\n \
             * DAP_E_BAD_HANDLE, and in a fork of the process that opened it DAP_E_FORKED. Memory for\n \
             * data that is null is DAP_E_INVALID, and not mapped DAP_E_FAULT. */"
                .into(),
        ),
        ..Config::default()
    };
    let mut builder = Builder::new().with_config(config);
    for name in SOURCES {
        builder = builder.with_src(source(name));
    }
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    String::from_utf8(text).unwrap().replace("# Safety", "Pointers:").replace(" \n", "\n")
}

/// A function in the header: its name, its comment, and its declaration.
struct Function<'a> {
    name: &'a str,
    comment: String,
    declaration: &'a str,
}

fn functions(header: &str) -> Vec<Function<'_>> {
    let mut functions = Vec::new();
    for part in header.split("\n\n") {
        let at = part.lines().take_while(|line| line.starts_with("//")).map(|line| line.len() + 1);
        let (comment, code) = part.split_at(at.sum::<usize>().min(part.len()));
        let Some((declaration, _)) = code.split_once(';') else { continue };
        let Some((before, _)) = declaration.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap();
        if !name.starts_with("dap_") || declaration.contains("typedef") {
            continue;
        }
        let lines = comment.lines().map(|line| line.trim_start_matches("//").trim());
        let comment = lines.collect::<Vec<_>>().join("\n").trim().to_owned();
        functions.push(Function { name, comment, declaration });
    }
    functions
}

/// A line with what stands between backquotes in bold.
fn marked(line: &str) -> String {
    let pieces = line.split('`').enumerate();
    pieces
        .map(|(index, piece)| match index % 2 {
            1 => format!("\\fB{piece}\\fR"),
            _ => piece.to_owned(),
        })
        .collect()
}

/// One page for each source with functions in it.
fn pages(header: &str) -> Vec<(String, String)> {
    let functions = functions(header);
    let mut pages = Vec::new();
    for topic in SOURCES {
        let text = std::fs::read_to_string(source(topic)).unwrap();
        let about = text.lines().next().unwrap().trim_start_matches("//! ").trim_end_matches('.');
        let defines = |f: &&Function<'_>| text.contains(&format!("extern \"C\" fn {}(", f.name));
        let of: Vec<_> = functions.iter().filter(defines).collect();
        if of.is_empty() {
            continue;
        }
        let names: Vec<_> = of.iter().map(|function| function.name).collect();
        let title = topic.to_uppercase();
        let mut page = format!(".TH DAFS_{title} 3 \"\" dafs \"dafs client library\"\n.SH NAME\n");
        writeln!(page, "{} \\- {}", names.join(", "), about.to_lowercase()).unwrap();
        page.push_str(".SH SYNOPSIS\n.nf\n#include <dafs.h>\n");
        for function in &of {
            writeln!(page, "\n{};", function.declaration).unwrap();
        }
        page.push_str(".fi\n.SH DESCRIPTION\n.ad l\n");
        for function in &of {
            writeln!(page, ".SS {}()", function.name).unwrap();
            for line in function.comment.lines() {
                match line {
                    "" => page.push_str(".PP\n"),
                    // Escapes a line that begins like a command of roff.
                    _ if line.starts_with(['.', '\'']) => {
                        writeln!(page, "\\&{}", marked(line)).unwrap();
                    }
                    _ => writeln!(page, "{}", marked(line)).unwrap(),
                }
            }
        }
        page.push_str(".SH SEE ALSO\n.BR dafs (3)\n");
        pages.push((format!("dafs_{topic}.3"), page));
    }
    pages
}

fn is_current(path: &Path, text: &str) {
    if std::env::var_os("DAFS_WRITE_HEADER").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let known = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        known == text,
        "{} is not what the sources say; write it again with \
         DAFS_WRITE_HEADER=1 cargo test -p dafs-capi --test capi header",
        path.display()
    );
}

#[test]
fn the_header_is_that_of_the_sources() {
    is_current(&here().join("include/dafs.h"), &header());
}

#[test]
fn every_function_says_which_threads_may_call_it() {
    let header = header();
    let functions = functions(&header);
    assert!(functions.len() > 80);
    for Function { name, comment, .. } in functions {
        let rule = comment.lines().find_map(|line| line.strip_prefix("Threads: "));
        let rule = rule.unwrap_or_else(|| panic!("{name} has no line that begins with Threads:"));
        let known = ["any", "each has its own", "DAP_E_BUSY while another thread"];
        assert!(known.iter().any(|known| rule.starts_with(known)), "{name}: {rule}");
    }
}

#[test]
fn the_manual_knows_every_page() {
    let overview = std::fs::read_to_string(here().join("man/dafs.3")).unwrap();
    for (page, _) in pages(&header()) {
        let name = page.strip_suffix(".3").unwrap();
        assert!(overview.contains(&format!(".BR {name} (3)")), "dafs.3 does not name {name}");
    }
}

#[test]
fn every_function_is_on_its_manual_page() {
    let header = header();
    let mut all = String::new();
    for (name, text) in pages(&header) {
        is_current(&here().join("man").join(name), &text);
        all.push_str(&text);
    }
    for name in SOURCES {
        let text = std::fs::read_to_string(source(name)).unwrap();
        for definition in text.split("extern \"C\" fn ").skip(1) {
            let function = definition.split('(').next().unwrap();
            if function.starts_with("dap_") {
                assert!(all.contains(&format!(".SS {function}()")), "{function} has no page");
                assert!(header.contains(&format!("{function}(")), "{function} is not declared");
            }
        }
    }
}
