//! The operations of all client lives, in files that outlive them.
//!
//! Invariants
//! * A line is written with one call, before its operation is sent or after it was answered. The
//!   kernel has it then, even if the process is killed.

use crate::Result;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A history that is being written.
pub(crate) struct History {
    file: File,
    number: u64,
}

impl History {
    pub(crate) fn begin(directory: &Path, who: &str) -> Result<Self> {
        let path = directory.join(who);
        Ok(Self { file: OpenOptions::new().append(true).create_new(true).open(path)?, number: 0 })
    }

    /// Logs an operation before it is sent; returns its number.
    pub(crate) fn ask(&mut self, what: impl Display) -> Result<u64> {
        self.number += 1;
        self.file.write_all(format!("ask {} {what}\n", self.number).as_bytes())?;
        Ok(self.number)
    }

    /// Logs the answer to the latest operation.
    pub(crate) fn answered(&mut self, what: impl Display) -> Result<()> {
        Ok(self.file.write_all(format!("answer {} {what}\n", self.number).as_bytes())?)
    }
}

/// One operation from a history: its words, and those of its answer.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) asked: Vec<String>,
    pub(crate) answer: Option<Vec<String>>,
}

/// The history of one life, by its name.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) who: String,
    pub(crate) entries: Vec<Entry>,
}

/// Reads all histories.
pub(crate) fn read(directory: &Path) -> Result<Vec<Story>> {
    let mut stories = Vec::new();
    for file in std::fs::read_dir(directory)? {
        let file = file?;
        let who = file.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file.path())?;
        let mut entries: Vec<Entry> = Vec::new();
        for line in text.lines() {
            let mut words = line.split(' ').map(str::to_owned);
            let (kind, _number) = (words.next(), words.next());
            let rest: Vec<String> = words.collect();
            match (kind.as_deref(), entries.last_mut()) {
                (Some("ask"), _) => entries.push(Entry { asked: rest, answer: None }),
                (Some("answer"), Some(last)) if last.answer.is_none() => last.answer = Some(rest),
                _ => return Err(format!("{who} has a strange line: {line}").into()),
            }
        }
        let unanswered = entries.iter().filter(|entry| entry.answer.is_none()).count();
        if unanswered > 1
            || entries.last().is_some_and(|last| last.answer.is_some()) && unanswered == 1
        {
            return Err(format!("{who} went on without an answer").into());
        }
        stories.push(Story { who, entries });
    }
    stories.sort_by(|a, b| a.who.cmp(&b.who));
    Ok(stories)
}
