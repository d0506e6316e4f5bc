//! The description of a volume, which its management daemon sends to clients.
//!
//! Invariants
//! * A volume is plain only if every part of its client is known to leave each file whole on one
//!   brick, with no other data that a write must keep consistent.

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Volume {
    /// Its bricks, as `gluster volume info` names them: HOST:PATH.
    pub(crate) bricks: Vec<String>,
    /// The first part that data servers cannot bypass.
    pub(crate) other: Option<String>,
}

/// Parts of the client that data servers can bypass.
const PLAIN: [&str; 6] = [
    "protocol/client",
    "cluster/distribute",
    "features/utime",
    "debug/io-stats",
    "system/posix-acl",
    "meta",
];

/// The prefix of more such parts, which cache or delay operations.
const PLAIN_KINDS: &str = "performance/";

impl Volume {
    /// Parses a description: parts from `volume NAME` to `end-volume`, with a `type` and `option`s
    /// each.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut volume = Self::default();
        let (mut kind, mut host, mut path) = ("", None, None);
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("type"), Some(word)) => kind = word,
                (Some("option"), Some("remote-host")) => host = words.next(),
                (Some("option"), Some("remote-subvolume")) => {
                    path = line.split_once("remote-subvolume").map(|(_, path)| path.trim());
                }
                (Some("end-volume"), _) => {
                    match (kind, host, path) {
                        ("protocol/client", Some(host), Some(path)) => {
                            volume.bricks.push(format!("{host}:{path}"));
                        }
                        // A client part without a brick is unknown.
                        ("protocol/client", ..) => volume.note(kind),
                        _ if PLAIN.contains(&kind) || kind.starts_with(PLAIN_KINDS) => {}
                        _ => volume.note(kind),
                    }
                    (kind, host, path) = ("", None, None);
                }
                _ => {}
            }
        }
        if volume.bricks.is_empty() {
            volume.note("no bricks");
        }
        volume
    }

    fn note(&mut self, kind: &str) {
        self.other.get_or_insert_with(|| kind.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENTS: &str = "volume dist-client-0\n    type protocol/client\n    \
        option ping-timeout 42\n    option remote-host gl1\n    \
        option remote-subvolume /data/brick 1\n    option transport-type socket\nend-volume\n \n\
        volume dist-client-1\n    type protocol/client\n    option remote-host 192.0.2.2\n    \
        option remote-subvolume /data/brick\nend-volume\n";

    fn with(kind: &str) -> Volume {
        let part = format!(
            "volume dist-x\n    type {kind}\n    option lock-migration off\n    \
            subvolumes dist-client-0 dist-client-1\nend-volume\n"
        );
        Volume::parse([CLIENTS, &part].concat().as_bytes())
    }

    #[test]
    fn plain_volumes_are_distinguished_from_others() {
        for kind in ["cluster/distribute", "features/utime", "performance/io-threads"] {
            let volume = with(kind);
            assert_eq!(volume.bricks, ["gl1:/data/brick 1", "192.0.2.2:/data/brick"]);
            assert_eq!(volume.other, None, "{kind}");
        }
        for kind in ["cluster/replicate", "cluster/disperse", "features/shard", "something/new"] {
            assert_eq!(with(kind).other.as_deref(), Some(kind));
        }
    }

    #[test]
    fn a_malformed_description_is_no_plain_volume() {
        let headless = CLIENTS.replace("option remote-host gl1", "");
        assert_eq!(Volume::parse(headless.as_bytes()).other.as_deref(), Some("protocol/client"));
        for text in [&b""[..], b"\xff\xfe", b"volume x\ntype protocol/client\n", b"end-volume"] {
            assert!(Volume::parse(text).other.is_some(), "{text:?}");
        }
    }
}
