//! Compares the exported directory with the histories.

use crate::Result;
use crate::history::{self, Entry, Story};
use crate::load::{APPEND_BYTES, SLOT_BYTES, append_record, slot_content};
use crate::locked::Counter;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// Names that must be there, and names that may be.
#[derive(Default)]
struct Names {
    certain: HashSet<String>,
    doubtful: HashSet<String>,
}

/// Compares everything.
///
/// # Errors
/// The first change that was lost, done twice or not reported.
pub(crate) fn run(directory: &Path, histories: &Path) -> Result<String> {
    let stories = history::read(histories)?;
    let operations: usize = stories.iter().map(|story| story.entries.len()).sum();
    let doubtful = stories.iter().filter(|s| s.entries.last().is_some_and(|e| e.answer.is_none()));
    let doubtful = doubtful.count();
    let names = check_names(directory, &stories)?;
    let appended = check_appends(directory, &stories)?;
    let slots = check_slots(directory, &stories)?;
    let (count, repaired) = check_counter(directory, &stories)?;
    Ok(format!(
        "lives={} operations={operations} doubtful={doubtful} names={names} appended={appended} \
         slots={slots} counted={count} repaired={repaired}",
        stories.len()
    ))
}

impl Names {
    fn apply(&mut self, entry: &Entry) -> Result<()> {
        let words: Vec<&str> = entry.asked.iter().map(String::as_str).collect();
        let certain = entry.answer.is_some();
        match *words.as_slice() {
            ["create" | "mkdir" | "symlink", name] | ["link", _, name] => {
                self.appears(name, certain)
            }
            ["rename", from, to] => {
                self.vanishes(from, certain)?;
                self.appears(to, certain);
            }
            ["remove", name] => self.vanishes(name, certain)?,
            _ => {}
        }
        Ok(())
    }

    fn appears(&mut self, name: &str, certain: bool) {
        let set = if certain { &mut self.certain } else { &mut self.doubtful };
        set.insert(name.to_owned());
    }

    fn vanishes(&mut self, name: &str, certain: bool) -> Result<()> {
        if !self.certain.remove(name) {
            return Err(format!("{name} vanished without having been there").into());
        }
        if !certain {
            self.doubtful.insert(name.to_owned());
        }
        Ok(())
    }
}

fn check_names(directory: &Path, stories: &[Story]) -> Result<usize> {
    let mut names = Names::default();
    for entry in stories.iter().flat_map(|story| &story.entries) {
        names.apply(entry)?;
    }
    let mut found = HashSet::new();
    for entry in std::fs::read_dir(directory.join("names"))? {
        found.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    if let Some(lost) = names.certain.iter().find(|name| !found.contains(*name)) {
        return Err(format!("{lost} was made and is not there").into());
    }
    let known = |name: &&String| names.certain.contains(*name) || names.doubtful.contains(*name);
    if let Some(strange) = found.iter().find(|name| !known(name)) {
        return Err(format!("{strange} is there and should not be").into());
    }
    // A rename in doubt leaves exactly one of its names.
    for story in stories {
        let Some(Entry { asked, answer: None }) = story.entries.last() else { continue };
        if let [verb, from, to] = asked.as_slice()
            && verb == "rename"
            && found.contains(from) == found.contains(to)
        {
            return Err(format!("the rename from {from} to {to} was half done").into());
        }
    }
    Ok(found.len())
}

fn check_appends(directory: &Path, stories: &[Story]) -> Result<usize> {
    let bytes = std::fs::read(directory.join("shared/append"))?;
    if bytes.len() % APPEND_BYTES != 0 {
        return Err(format!("{} bytes are not whole records", bytes.len()).into());
    }
    let mut at: HashMap<&[u8], u64> = HashMap::new();
    for (index, record) in bytes.chunks(APPEND_BYTES).enumerate() {
        let offset = (index * APPEND_BYTES) as u64;
        if let Some(first) = at.insert(record, offset) {
            let text = record.escape_ascii();
            return Err(format!("{text} was appended twice, at {first} and {offset}").into());
        }
    }
    let mut unexplained: HashSet<&[u8]> = at.keys().copied().collect();
    for story in stories {
        for entry in story.entries.iter().filter(|entry| entry.asked[0] == "append") {
            let record = append_record(&entry.asked[1]);
            let found = at.get(record.as_slice()).copied();
            unexplained.remove(record.as_slice());
            let told = entry.answer.as_ref().map(|answer| answer[0].parse::<u64>());
            if let Some(told) = told.transpose()?
                && found != Some(told)
            {
                let name = &entry.asked[1];
                return Err(format!("{name} was appended at {told}, is at {found:?}").into());
            }
        }
    }
    if let Some(strange) = unexplained.iter().next() {
        return Err(format!("nobody appended {}", strange.escape_ascii()).into());
    }
    Ok(at.len())
}

fn check_slots(directory: &Path, stories: &[Story]) -> Result<usize> {
    let mut slots = 0;
    for story in stories {
        // By slot: the value that must be there, and the values that may be there instead.
        let mut expected: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for entry in story.entries.iter().filter(|entry| entry.asked[0] == "write") {
            let slot = entry.asked[1].parse()?;
            let values = expected.entry(slot).or_default();
            if entry.answer.is_some() {
                values.clear();
            }
            values.push(&entry.asked[2]);
        }
        for (slot, values) in expected {
            let certain =
                values.len() > 1 || story.entries.last().is_some_and(|e| e.answer.is_some());
            let path = directory.join("own").join(&story.who);
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => bytes,
                Err(_) if !certain => continue,
                Err(error) => return Err(format!("{}: {error}", path.display()).into()),
            };
            let start = (slot as usize * SLOT_BYTES).min(bytes.len());
            let content = &bytes[start..(start + SLOT_BYTES).min(bytes.len())];
            let fits = values.iter().any(|value| slot_content(value) == content);
            if certain && !fits {
                return Err(format!("slot {slot} of {} has not {values:?}", story.who).into());
            }
            slots += 1;
        }
    }
    Ok(slots)
}

/// Checks the counter under the persistent lock: one holder reached each value, and there were as
/// many repairs as holders that died.
fn check_counter(directory: &Path, stories: &[Story]) -> Result<(u64, usize)> {
    let mut counted: HashMap<u64, &str> = HashMap::new();
    let (mut died, mut doubtful, mut repaired) = (0, 0, 0);
    for story in stories {
        let mut holding = false;
        for Entry { asked, answer } in &story.entries {
            let answer = answer.as_ref().map(|words| words[0].as_str());
            match (asked[0].as_str(), answer) {
                ("lock" | "repair", Some(answer)) => {
                    holding = answer == "locked";
                    repaired += usize::from(holding && asked[0] == "repair");
                }
                ("unlock", Some(_)) => {
                    holding = false;
                    let value = asked[1].parse()?;
                    if let Some(other) = counted.insert(value, &story.who) {
                        let who = &story.who;
                        return Err(format!("{who} and {other} both counted to {value}").into());
                    }
                }
                ("lock" | "repair" | "unlock", None) => {
                    holding = false;
                    doubtful += 1;
                }
                _ => {}
            }
        }
        died += usize::from(holding);
    }
    if repaired < died || repaired > died + doubtful {
        let text = format!("{died} holders died, perhaps {doubtful} more, and {repaired} repairs");
        return Err(text.into());
    }
    let counter = Counter::parse(&std::fs::read(directory.join("shared/counter"))?);
    if counter.first != counter.second {
        return Err(format!("the counter was left torn: {counter:?}").into());
    }
    let highest = counted.keys().copied().max().unwrap_or(0);
    if counter.first < highest {
        return Err(format!("counted to {highest}, and the counter says {}", counter.first).into());
    }
    Ok((counter.first, repaired))
}
