//! The constants of machines, kept in `dafs/advise.json` of the user's cache directory.
//!
//! Invariants
//! * Whatever is wrong with the cache costs a measurement and a remark, never the command.
//! * A reader sees the old file or the new one, never a part.

use super::machine::{Identity, Machine};
use crate::limits::{MEASUREMENTS_BYTES_MAX, MEASUREMENTS_MAX};
use crate::output::complain;
use std::fs::{File, create_dir_all};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The file of the cache; `None` if neither `XDG_CACHE_HOME` nor `HOME` says where.
pub(super) fn place() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    Some(absolute("XDG_CACHE_HOME").or_else(home)?.join("dafs/advise.json"))
}

/// The constants of that machine and server, if they are known.
pub(super) fn find(place: Option<&Path>, identity: &Identity) -> Option<Machine> {
    let place = place?;
    match load(place) {
        Ok(known) => known.into_iter().find(|machine| machine.identity == *identity),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            complain!("dafs: {}: {error}; measuring again", place.display());
            None
        }
    }
}

/// Adds constants, in place of older ones of the same machine and server.
pub(super) fn keep(place: Option<&Path>, machine: &Machine) {
    let Some(place) = place else {
        complain!("dafs: neither HOME nor XDG_CACHE_HOME is set, so the measurement is not kept");
        return;
    };
    let mut known = load(place).unwrap_or_default();
    known.retain(|other| other.identity != machine.identity);
    known.insert(0, machine.clone());
    known.truncate(MEASUREMENTS_MAX);
    if let Err(error) = store(place, &known) {
        complain!("dafs: {}: {error}; the measurement is not kept", place.display());
    }
}

fn load(place: &Path) -> io::Result<Vec<Machine>> {
    let mut text = String::new();
    File::open(place)?.take(MEASUREMENTS_BYTES_MAX).read_to_string(&mut text)?;
    let known: Vec<Machine> = serde_json::from_str(&text)?;
    match known.iter().all(Machine::is_sound) {
        true => Ok(known),
        false => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it has constants that are no times"))
        }
    }
}

fn store(place: &Path, known: &[Machine]) -> io::Result<()> {
    let directory = place.parent().unwrap_or(Path::new("/"));
    create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    serde_json::to_writer(&mut file, known)?;
    file.flush()?;
    file.persist(place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::machine::recorded::machine;
    use super::*;

    #[test]
    fn constants_come_back_for_the_same_machine_and_server_only() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("new/advise.json");
        let machine = machine();
        assert_eq!(find(Some(&place), &machine.identity), None);
        keep(Some(&place), &machine);
        assert_eq!(find(Some(&place), &machine.identity), Some(machine.clone()));
        let mut other = machine.clone();
        other.identity.server = "dafs://h/".to_owned();
        assert_eq!(find(Some(&place), &other.identity), None);
        keep(Some(&place), &other);
        let again = Machine { measured_unix_seconds: 7, ..machine.clone() };
        keep(Some(&place), &again);
        assert_eq!(load(&place).unwrap(), [again, other]);
        for number in 0..MEASUREMENTS_MAX + 3 {
            let mut more = machine.clone();
            more.identity.host = number.to_string();
            keep(Some(&place), &more);
        }
        assert_eq!(load(&place).unwrap().len(), MEASUREMENTS_MAX);
        assert_eq!(find(None, &machine.identity), None);
    }

    #[test]
    fn garbage_is_no_constant_and_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("advise.json");
        let machine = machine();
        let wrong = serde_json::to_string(&[Machine { sync_seconds: -1.0, ..machine.clone() }]);
        for text in ["", "{}", "[1]", "\u{0}", &wrong.unwrap()] {
            std::fs::write(&place, text).unwrap();
            assert_eq!(find(Some(&place), &machine.identity), None, "{text}");
        }
        keep(Some(&place), &machine);
        assert_eq!(find(Some(&place), &machine.identity), Some(machine.clone()));
        // A directory cannot be overwritten.
        std::fs::remove_file(&place).unwrap();
        std::fs::create_dir(&place).unwrap();
        keep(Some(&place), &machine);
        assert_eq!(find(Some(&place), &machine.identity), None);
    }
}
