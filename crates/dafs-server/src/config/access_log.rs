//! The table `[access_log]`: the file with a line for each request.

use super::keys::table;
use super::{Wrong, wrong};
use std::path::{Path, PathBuf};

table! {
    pub(super) struct AccessLogFile {
        /// The file that gets a line for each request of DAFS and NFS. Its directory exists.
        file: PathBuf,
        /// The form of the lines: `text` or `json`. Default: `text`.
        format: Option<String>,
        /// The requests that get a line: `all`, or `slow` for those that take longer than
        /// `slow_operation_ms`. Default: `all`.
        requests: Option<String>,
        /// The server renames the file when it has so many bytes, and keeps the last five: 65536 or more.
        /// Default: 104857600.
        bytes_max: Option<u64>,
    }
}

/// The log of requests in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// The file.
    pub file: PathBuf,
    /// The lines are JSON objects.
    pub is_json: bool,
    /// Only slow requests get a line.
    pub only_slow: bool,
    /// The size in bytes at which the file is renamed.
    pub bytes_max: u64,
}

impl AccessLogConfig {
    const BYTES_MAX: u64 = 100 << 20;

    /// The least size at which a file is renamed.
    const BYTES_MAX_MIN: u64 = 64 << 10;
}

/// Checks the table.
pub(super) fn check(
    table: Option<AccessLogFile>,
    has_limit: bool,
    base: &Path,
) -> Result<Option<AccessLogConfig>, Wrong> {
    let Some(AccessLogFile { file, format, requests, bytes_max }) = table else { return Ok(None) };
    let is_json = match format.as_deref() {
        None | Some("text") => false,
        Some("json") => true,
        Some(other) => {
            let remedy = format!("{other:?} is no form; write \"text\" or \"json\"");
            return Err(wrong("access_log.format", remedy));
        }
    };
    let only_slow = match requests.as_deref() {
        None | Some("all") => false,
        Some("slow") if has_limit => true,
        Some("slow") => {
            let remedy = "write slow_operation_ms, too, which says what is slow";
            return Err(wrong("access_log.requests", remedy));
        }
        Some(other) => {
            let remedy = format!("{other:?} is no choice; write \"all\" or \"slow\"");
            return Err(wrong("access_log.requests", remedy));
        }
    };
    let bytes_max = bytes_max.unwrap_or(AccessLogConfig::BYTES_MAX);
    if bytes_max < AccessLogConfig::BYTES_MAX_MIN {
        return Err(wrong("access_log.bytes_max", "use at least 65536"));
    }
    Ok(Some(AccessLogConfig { file: base.join(file), is_json, only_slow, bytes_max }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(format: &str, requests: &str, bytes_max: u64) -> Option<AccessLogFile> {
        let text = format!(
            "file = \"access\"\nformat = \"{format}\"\nrequests = \"{requests}\"\nbytes_max = {bytes_max}"
        );
        Some(toml::from_str(&text).unwrap())
    }

    #[test]
    fn a_table_is_checked() {
        let base = Path::new("/etc/dafs");
        assert_eq!(check(None, false, base).ok(), Some(None));
        let log = check(table("json", "slow", 65_536), true, base).ok().flatten().unwrap();
        assert_eq!(log.file, Path::new("/etc/dafs/access"));
        assert!(log.is_json && log.only_slow && log.bytes_max == 65_536);
        for wrong in [
            table("xml", "all", 65_536),
            table("text", "slow", 65_536),
            table("text", "none", 65_536),
            table("text", "all", 65_535),
        ] {
            assert!(check(wrong, false, base).is_err());
        }
    }
}
