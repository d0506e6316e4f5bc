//! Paths as text: raw bytes in which only the slash, "." and ".." are special (POSIX 4.13).

use std::collections::VecDeque;

/// A path split before its last component, with the requirements on that component. This is the
/// only place that splits paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitPath<'a> {
    /// The part before the last component, with the slash; empty for a relative path of one
    /// component.
    pub parent: &'a [u8],
    /// The last component; empty for the root and for an empty path.
    pub name: &'a [u8],
    /// True if a slash follows the last component, or if that is "." or "..". Then it must be a
    /// directory, and a symbolic link there is followed (POSIX 4.13).
    pub wants_directory: bool,
}

impl<'a> SplitPath<'a> {
    /// Splits a path.
    pub fn of(path: &'a [u8]) -> Self {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
        let at = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let name = &path[at..end];
        let wants_directory = end < path.len() || is_dots(name);
        Self { parent: &path[..at], name, wants_directory }
    }

    /// True for a path without an entry name at its end: it ends in "." or "..", or is the root.
    pub fn is_nameless(&self) -> bool {
        self.name.is_empty() || self.ends_in_dots()
    }

    /// True when the last component is "." or "..", which are not entry names.
    pub fn ends_in_dots(&self) -> bool {
        is_dots(self.name)
    }
}

/// True for "." and "..", which are not entry names.
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// The path with a slash before it, if it has none.
pub fn absolute(path: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.first() == Some(&b'/') { b"" } else { b"/" };
    [slash, path].concat()
}

/// The path of `name` in a directory.
pub fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if dir.last() == Some(&b'/') { b"" } else { b"/" };
    [dir, slash, name].concat()
}

/// Puts the components of `path` before those that are left of a walk, without empty ones and ".".
/// The last component is "." when the whole must end at a directory. False, and nothing is done,
/// when all would be longer than `bytes_max`.
pub fn prepend(left: &mut VecDeque<Vec<u8>>, path: &[u8], bytes_max: usize) -> bool {
    let waiting: usize = left.iter().map(|name| name.len() + 1).sum();
    if path.len() + waiting > bytes_max {
        return false;
    }
    if left.is_empty() && SplitPath::of(path).wants_directory {
        left.push_front(b".".to_vec());
    }
    for name in path.rsplit(|&byte| byte == b'/') {
        if !name.is_empty() && name != b"." {
            left.push_front(name.to_vec());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_whether_it_ends_at_a_directory() {
        for (path, parent, name, wants_directory) in [
            ("", "", "", false),
            ("/", "", "", true),
            ("f", "", "f", false),
            ("f/", "", "f", true),
            ("/f", "/", "f", false),
            ("/f//", "/", "f", true),
            ("a/f/.", "a/f/", ".", true),
            ("a/f/./", "a/f/", ".", true),
            ("a/..", "a/", "..", true),
            (".", "", ".", true),
            ("a//f", "a//", "f", false),
            ("a/.f", "a/", ".f", false),
        ] {
            let (parent, name) = (parent.as_bytes(), name.as_bytes());
            let expected = SplitPath { parent, name, wants_directory };
            assert_eq!(SplitPath::of(path.as_bytes()), expected, "{path}");
        }
    }
}
