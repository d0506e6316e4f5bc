//! URLs of both protocols.

use dafs_client::DafsUrl;
use dafs_nfs_client::mount::NfsUrl;
use std::fmt;
use std::str::FromStr;

/// The place of a file: server, path, and the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RemoteUrl {
    Dafs(DafsUrl),
    Nfs(NfsUrl),
}

impl RemoteUrl {
    /// Parses a URL.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let is = |scheme: &str| {
            text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if is("nfs://") || is("nfs+rdma://") {
            return NfsUrl::parse(text).map(Self::Nfs).map_err(|error| error.to_string());
        }
        DafsUrl::parse(text).map(Self::Dafs).map_err(|error| match error {
            dafs_client::UrlError::Scheme(text) => format!(
                "\"{text}\" does not start with dafs://, dafss://, nfs:// or nfs+rdma://; write \
                 dafs://HOST[:PORT]/PATH"
            ),
            other => other.to_string(),
        })
    }

    /// The path as raw bytes; starts with a slash.
    pub(crate) fn path(&self) -> &[u8] {
        match self {
            Self::Dafs(url) => url.path(),
            Self::Nfs(url) => url.path(),
        }
    }

    /// The same server with another path.
    pub(crate) fn with_path(&self, path: &[u8]) -> Result<Self, String> {
        match self {
            Self::Dafs(url) => url.with_path(path).map(Self::Dafs).map_err(|e| e.to_string()),
            Self::Nfs(url) => url.with_path(path).map(Self::Nfs).map_err(|e| e.to_string()),
        }
    }

    /// This path with `name` below it.
    pub(crate) fn join(&self, name: &[u8]) -> Result<Self, String> {
        match self {
            Self::Dafs(url) => url.join(name).map(Self::Dafs).map_err(|e| e.to_string()),
            Self::Nfs(url) => url.join(name).map(Self::Nfs).map_err(|e| e.to_string()),
        }
    }

    /// True if both have the same connection options.
    fn has_options_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dafs(a), Self::Dafs(b)) => a.has_options_of(b),
            // NFS options are part of the mount.
            _ => true,
        }
    }

    /// True if one session serves both.
    pub(crate) fn is_same_session(&self, other: &Self) -> bool {
        self.is_same_server(other) && self.has_options_of(other)
    }

    /// True if one connection serves both.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dafs(a), Self::Dafs(b)) => {
                let server = |url: &DafsUrl| {
                    let user = url.user().map(str::to_owned);
                    (user, url.host().to_owned(), url.port(), url.fence_id().map(str::to_owned))
                };
                server(a) == server(b)
            }
            (Self::Nfs(a), Self::Nfs(b)) => a.is_same_mount(b),
            _ => false,
        }
    }
}

impl FromStr for RemoteUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dafs(url) => url.fmt(f),
            Self::Nfs(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_chooses_the_protocol() {
        let parse = |text: &str| RemoteUrl::parse(text);
        assert!(matches!(parse("DAFS://h/a").unwrap(), RemoteUrl::Dafs(_)));
        assert!(matches!(parse("NFS://h/a").unwrap(), RemoteUrl::Nfs(_)));
        assert!(matches!(parse("nfs+rdma://h/a").unwrap(), RemoteUrl::Nfs(_)));
        let error = parse("http://h/").unwrap_err();
        assert!(error.contains("dafs://, dafss://, nfs:// or nfs+rdma://"), "{error}");
        let error = parse("nfs://h/?x").unwrap_err();
        assert!(error.contains("no option"), "{error}");
    }

    #[test]
    fn connections_are_shared_within_a_server_and_protocol() {
        let same = |a: &str, b: &str| {
            RemoteUrl::parse(a).unwrap().is_same_server(&RemoteUrl::parse(b).unwrap())
        };
        assert!(same("dafs://h/a", "dafs://h/b") && same("nfs://h/a", "nfs://h:2049/b"));
        assert!(!same("nfs://h/a", "nfs+rdma://h/a") && !same("nfs://h/", "nfs://h/?vers=3"));
        assert!(!same("nfs://h/", "dafs://h/"));
        let parse = |text: &str| RemoteUrl::parse(text).unwrap();
        assert!(parse("dafs://h/a").is_same_session(&parse("dafs://h/b")));
        assert!(!parse("dafs://h/?recovery=5").is_same_session(&parse("dafs://h/")));
        assert!(
            same("dafs://h/?recovery=5", "dafs://h/") && !same("dafs://h/?fence-id=a", "dafs://h/")
        );
    }
}
