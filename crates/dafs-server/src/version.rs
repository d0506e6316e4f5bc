//! The version of this build, with the commit of the checkout that it is from.

use std::sync::LazyLock;

/// Returns the version of dafs. Builds by `make build` from a git checkout tell the commit, too:
/// `0.1.0 (1a2b3c4d5e6f)`, with `-dirty` behind the commit if files differed from it.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| text(commit()));
    &TEXT
}

/// Returns the commit. Empty if it is unknown.
pub(crate) fn commit() -> &'static str {
    option_env!("DAFS_COMMIT").unwrap_or_default()
}

fn text(commit: &str) -> String {
    match commit {
        "" => env!("CARGO_PKG_VERSION").to_owned(),
        commit => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_told_where_it_is_known() {
        let number = env!("CARGO_PKG_VERSION");
        assert_eq!(text(""), number);
        assert_eq!(text("1a2b3c4d5e6f"), format!("{number} (1a2b3c4d5e6f)"));
        assert_eq!(version(), text(commit()));
    }
}
