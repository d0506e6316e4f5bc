//! The configuration file: TOML in, checked values out. Every message names the key at fault and
//! what to write instead; syntax errors carry the line.

use crate::limits::SessionLimits;
use dafs_service::{ExportOptions, Squash};
use dafs_store::Cred;
use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// The port that clients use when a URL names none.
pub const DEFAULT_PORT: u16 = 20_490;

/// What an administrator must write to let strangers in without proof.
pub const DANGER_SENTENCE: &str = "anyone who reaches this port can read and write these files";

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not TOML, or has a key that does not exist. The text names line and column.
    #[error("{path}: {error}", path = .path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Where and what.
        error: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("{path} line {line}: {key}: {remedy}", path = .path.display())]
    Value {
        /// Which file.
        path: PathBuf,
        /// The line of the key, from 1.
        line: usize,
        /// The key, with its table.
        key: String,
        /// What is wrong and what to write.
        remedy: String,
    },
    /// Strangers could reach an export without proving who they are.
    #[error(
        "{address} can be reached by other hosts and clients need not prove who they are; set \
         password_file, or listen on 127.0.0.1, or write\n  \
         danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\""
    )]
    Unauthenticated {
        /// The address.
        address: SocketAddr,
    },
}

/// A value that makes no sense, before it is known which line it stands in.
struct Wrong {
    key: String,
    /// The way to the key: names of tables and keys, numbers of array elements.
    steps: Vec<String>,
    remedy: String,
}

/// `key` is dotted.
fn wrong(key: &str, remedy: impl Into<String>) -> Wrong {
    let steps = key.split('.').map(str::to_owned).collect();
    Wrong { key: key.to_owned(), steps, remedy: remedy.into() }
}

impl Wrong {
    fn locate(self, path: &Path, text: &str) -> ConfigError {
        let line = line_of(text, &self.steps);
        ConfigError::Value { path: path.to_owned(), line, key: self.key, remedy: self.remedy }
    }
}

/// The line in which the last of the steps that exist begins.
fn line_of(text: &str, steps: &[String]) -> usize {
    let Ok(table) = DeTable::parse(text) else { return 1 };
    let mut at = 0;
    let mut value = &DeValue::Table(table.into_inner());
    for step in steps {
        let found = match value {
            DeValue::Table(table) => {
                table.get_key_value(step.as_str()).map(|(key, value)| (key.span(), value))
            }
            DeValue::Array(array) => step
                .parse::<usize>()
                .ok()
                .and_then(|index| array.get(index))
                .map(|value| (value.span(), value)),
            _ => None,
        };
        let Some((span, inner)) = found else { break };
        at = span.start;
        value = inner.get_ref();
    }
    1 + text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count()
}

/// How a reactor waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wake {
    /// Looks for work for a while, then sleeps.
    #[default]
    Adaptive,
    /// Never sleeps: one core per reactor, lowest latency.
    Poll,
    /// Sleeps at once: least CPU.
    Sleep,
}

impl FromStr for Wake {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "adaptive" => Ok(Self::Adaptive),
            "poll" => Ok(Self::Poll),
            "sleep" => Ok(Self::Sleep),
            _ => Err("use adaptive, poll or sleep".to_owned()),
        }
    }
}

/// A range of network addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    prefix_bits: u8,
}

impl AddressRange {
    /// Both loopback ranges.
    pub fn loopback() -> [Self; 2] {
        [
            Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix_bits: 8 },
            Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix_bits: 128 },
        ]
    }

    /// True when `address` lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let ignored = width - u32::from(self.prefix_bits);
        own.checked_shr(ignored).unwrap_or(0) == other.checked_shr(ignored).unwrap_or(0)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let remedy =
            || format!("{text:?} is no address range; write 192.0.2.0/24 or 2001:db8::/32");
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let address: IpAddr = address.parse().map_err(|_| remedy())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| remedy()))?;
        if prefix_bits > width { Err(remedy()) } else { Ok(Self { address, prefix_bits }) }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// Where the files of an export live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportSource {
    /// In a local directory.
    Directory(PathBuf),
    /// In memory, up to so many bytes; they are gone when the server ends.
    Memory {
        /// Bytes of file content, symlink texts and names.
        bytes_max: u64,
    },
}

/// An export.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// Its name below the root; empty for the only export of a server without a file.
    pub name: String,
    /// Its files.
    pub source: ExportSource,
    /// Its rules.
    pub options: ExportOptions,
}

/// What the server shows to clients that ask who it is (SERVER_AUTH with TEXT). It travels in
/// clear, so it tells two servers apart and proves little.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnIdentity {
    /// A name.
    pub id: String,
    /// A password that clients compare.
    pub password: String,
}

/// Everything a server needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// What to export.
    pub exports: Vec<ExportConfig>,
    /// How long a silent client keeps its opens.
    pub lease_time: Duration,
    /// How reactors wait.
    pub wake: Wake,
    /// Reactor threads.
    pub threads: usize,
    /// Addresses whose clients may name their users themselves.
    pub trusted: Vec<AddressRange>,
    /// Users and their password hashes, for authentication TEXT.
    pub password_file: Option<PathBuf>,
    /// The server's own proof, if it has one.
    pub own_identity: Option<OwnIdentity>,
    /// Where the key that signs file handles is kept; `None` for the user's default place.
    pub state_directory: Option<PathBuf>,
    /// Ask iWARP peers for CRC32C.
    pub crc: bool,
    /// The danger sentence was written.
    pub allow_unauthenticated_remote_clients: bool,
    /// Bounds.
    pub limits: SessionLimits,
}

impl Config {
    /// One directory, on loopback, without a file.
    pub fn for_directory(path: PathBuf) -> Self {
        let options = ExportOptions::default();
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))],
            exports: vec![ExportConfig {
                name: String::new(),
                source: ExportSource::Directory(path),
                options,
            }],
            lease_time: Duration::from_secs(30),
            wake: Wake::Adaptive,
            threads: default_threads(),
            trusted: Vec::new(),
            password_file: None,
            own_identity: None,
            state_directory: None,
            crc: false,
            allow_unauthenticated_remote_clients: false,
            limits: SessionLimits::default(),
        }
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(path, None)
    }

    /// Reads a configuration file, and exports `directory` instead of what it names.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_for_directory(path: &Path, directory: PathBuf) -> Result<Self, ConfigError> {
        Self::load_with(path, Some(directory))
    }

    fn load_with(path: &Path, directory: Option<PathBuf>) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let file: ConfigFile = toml::from_str(&text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            error: Box::new(error),
        })?;
        file.check(path.parent().unwrap_or(Path::new(".")), directory)
            .map_err(|wrong| wrong.locate(path, &text))
    }

    /// Refuses an open door that nobody meant to open.
    ///
    /// # Errors
    /// The address that strangers could reach.
    pub fn check_exposure(&self) -> Result<(), ConfigError> {
        if self.allow_unauthenticated_remote_clients {
            return Ok(());
        }
        // Trusted ranges are the administrator's word; without them and without passwords nobody
        // from outside gets in, and with them somebody does without any proof.
        let loopback = AddressRange::loopback();
        let outside = self.trusted.iter().any(|range| !loopback.contains(range));
        let reachable = self.listen.iter().find(|address| !address.ip().is_loopback());
        match reachable {
            Some(&address) if outside || self.password_file.is_none() => {
                Err(ConfigError::Unauthenticated { address })
            }
            _ => Ok(()),
        }
    }
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(4))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    listen: Vec<String>,
    lease_time_seconds: Option<u64>,
    #[serde(default)]
    wake: Wake,
    threads: Option<usize>,
    trusted: Option<Vec<String>>,
    password_file: Option<PathBuf>,
    state_directory: Option<PathBuf>,
    server_auth: Option<OwnIdentity>,
    #[serde(default)]
    crc: bool,
    danger_allow_unauthenticated_remote_clients: Option<String>,
    #[serde(default)]
    limits: LimitsFile,
    #[serde(default)]
    export: Vec<ExportFile>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    connections: Option<usize>,
    connections_per_address: Option<usize>,
    credits_per_session: Option<u16>,
    transfer_bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportFile {
    name: String,
    path: Option<PathBuf>,
    memory_bytes: Option<u64>,
    #[serde(default)]
    read_only: bool,
    squash: Option<String>,
    anonymous_uid: Option<u32>,
    anonymous_gid: Option<u32>,
}

impl ConfigFile {
    fn check(self, base: &Path, directory: Option<PathBuf>) -> Result<Config, Wrong> {
        let exports = self.export.iter().enumerate();
        let exports = exports.map(|(index, export)| export.check(index, base));
        let exports = exports.collect::<Result<Vec<_>, _>>()?;
        let replaced = directory.is_some();
        let mut config = Config::for_directory(directory.unwrap_or_default());
        if !replaced {
            config.exports = exports;
        }
        if config.exports.is_empty() {
            return Err(wrong("export", "name at least one: [[export]] with name and path"));
        }
        if !self.listen.is_empty() {
            let parse = |text: &String| parse_listen(text).map_err(|e| wrong("listen", e));
            config.listen = self.listen.iter().map(parse).collect::<Result<_, _>>()?;
        }
        if let Some(seconds) = self.lease_time_seconds {
            if !(1..=3600).contains(&seconds) {
                return Err(wrong("lease_time_seconds", "use 1 to 3600"));
            }
            config.lease_time = Duration::from_secs(seconds);
        }
        if let Some(threads) = self.threads {
            if !(1..=256).contains(&threads) {
                return Err(wrong("threads", "use 1 to 256"));
            }
            config.threads = threads;
        }
        if let Some(trusted) = &self.trusted {
            let parse = |text: &String| text.parse().map_err(|e: String| wrong("trusted", e));
            config.trusted = trusted.iter().map(parse).collect::<Result<_, _>>()?;
        }
        if let Some(sentence) = self.danger_allow_unauthenticated_remote_clients {
            if sentence != DANGER_SENTENCE {
                return Err(wrong(
                    "danger_allow_unauthenticated_remote_clients",
                    format!("remove it, or if you mean it write exactly \"{DANGER_SENTENCE}\""),
                ));
            }
            config.allow_unauthenticated_remote_clients = true;
        }
        config.password_file = self.password_file.map(|path| base.join(path));
        config.state_directory = self.state_directory.map(|path| base.join(path));
        config.own_identity = self.server_auth;
        config.wake = self.wake;
        config.crc = self.crc;
        self.limits.apply(&mut config.limits)?;
        Ok(config)
    }
}

impl LimitsFile {
    fn apply(&self, limits: &mut SessionLimits) -> Result<(), Wrong> {
        if let Some(connections) = self.connections {
            if connections == 0 {
                return Err(wrong("limits.connections", "use at least 1"));
            }
            limits.connections_max = connections;
        }
        if let Some(connections) = self.connections_per_address {
            if connections == 0 {
                return Err(wrong("limits.connections_per_address", "use at least 1"));
            }
            limits.connections_per_address_max = connections;
        }
        if let Some(credits) = self.credits_per_session {
            if credits == 0 {
                return Err(wrong("limits.credits_per_session", "use at least 1"));
            }
            limits.credits_per_session_max = credits;
            limits.credits_initial = limits.credits_initial.min(credits);
        }
        if let Some(bytes) = self.transfer_bytes {
            if !(65_536..=64 << 20).contains(&bytes) {
                return Err(wrong("limits.transfer_bytes", "use 65536 to 67108864"));
            }
            limits.transfer_bytes_max = bytes;
        }
        Ok(())
    }
}

impl ExportFile {
    fn check(&self, index: usize, base: &Path) -> Result<ExportConfig, Wrong> {
        let wrong = |field: &str, remedy: String| Wrong {
            key: format!("export {:?}: {field}", self.name),
            steps: ["export", &index.to_string(), field].map(str::to_owned).to_vec(),
            remedy,
        };
        let squash = match self.squash.as_deref() {
            None | Some("root") => Squash::Root,
            Some("none") => Squash::None,
            Some("all") => Squash::All,
            Some(_) => return Err(wrong("squash", "use root, none or all".to_owned())),
        };
        let source = match (&self.path, self.memory_bytes) {
            (Some(path), None) => {
                let path = base.join(path);
                if !path.is_dir() {
                    let remedy = format!("{} is no directory; make it first", path.display());
                    return Err(wrong("path", remedy));
                }
                ExportSource::Directory(path)
            }
            (None, Some(bytes_max)) => ExportSource::Memory { bytes_max },
            (Some(_), Some(_)) => {
                return Err(wrong("memory_bytes", "leave it out, or path".to_owned()));
            }
            (None, None) => {
                let remedy = "write path = \"DIRECTORY\", or memory_bytes = N for files in memory";
                return Err(wrong("name", remedy.to_owned()));
            }
        };
        let nobody = ExportOptions::default().anonymous;
        let anonymous = Cred::new(
            self.anonymous_uid.unwrap_or(nobody.uid),
            self.anonymous_gid.unwrap_or(nobody.gid),
        );
        let options = ExportOptions { read_only: self.read_only, squash, anonymous };
        Ok(ExportConfig { name: self.name.clone(), source, options })
    }
}

/// Reads `HOST:PORT`, `:PORT` or `PORT` into an address to listen on; names are resolved.
///
/// # Errors
/// What to write instead.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    use std::net::ToSocketAddrs;
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.trim_start_matches(':').parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| format!("{text:?} is no address; write HOST:PORT, such as 127.0.0.1:20490"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        let path = dir.path().join("dafs.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    const EXPORT: &str = "[[export]]\nname = \"data\"\npath = \"data\"\n";

    #[test]
    fn a_small_file_gets_safe_defaults() {
        let config = load(EXPORT).unwrap();
        assert_eq!(config.listen[0].port(), DEFAULT_PORT);
        assert!(config.listen[0].ip().is_loopback());
        assert_eq!(config.exports[0].options.squash, Squash::Root);
        config.check_exposure().unwrap();
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let check = |text: &str, expected: &str| {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
        };
        check("", "[[export]]");
        check("lissten = 3", "line 1");
        check(&format!("wake = \"often\"\n{EXPORT}"), "line 1");
        check(&format!("lease_time_seconds = 0\n{EXPORT}"), "use 1 to 3600");
        check(&format!("listen = [\"nowhere\"]\n{EXPORT}"), "HOST:PORT");
        check(&format!("trusted = [\"10/8\"]\n{EXPORT}"), "192.0.2.0/24");
        check(&format!("{EXPORT}squash = \"most\""), "root, none or all");
        check(&EXPORT.replace("\"data\"\n", "\"gone\"\n"), "is no directory");
        check(&format!("{EXPORT}memory_bytes = 5"), "leave it out");
        check("[[export]]\nname = \"data\"", "memory_bytes = N");
        check(
            &format!("danger_allow_unauthenticated_remote_clients = \"yes\"\n{EXPORT}"),
            DANGER_SENTENCE,
        );
    }

    #[test]
    fn an_open_door_must_be_meant() {
        let open = format!("listen = [\"0.0.0.0:0\"]\n{EXPORT}");
        let error = load(&open).unwrap().check_exposure().unwrap_err();
        assert!(matches!(error, ConfigError::Unauthenticated { .. }));
        let meant =
            format!("danger_allow_unauthenticated_remote_clients = \"{DANGER_SENTENCE}\"\n{open}");
        load(&meant).unwrap().check_exposure().unwrap();
        let passwords = format!("password_file = \"users\"\n{open}");
        load(&passwords).unwrap().check_exposure().unwrap();
        let trusting = format!("trusted = [\"10.0.0.0/8\"]\n{passwords}");
        assert!(load(&trusting).unwrap().check_exposure().is_err());
    }

    #[test]
    fn ranges_compare_by_prefix() {
        let range: AddressRange = "192.0.2.0/24".parse().unwrap();
        assert!(range.contains("192.0.2.255".parse().unwrap()));
        assert!(range.contains("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!range.contains("192.0.3.0".parse().unwrap()));
        let all: AddressRange = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()));
        assert!(!all.contains("127.0.0.1".parse().unwrap()));
    }
}
