//! The text of a manual page, in the macros of man(7).
//!
//! Invariants
//! * No text from a definition is taken for a request or an escape sequence of roff.

/// The text of a page under way.
pub(super) struct Roff {
    text: String,
}

impl Roff {
    /// Begins a page: its title, its section, and one line about its subject.
    pub(super) fn new(name: &str, section: u8, about: &str) -> Self {
        let (title, version) = (escaped(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
        let mut page =
            Self { text: format!(".TH {title} {section} \"\" \"dafs {version}\" \"dafs\"\n") };
        page.section("Name");
        page.line(&format!("{} \\- {}", escaped(name), marked(about)));
        page
    }

    /// Begins a section.
    pub(super) fn section(&mut self, title: &str) {
        self.text.push_str(&format!(".SH {}\n", escaped(&title.to_uppercase())));
    }

    /// Begins a part of a section.
    pub(super) fn part(&mut self, title: &str) {
        self.text.push_str(&format!(".SS {}\n", escaped(title)));
    }

    /// Adds paragraphs, between which the text has empty lines.
    pub(super) fn paragraphs(&mut self, text: &str) {
        for paragraph in text.split("\n\n") {
            self.text.push_str(".PP\n");
            self.line(&marked(paragraph));
        }
    }

    /// Adds an item of a list. The head is roff already: see [`bold`] and [`italic`].
    pub(super) fn item(&mut self, head: &str, text: &str) {
        self.text.push_str(".TP\n");
        self.line(head);
        for (index, paragraph) in text.split("\n\n").enumerate() {
            if index > 0 {
                self.text.push_str(".IP\n");
            }
            self.line(&marked(paragraph));
        }
    }

    /// Adds lines that keep their form.
    pub(super) fn verbatim(&mut self, text: &str) {
        self.text.push_str(".PP\n.nf\n");
        for line in text.lines() {
            self.line(&escaped(line));
        }
        self.text.push_str(".fi\n");
    }

    /// Adds references to other pages of this section or another one.
    pub(super) fn references(&mut self, pages: &[(String, u8)]) {
        let last = pages.len().saturating_sub(1);
        for (index, (name, section)) in pages.iter().enumerate() {
            let comma = if index < last { "," } else { "" };
            self.text.push_str(&format!(".BR {} ({section}){comma}\n", escaped(name)));
        }
    }

    /// Ends the page.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, roff: &str) {
        // A line that begins with one of these would be a request.
        if roff.starts_with(['.', '\'']) {
            self.text.push_str("\\&");
        }
        self.text.push_str(roff);
        self.text.push('\n');
    }
}

/// Returns text in bold.
pub(super) fn bold(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text))
}

/// Returns text in italics.
pub(super) fn italic(text: &str) -> String {
    format!("\\fI{}\\fR", escaped(text))
}

/// Returns text that roff prints as it is.
pub(super) fn escaped(text: &str) -> String {
    let mut roff = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' => roff.push_str("\\e"),
            '-' => roff.push_str("\\-"),
            '\'' => roff.push_str("\\(aq"),
            '`' => roff.push_str("\\(ga"),
            '^' => roff.push_str("\\(ha"),
            '~' => roff.push_str("\\(ti"),
            '\n' => roff.push(' '),
            other => roff.push(other),
        }
    }
    roff
}

/// Returns a paragraph with what stands between backquotes in bold.
pub(super) fn marked(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let of = |(index, piece): (usize, &str)| match index % 2 {
        1 => bold(piece),
        _ => escaped(piece),
    };
    pieces.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped(r"a\-b 'c'"), r"a\e\-b \(aqc\(aq");
        assert_eq!(marked("use `dafs ls -l`, say"), r"use \fBdafs ls \-l\fR, say");
        let mut page = Roff::new("dafs-x", 1, "about");
        page.paragraphs(".SH is text\n\n'so is this");
        page.item(&bold("-x"), "one\n\ntwo");
        let wanted =
            ".PP\n\\&.SH is text\n.PP\n\\(aqso is this\n.TP\n\\fB\\-x\\fR\none\n.IP\ntwo\n";
        assert!(page.finish().ends_with(wanted));
    }
}
