//! Synchronisation: the rules by which `dafs sync` leaves out, copies and removes.
//!
//! Invariants
//! * An object of the copy is removed only after the whole directory of its original was listed.
//! * A name that the patterns leave out is neither copied nor removed.
//! * A dry run changes nothing.

use super::filter::{Filter, Glob};
use super::temporary::is_temporary_name;
use super::view::Operand;
use super::{CopyOptions, supervise};
use crate::failure::Failure;
use crate::remote::Time;
use crate::session::Sessions;
use clap::Args;
use std::ffi::OsString;

/// Options of a synchronisation, besides those of a copy.
#[derive(Debug, Args)]
pub(crate) struct SyncOptions {
    /// Remove objects of the copy that the source does not have
    #[arg(long)]
    delete: bool,
    /// Print the changes, and make none
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Compare the contents of files that have the same size, instead of their times
    #[arg(long)]
    checksum: bool,
    /// Copy only files that match this pattern; may be repeated
    #[arg(long, value_name = "GLOB")]
    include: Vec<OsString>,
    /// Leave out objects that match this pattern, directories with their contents; may be repeated
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Copy at most so many bytes per second; k, m or g may follow the number
    #[arg(long, value_name = "BYTES", value_parser = crate::commands::bench::bytes)]
    bwlimit: Option<u64>,
}

/// The rules of a synchronisation.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) filter: Filter,
    pub(super) delete: bool,
    pub(super) dry_run: bool,
    pub(super) checksum: bool,
}

impl Policy {
    /// True if an object is neither copied nor removed. `path` is that below the top.
    pub(super) fn leaves_out(
        &self,
        name: &[u8],
        path: impl FnOnce() -> Vec<u8>,
        is_directory: bool,
    ) -> bool {
        // An unfinished file belongs to another copy, or to `dafs clean`.
        is_temporary_name(name)
            || (!self.filter.is_empty() && self.filter.leaves_out(&path(), is_directory))
    }
}

impl Policy {
    /// True if an object that the source does not have stays. With patterns, a directory does, as
    /// objects in it may be left out.
    pub(super) fn keeps(
        &self,
        name: &[u8],
        path: impl FnOnce() -> Vec<u8>,
        is_directory: bool,
    ) -> bool {
        let may_have_others = is_directory && !self.filter.is_empty();
        may_have_others || self.leaves_out(name, path, is_directory)
    }
}

/// Parses the patterns of `--include` and `--exclude`.
pub(crate) fn filter(include: &[OsString], exclude: &[OsString]) -> Result<Filter, Failure> {
    let globs = |option: &str, texts: &[OsString]| {
        let glob = |text: &OsString| {
            Glob::parse(text).map_err(|why| {
                Failure::Usage(format!("--{option} {}: {why}", text.to_string_lossy()))
            })
        };
        texts.iter().map(glob).collect::<Result<Vec<Glob>, Failure>>()
    };
    Ok(Filter::new(globs("include", include)?, globs("exclude", exclude)?))
}

/// Makes the directory `target` a copy of the directory `source`.
pub(crate) fn run(
    sessions: &mut Sessions<'_>,
    source: &Operand,
    target: &Operand,
    (options, sync): (&CopyOptions, &SyncOptions),
) -> Result<(), Failure> {
    let policy = Policy {
        filter: filter(&sync.include, &sync.exclude)?,
        delete: sync.delete,
        dry_run: sync.dry_run,
        checksum: sync.checksum,
    };
    supervise(options.json, sync.bwlimit, |report| match (source, target) {
        (Operand::Remote(source), Operand::Local(target)) => {
            super::get::sync(sessions, (source, target), (options, &policy), report)
        }
        (source, Operand::Remote(target)) => {
            super::put::sync(sessions, (source, target), (options, &policy), report)
        }
        (Operand::Local(_), Operand::Local(_)) => Err(Failure::Usage(
            "both directories are on this host; use cp -a or rsync, or name one of them by its URL"
                .to_owned(),
        )),
    })
}

/// True if both times of change are the same, as far as both file systems keep it. Some keep whole
/// seconds or microseconds only.
pub(super) fn is_same_time(one: Time, other: Time) -> bool {
    let (one_part, other_part) = (one.nseconds, other.nseconds);
    let is_whole = one_part == 0 || other_part == 0;
    one.seconds == other.seconds && (is_whole || one_part / 1000 == other_part / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_far_as_both_are_kept() {
        let time = |seconds, nseconds| Time { seconds, nseconds };
        assert!(is_same_time(time(5, 123_456_789), time(5, 123_456_000)));
        assert!(is_same_time(time(5, 123_456_789), time(5, 0)));
        assert!(!is_same_time(time(5, 123_456_789), time(5, 123_457_000)));
        assert!(!is_same_time(time(5, 0), time(6, 0)));
    }

    #[test]
    fn a_wrong_pattern_is_named_with_its_option() {
        let failure = filter(&[], &["[a".into()]).unwrap_err();
        assert!(failure.text().unwrap().starts_with("--exclude [a: "), "{failure:?}");
    }
}
