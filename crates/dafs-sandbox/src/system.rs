//! The files of the system that every server needs late: libraries, the databases of users and
//! hosts, devices without content.
//!
//! Invariants
//! * No file here has secrets, except for root below `/etc`: a server of root gets single files.

use crate::policy::{Access, FileRule};
use std::path::{Path, PathBuf};

/// The readable part of `/etc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Etc {
    /// All, as for every user of the host. A file that is replaced stays readable.
    Whole,
    /// Single files without secrets. A file that is replaced later is not seen.
    Files,
}

/// Directories and files to read.
const READ: &[&str] = &[
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/gnu/store",
    "/sys",
    // Sockets and caches by which the C library asks for users and hosts.
    "/run/nscd",
    "/run/nslcd",
    "/run/samba/winbindd",
    "/run/systemd/resolve",
    "/run/systemd/userdb",
    "/var/lib/sss/mc",
    "/var/lib/sss/pipes",
    "/var/lib/sss/pubconf",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// Names below `/etc`.
const ETC: &[&str] = &[
    "alternatives",
    "crypto-policies",
    "gai.conf",
    "group",
    "gss",
    "host.conf",
    "hosts",
    "krb5.conf",
    "krb5.conf.d",
    "ld.so.cache",
    "libibverbs.d",
    "localtime",
    "netconfig",
    "networks",
    "nsswitch.conf",
    "passwd",
    "protocols",
    "resolv.conf",
    "rpc",
    "services",
    "ssl/openssl.cnf",
];

/// The files of the kernel about all processes and about itself, for a namespace without `/proc`.
pub(crate) const PROC: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/net",
    "/proc/sys/vm",
    "/proc/version",
];

/// Adds the files of the system to a server's own.
pub(crate) fn with_own(own: &[FileRule], etc: Etc) -> Vec<FileRule> {
    let rule = |path: PathBuf, access| FileRule { path, access, optional: true };
    let read = READ.iter().map(|path| rule(PathBuf::from(path), Access::Read));
    // Some are symlinks out of `/etc`: `resolv.conf` leads to `/run`.
    let single = ETC.iter().map(|name| Path::new("/etc").join(name));
    let whole = (etc == Etc::Whole).then(|| PathBuf::from("/etc"));
    let etc = single.chain(whole).map(|path| rule(path, Access::Read));
    let null = rule(PathBuf::from("/dev/null"), Access::Device);
    own.iter().cloned().chain(read).chain(etc).chain([null]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_root_sees_no_secrets_of_the_host() {
        let rules = with_own(&[], Etc::Files);
        for secret in ["/etc/shadow", "/etc/ssl/private/key.pem", "/etc/krb5.keytab"] {
            let secret = Path::new(secret);
            assert!(!rules.iter().any(|rule| secret.starts_with(&rule.path)), "{secret:?}");
        }
    }

    #[test]
    fn the_whole_of_etc_comes_with_the_targets_of_its_symlinks() {
        let rules = with_own(&[], Etc::Whole);
        for path in ["/etc", "/etc/resolv.conf", "/etc/localtime"] {
            assert!(rules.iter().any(|rule| rule.path == Path::new(path)), "{path}");
        }
    }
}
