#!/bin/bash
# licences.sh -- check offline that every dependency that is built here has a licence which the list
# in deny.toml allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
source scripts/env.sh

allowed=" $(sed -n '/^allow = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' deny.toml | tr '\n' ' ')"
[[ $allowed == *' Apache-2.0 '* ]] || { echo "cannot read the list in deny.toml"; exit 1; }

# Turns a licence expression into arithmetic: 1 for what the list has, 0 for what it has not.
# Exceptions (`WITH ...`) only ever add permissions.
is_allowed() {
    local word arithmetic=''
    for word in $(sed 's/ WITH [^ )]*//g; s#/# OR #g; s/[()]/ & /g' <<<"$1"); do
        case $word in
        AND) arithmetic+='&&' ;;
        OR) arithmetic+='||' ;;
        '(' | ')') arithmetic+=$word ;;
        *) if [[ $allowed == *" $word "* ]]; then arithmetic+=1; else arithmetic+=0; fi ;;
        esac
    done
    ((arithmetic))
}

host=$(rustc -vV | sed -n 's/^host: //p')
# Objects of packages are the only ones with these four fields in this order.
packages=$(cargo metadata --locked --offline --format-version 1 --filter-platform "$host" |
    grep -oE '"name":"[^"]*","version":"[^"]*","id":"[^"]*","license":("[^"]*"|null)')
[[ $packages ]] || { echo "cargo metadata names no package"; exit 1; }
count=0 bad=0
while IFS=$'\t' read -r name licence; do
    count=$((count + 1))
    is_allowed "$licence" || { echo "$name: $licence"; bad=1; }
done < <(sed -E 's/^"name":"([^"]*)".*"license":"?([^"]*)"?$/\1\t\2/' <<<"$packages")
[[ $bad == 0 ]] || { echo "not in the list of licences in deny.toml"; exit 1; }
echo "$count packages"
