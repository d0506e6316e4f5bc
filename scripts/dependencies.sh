#!/bin/bash
# dependencies.sh -- check that every dependency that is built here has a licence which the list in
# deny.toml allows, and needs no newer compiler than the workspace declares; and that the lock file of
# the fuzz targets, a workspace of their own, has what their crates need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
source scripts/env.sh

allowed=" $(sed -n '/^allow = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' deny.toml | tr '\n' ' ')"
[[ $allowed == *' Apache-2.0 '* ]] || { echo "cannot read the list in deny.toml"; exit 1; }

# Turns a licence expression into arithmetic: 1 for a licence in the list, 0 for any other.
# Exceptions (`WITH ...`) only ever add permissions.
is_allowed() {
    local word arithmetic=''
    for word in $(sed 's/ WITH [^ )]*//g; s#/# OR #g; s/[()]/ & /g' <<<"$1"); do
        case $word in
        AND) arithmetic+='&&' ;;
        OR) arithmetic+='||' ;;
        '(' | ')') arithmetic+=$word ;;
        *) if [[ $allowed == *" $word "* ]]; then arithmetic+='1'; else arithmetic+='0'; fi ;;
        esac
    done
    ((arithmetic))
}

host=$(rustc -vV | sed -n 's/^host: //p')
# One line for each package; no other object in there begins with its name and version. A fresh clone downloads them.
packages=$(cargo metadata --locked --format-version 1 --filter-platform "$host" |
    sed 's/{"name":"[^"]*","version":"/\n&/g' | sed -n '/^{"name":"[^"]*","version":"/p')
[[ $packages ]] || { echo "cargo metadata names no package"; exit 1; }

# The text of field $1 in the package $2, or nothing.
field() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p" <<<"$2"; }

count=0 bad=0
while IFS= read -r package; do
    count=$((count + 1))
    name=$(field name "${package%%,*}")
    licence=$(field license "$package")
    compiler=$(field rust_version "$package")
    is_allowed "$licence" ||
        { echo "$name: its licence \"$licence\" is not in the list of deny.toml"; bad=1; }
    version_at_least "$(rust_version_wanted)" "${compiler:-0}" ||
        { echo "$name: needs Rust $compiler, the workspace promises less"; bad=1; }
done <<<"$packages"
[[ $bad == 0 ]] || exit 1

# This may download crates that only the fuzz targets have.
cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null ||
    { echo "see above; if fuzz/Cargo.lock is behind: cargo metadata --manifest-path fuzz/Cargo.toml"; exit 1; }
echo "$count packages"
