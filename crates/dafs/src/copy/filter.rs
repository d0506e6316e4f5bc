//! The names that `--include` and `--exclude` choose.
//!
//! Invariants
//! * A name of any bytes is matched: a byte that is no UTF-8 is one letter.
//! * The time of a match is at most the length of the pattern times that of the name, whatever they are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A pattern: `?` and `[a-z]` stand for a letter, `*` for letters, none of them a slash; `**` for any
/// letters. One with a slash is about the path below the top, one without is about the name alone.
#[derive(Debug, Clone)]
pub(crate) struct Glob {
    parts: Vec<Part>,
    /// It is about the path.
    with_path: bool,
}

#[derive(Debug, Clone)]
enum Part {
    Letter(u32),
    /// Any letter but a slash.
    One,
    /// Ranges of letters; the letters outside of them if `is_not`.
    Class {
        is_not: bool,
        ranges: Vec<(u32, u32)>,
    },
    /// Any number of letters, slashes only if `deep`.
    Many {
        deep: bool,
    },
}

const SLASH: u32 = '/' as u32;

/// The letters of a name. A byte that is no UTF-8 is a number beyond all letters.
fn letters(name: &[u8]) -> Vec<u32> {
    let mut letters = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        letters.extend(chunk.valid().chars().map(u32::from));
        letters.extend(chunk.invalid().iter().map(|&byte| 0x11_0000 + u32::from(byte)));
    }
    letters
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// It is empty, or a bracket has no end.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let text = text.as_bytes();
        let inner = text.strip_prefix(b"/").unwrap_or(text);
        let inner = inner.strip_suffix(b"/").unwrap_or(inner);
        if inner.is_empty() {
            return Err("an empty pattern matches nothing; leave it out".to_owned());
        }
        let with_path = text.starts_with(b"/") || inner.contains(&b'/');
        let letters = letters(inner);
        let (mut parts, mut at) = (Vec::new(), 0);
        if with_path && !inner.starts_with(b"**/") {
            parts.push(Part::Letter(SLASH));
        }
        while let Some(&letter) = letters.get(at) {
            at += 1;
            parts.push(match char::from_u32(letter) {
                Some('?') => Part::One,
                Some('*') => {
                    let deep = letters.get(at).copied() == Some(u32::from('*'));
                    at += usize::from(deep);
                    Part::Many { deep }
                }
                Some('[') => class(&letters, &mut at)?,
                Some('\\') if at < letters.len() => {
                    at += 1;
                    Part::Letter(letters[at - 1])
                }
                _ => Part::Letter(letter),
            });
        }
        Ok(Self { parts, with_path })
    }

    /// True if it matches an object by its path below the top.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        // With a slash before it, "**/x" is x at any depth, the top included.
        let whole = [&b"/"[..], path].concat();
        let letters = letters(if self.with_path { &whole } else { name });
        // The places in the pattern that the letters so far may have led to.
        let mut at = vec![false; self.parts.len() + 1];
        at[0] = true;
        self.pass_many(&mut at);
        for letter in letters {
            let mut next = vec![false; at.len()];
            for (index, part) in self.parts.iter().enumerate().filter(|(index, _)| at[*index]) {
                match part {
                    Part::Many { deep } => next[index] |= *deep || letter != SLASH,
                    part => next[index + 1] |= part.takes(letter),
                }
            }
            at = next;
            self.pass_many(&mut at);
        }
        at[self.parts.len()]
    }

    /// A part that stands for any number of letters also stands for none.
    fn pass_many(&self, at: &mut [bool]) {
        for (index, part) in self.parts.iter().enumerate() {
            at[index + 1] |= at[index] && matches!(part, Part::Many { .. });
        }
    }
}

impl Part {
    /// True if this part, which stands for one letter, stands for `letter`.
    fn takes(&self, letter: u32) -> bool {
        match self {
            Self::Letter(own) => *own == letter,
            Self::One => letter != SLASH,
            Self::Class { is_not, ranges } => {
                let is_in = ranges.iter().any(|&(first, last)| (first..=last).contains(&letter));
                letter != SLASH && is_in != *is_not
            }
            Self::Many { .. } => false,
        }
    }
}

/// The class of letters whose bracket stands before `at`.
fn class(letters: &[u32], at: &mut usize) -> Result<Part, String> {
    let is = |at: usize, letter: char| letters.get(at).copied() == Some(u32::from(letter));
    let is_not = is(*at, '!') || is(*at, '^');
    *at += usize::from(is_not);
    let mut ranges = Vec::new();
    // A bracket that stands first is a letter.
    while ranges.is_empty() || !is(*at, ']') {
        let Some(&first) = letters.get(*at) else {
            return Err("a [ has no ]; write \\[ for the letter".to_owned());
        };
        let mut last = first;
        *at += 1;
        if is(*at, '-') && letters.get(*at + 1).is_some() && !is(*at + 1, ']') {
            last = letters[*at + 1];
            *at += 2;
        }
        ranges.push((first, last));
    }
    *at += 1;
    Ok(Part::Class { is_not, ranges })
}

/// The patterns of a command line.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl Filter {
    pub(crate) fn new(include: Vec<Glob>, exclude: Vec<Glob>) -> Self {
        Self { include, exclude }
    }

    /// True if there is no pattern, so that no object is left out.
    pub(crate) fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// True if the object of that path below the top is left out. Files that are not to be included
    /// are, and each object that is to be excluded.
    pub(crate) fn leaves_out(&self, path: &[u8], is_directory: bool) -> bool {
        let has = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(path));
        has(&self.exclude) || !(is_directory || self.include.is_empty() || has(&self.include))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(text: &[u8]) -> Glob {
        Glob::parse(OsStr::from_bytes(text)).unwrap()
    }

    #[test]
    fn patterns_match_names_and_paths() {
        let cases: [(&[u8], &[u8], bool); 23] = [
            (b"*.o", b"a.o", true),
            (b"*.o", b"deep/in/a.o", true),
            (b"*.o", b"a.of", false),
            (b"/*.o", b"a.o", true),
            (b"/*.o", b"in/a.o", false),
            (b"in/*.o", b"in/a.o", true),
            (b"in/*.o", b"in/b/a.o", false),
            (b"in/**", b"in/b/a.o", true),
            (b"**/a.o", b"a.o", true),
            (b"**/a.o", b"x/y/a.o", true),
            (b"**/a.o", b"ba.o", false),
            (b"**/y/a.o", b"y/a.o", true),
            (b"a?c", b"a\xc3\xa4c", true),
            (b"a?c", b"a\xffc", true),
            (b"a\xffc", b"a\xffc", true),
            (b"a\xffc", b"a\xfec", false),
            (b"[a-c]x", b"bx", true),
            (b"[!a-c]x", b"bx", false),
            (b"[]]", b"]", true),
            (b"[a-]", b"-", true),
            (b"\\*", b"*", true),
            (b"\\*", b"a", false),
            (b"build/", b"build", true),
        ];
        for (pattern, path, expected) in cases {
            let shown = (String::from_utf8_lossy(pattern), String::from_utf8_lossy(path));
            assert_eq!(glob(pattern).matches(path), expected, "{shown:?}");
        }
        for wrong in ["", "/", "[a", "[!", "[]"] {
            assert!(Glob::parse(OsStr::new(wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern = [b"*a".repeat(200), b"b".to_vec()].concat();
        assert!(!glob(&pattern).matches(&b"a".repeat(5000)));
    }

    #[test]
    fn directories_are_searched_for_files_to_include() {
        let filter = Filter::new(vec![glob(b"*.c")], vec![glob(b"build"), glob(b"/x/*.c")]);
        let left = |path: &[u8], is_directory| filter.leaves_out(path, is_directory);
        assert!(!left(b"src", true) && !left(b"src/a.c", false) && left(b"src/a.o", false));
        assert!(left(b"src/build", true) && left(b"x/a.c", false));
        assert!(!Filter::default().leaves_out(b"a", false) && Filter::default().is_empty());
    }
}
