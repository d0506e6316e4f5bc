//! `dafs df`: space of file systems.

use super::for_each;
use crate::failure::Failure;
use crate::output::say;
use crate::remote::{Follow, RemoteUrl};
use crate::session::Sessions;
use indicatif::BinaryBytes;
use serde_json::json;

/// Show the space of the file systems that hold files or directories, and what your quota leaves
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Df {
    /// Files or directories
    #[arg(required = true)]
    urls: Vec<RemoteUrl>,
    /// Means nothing: sizes always have a unit
    #[arg(short = 'h', long = "human-readable")]
    _human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    #[allow(dead_code, reason = "the parser prints the help and ends the process")]
    help: Option<bool>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

impl Df {
    pub(crate) fn run(&self, sessions: &mut Sessions<'_>) -> Result<(), Failure> {
        if !self.json {
            say!(
                "{:>12} {:>12} {:>12} {:>12} {:>12}  of",
                "size",
                "used",
                "available",
                "files free",
                "quota left"
            )?;
        }
        for_each(&self.urls, |url| {
            let client = sessions.client(url)?;
            let status = client
                .resolve(url.path(), Follow::Yes)
                .and_then(|found| client.fs_status(&found.handle))
                .map_err(|error| Failure::remote(url, &error))?;
            let used = status
                .space_total
                .zip(status.space_free)
                .map(|(total, free)| total.saturating_sub(free));
            if self.json {
                let object = json!({
                    "url": url.to_string(),
                    "space_total": status.space_total,
                    "space_used": used,
                    "space_free": status.space_free,
                    "space_available": status.space_available,
                    "files_total": status.files_total,
                    "files_free": status.files_free,
                    "files_available": status.files_available,
                    "quota_used": status.quota_used,
                    "quota_left": status.quota_left,
                    "name_bytes_max": status.name_bytes_max,
                    "file_bytes_max": status.file_bytes_max,
                });
                return say!("{object}");
            }
            let bytes = |bytes: Option<u64>| {
                bytes.map_or_else(|| "-".to_owned(), |bytes| BinaryBytes(bytes).to_string())
            };
            let left = limiting(status.quota_left, status.space_available);
            let files = status.files_available.map_or_else(|| "-".to_owned(), |n| n.to_string());
            say!(
                "{:>12} {:>12} {:>12} {files:>12} {:>12}  {url}",
                bytes(status.space_total),
                bytes(used),
                bytes(status.space_available),
                bytes(left),
            )
        })
    }
}

/// Returns what a quota leaves, if it limits before the free space does: otherwise NFS servers tell the
/// free space for both.
fn limiting(left: Option<u64>, available: Option<u64>) -> Option<u64> {
    left.filter(|left| available.is_none_or(|available| *left < available))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_quota_leaves_is_shown_where_it_limits() {
        assert_eq!(limiting(Some(1), Some(2)), Some(1));
        assert_eq!(limiting(Some(0), Some(2)), Some(0));
        assert_eq!(limiting(Some(2), Some(2)), None, "the free space");
        assert_eq!(limiting(Some(1), None), Some(1), "the free space is not known");
        assert_eq!(limiting(None, Some(2)), None);
    }
}
