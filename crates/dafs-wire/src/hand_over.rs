//! The messages between a running server and the process that takes its place: lines of text.
//!
//! | line | sender |
//! |---|---|
//! | `sockets`, and for each socket `tcp ADDRESS` or `shm ADDRESS` | the running server, with the descriptors |
//! | `go` | the next server: it is ready to start |
//! | `released VERIFIER DIGEST...`, with `-` for no verifier | the running server: it has ended |
//! | `serving` | the next server |
//! | `failed REASON` | either side: it does not go on |
//!
//! Invariants
//! * The line of a message is read as that message.
//! * A line has one end, and nothing behind it. Ends of lines in a reason are escaped.

use std::net::SocketAddr;

/// A message of either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Either side does not go on, with the reason.
    Failed(String),
    /// The next server is ready to start.
    Go,
    /// The present server has ended in order, but for its process.
    Released(Released),
    /// The next server serves.
    Serving,
    /// The listening sockets of the present server. Their descriptors come with it.
    Sockets(Vec<SocketName>),
}

/// The facts of a server that has ended in order which hold for the next one, too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Released {
    /// The write verifier (RFC 8881 18.3). `None` if unstable data may have been lost with the server.
    pub write_verifier: Option<[u8; 8]>,
    /// Digests of clients with the state that they hold.
    pub states: Vec<u64>,
}

/// The kind of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// The abstract UNIX socket for shared memory beside a TCP socket, whose address it has.
    Shm,
    /// TCP.
    Tcp,
}

/// The name of a listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketName {
    /// The kind of the socket.
    pub kind: SocketKind,
    /// Its address.
    pub address: SocketAddr,
}

impl Message {
    /// Returns the line of the message, with its end.
    pub fn to_line(&self) -> String {
        let mut line = match self {
            Self::Failed(reason) => {
                format!("failed {}", reason.replace('\\', "\\\\").replace('\n', "\\n"))
            }
            Self::Go => "go".to_owned(),
            Self::Released(Released { write_verifier, states }) => {
                let verifier = write_verifier.map(u64::from_be_bytes);
                let verifier = verifier.map_or("-".to_owned(), |number| format!("{number:016x}"));
                let states = states.iter().map(u64::to_string);
                let words = ["released".to_owned(), verifier].into_iter().chain(states);
                words.collect::<Vec<_>>().join(" ")
            }
            Self::Serving => "serving".to_owned(),
            Self::Sockets(names) => {
                let words = names.iter().map(|SocketName { kind, address }| match kind {
                    SocketKind::Shm => format!("shm {address}"),
                    SocketKind::Tcp => format!("tcp {address}"),
                });
                let words = std::iter::once("sockets".to_owned()).chain(words);
                words.collect::<Vec<_>>().join(" ")
            }
        };
        line.push('\n');
        line
    }

    /// Reads a line with its end. `None` if it is no message.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        if line.contains('\n') {
            return None;
        }
        if let Some(reason) = line.strip_prefix("failed ") {
            return Some(Self::Failed(unescaped(reason)?));
        }
        let mut words = line.split(' ');
        let message = match words.next()? {
            "go" => Self::Go,
            "released" => {
                let write_verifier = match words.next()? {
                    "-" => None,
                    digits => Some(verifier(digits)?),
                };
                let states = words.by_ref().map(|digest| digest.parse().ok());
                Self::Released(Released { write_verifier, states: states.collect::<Option<_>>()? })
            }
            "serving" => Self::Serving,
            "sockets" => Self::Sockets(socket_names(&mut words)?),
            _ => return None,
        };
        words.next().is_none().then_some(message)
    }
}

fn verifier(digits: &str) -> Option<[u8; 8]> {
    let is_number = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = is_number.then(|| u64::from_str_radix(digits, 16).ok());
    number.flatten().map(u64::to_be_bytes)
}

fn socket_names<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Vec<SocketName>> {
    let mut names = Vec::new();
    while let Some(kind) = words.next() {
        let kind = match kind {
            "shm" => SocketKind::Shm,
            "tcp" => SocketKind::Tcp,
            _ => return None,
        };
        names.push(SocketName { kind, address: words.next()?.parse().ok()? });
    }
    Some(names)
}

/// Returns a reason as it was before its escape.
fn unescaped(reason: &str) -> Option<String> {
    let (mut plain, mut rest) = (String::new(), reason.chars());
    while let Some(next) = rest.next() {
        plain.push(match next {
            '\\' => match rest.next()? {
                '\\' => '\\',
                'n' => '\n',
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(kind: SocketKind, address: &str) -> SocketName {
        SocketName { kind, address: address.parse().unwrap() }
    }

    #[test]
    fn messages_are_these_lines() {
        let write_verifier = Some([0, 1, 127, 128, 254, 255, 6, 7]);
        let names = vec![
            name(SocketKind::Tcp, "127.0.0.1:20490"),
            name(SocketKind::Shm, "[fe80::1%3]:2049"),
        ];
        for (message, line) in [
            (Message::Failed("no\nport \\n".to_owned()), "failed no\\nport \\\\n\n"),
            (Message::Failed(String::new()), "failed \n"),
            (Message::Go, "go\n"),
            (
                Message::Released(Released { write_verifier, states: vec![0, u64::MAX] }),
                "released 00017f80feff0607 0 18446744073709551615\n",
            ),
            (Message::Released(Released::default()), "released -\n"),
            (Message::Serving, "serving\n"),
            (Message::Sockets(names), "sockets tcp 127.0.0.1:20490 shm [fe80::1%3]:2049\n"),
            (Message::Sockets(Vec::new()), "sockets\n"),
        ] {
            assert_eq!(message.to_line(), line);
            assert_eq!(Message::parse(line.as_bytes()), Some(message));
        }
    }

    #[test]
    fn other_lines_are_no_messages() {
        for line in [
            "",
            "\n",
            "go",
            "go\n\n",
            "go \n",
            "go on\n",
            "failed\n",
            "failed a\nb\n",
            "failed \\\n",
            "failed \\t\n",
            "released\n",
            "released 00017f80feff060\n",
            "released 00017f80feff060g\n",
            "released - 18446744073709551616\n",
            "released - -1\n",
            "sockets tcp\n",
            "sockets udp 127.0.0.1:1\n",
            "sockets tcp 127.0.0.1\n",
            "{\"failed\":\"this is not a request\"}\n",
        ] {
            assert_eq!(Message::parse(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(Message::parse(b"failed \xff\n"), None);
    }
}
