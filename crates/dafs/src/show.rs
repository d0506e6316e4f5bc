//! The display of objects: the mode as letters, times, names of any bytes, JSON.

use crate::remote::{Attributes, ObjectType, Owner, RemoteUrl, Time};
use dafs_client::SplitPath;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use std::io::IsTerminal;

/// The name of a type of object.
pub(crate) fn kind(kind: ObjectType) -> &'static str {
    match kind {
        ObjectType::Regular => "file",
        ObjectType::Directory => "directory",
        ObjectType::BlockDevice => "block device",
        ObjectType::CharDevice => "character device",
        ObjectType::Symlink => "symlink",
        ObjectType::Socket => "socket",
        ObjectType::Fifo => "fifo",
        ObjectType::AttrDirectory => "attribute directory",
        ObjectType::NamedAttr => "named attribute",
        _ => "unknown",
    }
}

/// Type and permissions as ten letters, as `ls -l` has them.
pub(crate) fn mode_letters(object: ObjectType, mode: u32) -> String {
    let first = match object {
        ObjectType::Directory | ObjectType::AttrDirectory => 'd',
        ObjectType::BlockDevice => 'b',
        ObjectType::CharDevice => 'c',
        ObjectType::Symlink => 'l',
        ObjectType::Socket => 's',
        ObjectType::Fifo => 'p',
        _ => '-',
    };
    let mut letters = String::from(first);
    // Each class has a special bit, which replaces its x.
    for (shift, special, with_x, without_x) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

/// A number of bytes with a unit, as `ls -h` has it: at most five letters, rounded up.
pub(crate) fn human_size(bytes: u64) -> String {
    let Some(shift) = (1..=6).rev().map(|step| step * 10).find(|&shift| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    let unit = char::from(b"KMGTPE"[shift / 10 - 1]);
    let tenths = (u128::from(bytes) * 10).div_ceil(1 << shift);
    match tenths {
        0..100 => format!("{}.{}{unit}", tenths / 10, tenths % 10),
        _ => format!("{}{unit}", tenths.div_ceil(10)),
    }
}

/// An owner or group as text.
pub(crate) fn owner(owner: &Owner) -> String {
    match owner {
        Owner::Id(id) => id.to_string(),
        Owner::Name(name) => String::from_utf8_lossy(name).into_owned(),
        Owner::Unknown => "?".to_owned(),
    }
}

fn timestamp(time: Option<Time>) -> Option<Timestamp> {
    let time = time?;
    Timestamp::new(time.seconds, i32::try_from(time.nseconds).ok()?).ok()
}

/// A time to the minute, in the zone of this host.
pub(crate) fn minute(time: Option<Time>) -> String {
    timestamp(time).map_or_else(
        || "?".to_owned(),
        |time| time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string(),
    )
}

/// A time to the nanosecond, in the zone of this host.
pub(crate) fn nanosecond(time: Option<Time>) -> String {
    timestamp(time).map_or_else(
        || "-".to_owned(),
        |time| time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S.%9f %z").to_string(),
    )
}

fn time_json(time: Option<Time>) -> Value {
    timestamp(time).map_or(Value::Null, |time| json!(format!("{time:.9}")))
}

/// The bytes of a name for standard output: unchanged for a file or pipe. For a terminal, which
/// they could control, without control characters and with bad UTF-8 marked.
pub(crate) fn name_bytes(name: &[u8]) -> Vec<u8> {
    if !std::io::stdout().is_terminal() {
        return name.to_vec();
    }
    readable(name).into_bytes()
}

/// A name for a message: one line of text, whatever its bytes.
pub(crate) fn readable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// One object in JSON. `name` is for people; `url` names the object whatever bytes the name has.
pub(crate) fn object_json(url: &RemoteUrl, name: &[u8], attributes: &Attributes) -> Value {
    json!({
        "url": url.to_string(),
        "name": String::from_utf8_lossy(name),
        "type": kind(attributes.kind),
        "mode": format!("{:04o}", attributes.mode),
        "links": attributes.links,
        "owner": owner(&attributes.owner),
        "group": owner(&attributes.group),
        "size": attributes.size,
        "space_used": attributes.space_used,
        "file_id": attributes.file_id,
        "change": attributes.change,
        "accessed": time_json(attributes.accessed),
        "modified": time_json(attributes.modified),
        "changed": time_json(attributes.changed),
        "created": time_json(attributes.created),
    })
}

/// The last component of the path of a URL; empty for the root.
pub(crate) fn last_name(url: &RemoteUrl) -> &[u8] {
    SplitPath::of(url.path()).name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_shows_them() {
        let cases = [
            (ObjectType::Regular, 0o644, "-rw-r--r--"),
            (ObjectType::Directory, 0o1777, "drwxrwxrwt"),
            (ObjectType::Regular, 0o7000, "---S--S--T"),
            (ObjectType::Symlink, 0o777, "lrwxrwxrwx"),
            (ObjectType::Regular, 0o6755, "-rwsr-sr-x"),
        ];
        for (kind, mode, letters) in cases {
            assert_eq!(mode_letters(kind, mode), letters);
        }
    }

    #[test]
    fn sizes_have_units_and_are_not_shown_too_small() {
        let cases = [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((1 << 20) - 1, "1024K"),
            (3 << 29, "1.5G"),
            (u64::MAX, "16E"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(human_size(bytes), shown);
        }
    }

    #[test]
    fn any_bytes_make_one_readable_line() {
        assert_eq!(readable(b"a\nb\xffc"), "a\\nb\\xffc");
    }

    #[test]
    fn the_last_name_of_a_url() {
        let name = |text: &str| last_name(&RemoteUrl::parse(text).unwrap()).to_vec();
        assert_eq!(name("dafs://h/a/b/"), b"b");
        assert_eq!(name("dafs://h/"), b"");
        assert_eq!(name("dafs://h/a%FF"), b"a\xff");
    }
}
