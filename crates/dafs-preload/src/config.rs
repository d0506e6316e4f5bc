//! The configuration, from the environment variables of `dafs run`.
//!
//! Invariants
//! * It is read once, before the program starts, and never changes.
//! * A prefix is absolute, normal and not the root.

use crate::limits::READ_AHEAD_MEMORY_BYTES;
use crate::location::normal;
use dafs_client::watch::TABLE_VARIABLE;
use dafs_client::{Authentication, CacheOptions, ConnectOptions, DafsUrl, RdmaDevices};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The variables that child programs must inherit.
pub(crate) const VARIABLES: [&str; 12] = [
    "LD_PRELOAD",
    TABLE_VARIABLE,
    "DAFS_RUN_AT",
    "DAFS_RUN_BYPASS",
    "DAFS_RUN_REPORT",
    "DAFS_RUN_TRANSPORT",
    "DAFS_RUN_USER",
    "DAFS_RUN_PASSWORD_FILE",
    "DAFS_RUN_FENCE_ID",
    "DAFS_RUN_CHECKSUMS",
    "DAFS_RUN_DEADLINE",
    "DAFS_RUN_RECOVERY",
];

/// A directory of a server, under a prefix of this machine's paths.
#[derive(Debug)]
pub(crate) struct Mount {
    /// The prefix, without a slash at its end.
    pub(crate) prefix: Vec<u8>,
    /// The server.
    pub(crate) url: DafsUrl,
    /// The path on the server behind the prefix, without a slash at its end.
    pub(crate) base: Vec<u8>,
}

/// The whole configuration.
#[derive(Debug)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct Config {
    pub(crate) mounts: Vec<Mount>,
    /// Paths below a prefix that are not served.
    pub(crate) bypass: Vec<Vec<u8>>,
    /// The target of the report: a file, or `-` for standard error.
    pub(crate) report: Option<PathBuf>,
    pub(crate) options: ConnectOptions,
    /// The values of the first variables, for child programs.
    pub(crate) environment: Vec<(&'static str, Vec<u8>)>,
}

static CONFIG: OnceLock<Option<Config>> = OnceLock::new();

/// The configuration. `None` before the start, and if this process is not to be served.
pub(crate) fn get() -> Option<&'static Config> {
    CONFIG.get()?.as_ref()
}

/// Reads the environment.
pub(crate) fn load() -> Option<&'static Config> {
    CONFIG.get_or_init(|| parse(&|name| std::env::var_os(name).map(OsStringExt::into_vec))).as_ref()
}

fn parse(variable: &dyn Fn(&str) -> Option<Vec<u8>>) -> Option<Config> {
    let at = variable("DAFS_RUN_AT")?;
    let mounts: Vec<Mount> = lines(&at).filter_map(mount).collect();
    if mounts.is_empty() {
        return None;
    }
    let bypass = variable("DAFS_RUN_BYPASS").unwrap_or_default();
    let environment =
        VARIABLES.into_iter().filter_map(|name| Some((name, variable(name)?))).collect();
    Some(Config {
        mounts,
        bypass: lines(&bypass).map(normal).collect(),
        report: variable("DAFS_RUN_REPORT").map(|path| OsStr::from_bytes(&path).into()),
        options: options(&|name| variable(name).and_then(|value| String::from_utf8(value).ok())),
        environment,
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn mount(line: &[u8]) -> Option<Mount> {
    let equals = line.iter().position(|&byte| byte == b'=')?;
    let prefix = normal(&line[..equals]);
    let url = DafsUrl::parse(std::str::from_utf8(&line[equals + 1..]).ok()?).ok()?;
    let mut base = url.path().to_vec();
    while base.last() == Some(&b'/') {
        base.pop();
    }
    (prefix.first() == Some(&b'/') && prefix.len() > 1).then_some(Mount { prefix, url, base })
}

fn options(variable: &dyn Fn(&str) -> Option<String>) -> ConnectOptions {
    // A cache for readers: a killed program loses none of its writes.
    let cache = Some(CacheOptions::for_readers(READ_AHEAD_MEMORY_BYTES));
    let mut options = ConnectOptions { cache, ..ConnectOptions::default() };
    let seconds = |name| variable(name)?.parse().ok().map(|seconds: u64| seconds);
    let or_never = |seconds| (seconds != 0).then(|| Duration::from_secs(seconds));
    if let Some(seconds) = seconds("DAFS_RUN_DEADLINE") {
        options.deadline = or_never(seconds);
    }
    if let Some(seconds) = seconds("DAFS_RUN_RECOVERY") {
        options.recovery = or_never(seconds);
    }
    let transport = variable("DAFS_RUN_TRANSPORT").and_then(|name| name.parse().ok());
    options.transport = transport.unwrap_or_default();
    // The program may close all descriptors and open files under their numbers, into which the
    // libraries of devices would write.
    options.rdma_devices = RdmaDevices::None;
    options.checksums = variable("DAFS_RUN_CHECKSUMS").is_some();
    options.fence_id = variable("DAFS_RUN_FENCE_ID");
    if let Some(id) = variable("DAFS_RUN_USER") {
        let password = match variable("DAFS_RUN_PASSWORD_FILE") {
            Some(path) => std::fs::read_to_string(path)
                .ok()
                .and_then(|text| text.lines().next().map(str::to_owned))
                .unwrap_or_default(),
            None => variable("DAFS_PASSWORD").unwrap_or_default(),
        };
        options.prove(Authentication::Text { id, password });
    }
    options
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    fn with(at: &str) -> Option<Config> {
        let at = at.as_bytes().to_vec();
        parse(&|name| (name == "DAFS_RUN_AT").then(|| at.clone()))
    }

    #[test]
    fn several_prefixes() {
        let config = with("/a/=dafs://h/x/\n/b//c=dafs://h:7/").unwrap();
        let found: Vec<_> =
            config.mounts.iter().map(|m| (m.prefix.as_slice(), m.base.as_slice())).collect();
        assert_eq!(found, [(&b"/a"[..], &b"/x"[..]), (b"/b/c", b"")]);
    }

    #[test]
    fn nonsense_serves_nothing() {
        for text in ["", "/a", "a=dafs://h/", "/=dafs://h/", "/a=http://h/"] {
            assert!(with(text).is_none(), "{text}");
        }
    }
}
