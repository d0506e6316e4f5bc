#!/bin/bash
# tidy.sh -- the rules of this repository that no compiler checks, as far as a machine can check
# them. Prints every violation and fails if there is any. Needs Python, no network and no compiler.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

# The end of a pipe runs in this shell, where `rule` counts its input.
shopt -s lastpipe
bad=0
# Reads offending lines from standard input and reports them under the rule $1.
rule() {
    local found
    found=$(cat)
    [[ $found ]] || return 0
    bad=1
    printf '%s:\n%s\n' "$1" "$found" | sed '2,$s/^/    /'
}

# A check that could not be carried out is a violation, too.
checked() {
    local status=0
    "$@" 2>&1 || status=$?
    [[ $status == 0 ]] || echo "$* ended with status $status"
}

# Files that belong to the checkout, tracked or about to be, by suffix.
files() {
    git ls-files -z --cached --others --exclude-standard -- "$@" |
        while IFS= read -r -d '' file; do [[ ! -f $file ]] || printf '%s\0' "$file"; done
}
search() {
    local pattern=$1
    shift
    files "$@" | xargs -0 -r grep -nHE -e "$pattern" --
}

git rev-parse --git-dir >/dev/null 2>&1 || { echo "no git checkout to look at"; exit 77; }

code=('*.rs' '*.sh' '*.toml' '*.c' '*.h' '*.py' Makefile 'lab/guest/*')

# All but the header that is made from sources, and the page that `make bench-papers` writes.
files "${code[@]}" '*.md' ':!crates/dafs-capi/include/dafs.h' ':!docs/benchmarks-papers.md' | checked python3 scripts/house/sizes.py |
    rule "files over 600 lines, functions over 70"
files "${code[@]}" '*.md' | LC_ALL=C xargs -0 -r grep -nHP '[^\x00-\x7f]' -- |
    rule "characters outside of ASCII"
search '[[:blank:]]+$' "${code[@]}" '*.md' | rule "blanks at the end of a line"
search $'\t' '*.rs' '*.sh' '*.toml' | rule "tabs"
search '\<(todo|unimplemented|dbg)!' '*.rs' | rule "left-over macros"
search '\<(TO''DO|FIX''ME|XX''X)\>' "${code[@]}" '*.md' | rule "left-over markers"
search '^(<{7}|={7}|>{7})( |$)' "${code[@]}" '*.md' | rule "left-over marks of a merge"
search '(^|[^A-Za-z0-9_.$-])/(home|root|work|Users)/[A-Za-z0-9_.]' "${code[@]}" '*.md' |
    grep -vE 'lab/(image.sh|guest/)' | rule "paths of somebody's machine"
search '((//[/!]?|#|^ ?\*|/\*|""") *(\* )?|[.!:] )(What|Who|Nobody|Somebody) [a-z]' "${code[@]}" '*.pyi' '*.md' |
    grep -v '[?]' | rule "sentences that begin with What, Who, Nobody or Somebody"
search '#\[ignore\]' '*.rs' | rule "ignored tests without a reason"
search '(#\[path = |include(_str|_bytes)?!\()"[./]*/dafs-' '*.rs' | rule "sources of another crate"

# `unsafe` code has its reasoning within the ten lines before it; `unsafe fn` and `unsafe trait`
# declare and are documented under "# Safety" instead.
files '*.rs' | xargs -0 -r awk '
    FNR == 1 { last = -100 }
    /SAFETY:/ { last = FNR }
    /^[[:space:]]*\/\// { next }
    /(^|[^A-Za-z_"])unsafe[[:space:]]*(\{|impl[[:space:]<])/ && FNR - last > 10 {
        print FILENAME ":" FNR ":" $0
    }' | rule "unsafe without a SAFETY comment"

# A crate without `unsafe` says so to the compiler.
files 'crates/*/src/lib.rs' | while IFS= read -r -d '' file; do
    search '(^|[^A-Za-z_"])unsafe[[:space:]]*(\{|impl|fn|extern)|unsafe\(' "${file%lib.rs}*.rs" >/dev/null ||
        grep -q '^#!\[forbid(unsafe_code)\]' "$file" || echo "$file"
done | rule "crates without unsafe code that do not forbid it"

# A dependency is named once, with its version, in the workspace.
files 'crates/*/Cargo.toml' | xargs -0 -r awk '
    /^\[/ { depends = /^\[(target\..*\.)?(dev-|build-)?dependencies/ }
    depends && /=/ && !/workspace *= *true/ { print FILENAME ":" FNR ":" $0 }' |
    rule "dependencies that are not taken from the workspace"
files 'crates/*/Cargo.toml' | xargs -0 -r grep -L '^workspace = true' |
    rule "crates without the lint table of the workspace"

awk -v home='"registry+https://github.com/rust-lang/crates.io-index"' '
    /^name = / { name = $3 }
    /^version = / { version = $3; sub(/\+.*/, "", version); if (version ~ /-/) print name, version }
    /^source = / && $3 != home { print name, $3 }' Cargo.lock |
    rule "dependencies that are pre-releases or come from elsewhere"

# Shell scripts that are meant to be run can be.
files '*.sh' | while IFS= read -r -d '' file; do
    [[ $(head -c 2 "$file") != '#!' || -x $file ]] || echo "$file"
done | rule "scripts that may not be executed"
# A pipe's reader that leaves at the first hit makes the writer fail, and with `pipefail` the whole pipe,
# whenever the writer has more to say: `grep X >/dev/null` reads to the end.
search '[^|]\| *grep -[a-zA-Z]*q' 'scripts/e2e/*.sh' | rule "readers that leave before the end of a pipe"
# The table of parts has every test, each variation under its own name, and names paths that exist, all crates
# among them.
parts() { grep -vE '^(#|$)' scripts/parts.txt; }
parts | while read -r name when limit_seconds command; do
    about=${command#* : }
    read -ra words <<<"${command%% : *}"
    [[ $when =~ ^(always|long)$ && $limit_seconds =~ ^[0-9]+$ && $command == *' : '* ]] ||
        echo "$name: not PART WHEN SECONDS COMMAND : PATH..."
    [[ $name != */* ]] || {
        wanted=${name%%/*}/$(basename "${words[-1]}" .sh)
        for word in "${words[@]}"; do [[ $word != *=* ]] || wanted+=-${word#*=}; done
        [[ $name == "$wanted" ]] || echo "$name: is $wanted"
    }
    for path in $about; do [[ -e $path ]] || echo "$name: there is no $path"; done
done | rule "rows of scripts/parts.txt"
parts | cut -d' ' -f1 | sort | uniq -d | rule "parts that are in scripts/parts.txt twice"
for path in scripts/e2e/*.sh lab/tests/*.sh crates/*; do
    [[ ! -x $path ]] || parts | grep -E "[ :]$path( |/|\$)" >/dev/null || echo "$path"
done | rule "tests and crates that no row of scripts/parts.txt names"
# A part that runs always shows what it shares with others. Of a file that only long parts use, each says so.
for path in scripts/e2e/*.{c,py} lab/*.sh lab/tests/guest/*; do
    users=$(grep -lwF -- "${path##*/}" scripts/e2e/*.sh lab/*.sh lab/tests/*.sh || true)
    ! grep -E '^lab/(nfs|lab)\.sh$' <<<"$users" >/dev/null || continue
    rows=$(for user in $users; do parts | grep -F " $user :" || true; done)
    [[ $rows ]] && ! grep ' always ' <<<"$rows" >/dev/null || continue
    grep -vE "[ :]$path( |\$)" <<<"$rows" | sed "s|^\([^ ]*\).*|\1: uses $path|"
done | rule "files that rows of scripts/parts.txt do not name"
# A page whose examples or tables a part reads.
for path in docs/*.md; do
    for user in $(grep -lE -- "^[^#]*$path" scripts/e2e/*.sh lab/tests/*.sh || true); do
        parts | grep -F " $user :" | grep -vE "[ :]$path( |\$)" | sed "s|^\([^ ]*\).*|\1: reads $path|"
    done
done | rule "pages that rows of scripts/parts.txt do not name"
# Not about names that a sourced file sets or uses, nor about commas in arguments.
files '*.sh' 'lab/guest/*' .ci/run |
    checked xargs -0 -r shellcheck -x -S warning -e SC2034,SC2054,SC2154 |
    rule "what shellcheck says"

checked python3 scripts/house/prose.py | rule "comments that scripts/house/prose.py finds"
checked python3 scripts/house/pages.py | rule "what is wrong with the pages"
checked python3 scripts/house/chart.py --check | rule "the bars of README's comparison (scripts/house/chart.py draws them)"
checked python3 scripts/house/crates.py --check | rule "the figure of the crates (scripts/house/crates.py draws it)"

[[ $bad == 0 ]] || exit 1
echo "tidy"
