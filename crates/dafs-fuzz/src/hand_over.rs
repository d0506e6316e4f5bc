//! A line between a server and the one that takes its place.
//!
//! Checked: no panic; the line of a message that is taken has one end, and is read as the same message.

use dafs_wire::hand_over::Message;

pub fn run(data: &[u8]) {
    let Some(message) = Message::parse(data) else { return };
    let line = message.to_line();
    assert_eq!(Message::parse(line.as_bytes()), Some(message));
    assert_eq!(line.find('\n'), Some(line.len() - 1));
}
