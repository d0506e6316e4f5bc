# shellcheck shell=bash
# Sourced by the other scripts: puts a cargo and rustc that are new enough first in PATH, where this
# machine has them. It installs nothing and changes nothing but PATH.

# The oldest compiler that the workspace declares.
rust_version_wanted() {
    sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml"
}

# Is version $1 at least version $2?
version_at_least() {
    [[ $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# Are cargo and rustc here and new enough?
rust_is_ready() {
    local found
    cargo --version >/dev/null 2>&1 || return 1
    found=$(rustc --version 2>/dev/null) || return 1
    version_at_least "$(cut -d' ' -f2 <<<"$found")" "$(rust_version_wanted)"
}

if ! rust_is_ready && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    export PATH
fi
