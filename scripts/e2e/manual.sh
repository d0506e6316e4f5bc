#!/bin/bash
# The manual pages and the completions that the program makes of its own definitions: roff takes the pages, they have
# each option that --help shows, and shells take the completions and complete with them.
source "$(dirname "$0")/lib.sh"

mkdir "$work/manual"
"$dafs" manual "$work/manual"

step "pages have what --help shows"
# check PAGE COMMAND... -- compares a page with the help, and goes on to the commands below.
pages=0
check() {
    local page=$1 option below
    shift
    pages=$((pages + 1))
    [[ -s $work/manual/$page.1 ]] || fail "there is no $page.1"
    # As a reader sees it.
    sed -e 's/\\-/-/g' -e 's/\\f.//g' "$work/manual/$page.1" >"$work/plain"
    COLUMNS=100 "$dafs" "$@" --help >"$work/help"
    for option in $(sed -n -E 's/^ +(-[A-Za-z], )?(--[a-z-]+).*/\2/p' "$work/help"); do
        grep -qwF -e "$option" "$work/plain" || fail "$page.1 has no $option"
    done
    for below in $(awk '/^Commands:/ { on = 1; next } /^[A-Z]/ { on = 0 } on && /^  [a-z]/ { print $1 }' "$work/help"); do
        [[ $below == help ]] || check "$page-$below" "$@" "$below"
    done
}
check dafs
[[ $pages == $(find "$work/manual" -name '*.1' | wc -l) && $pages -gt 40 ]] || fail "$pages pages were compared"
[[ -s $work/manual/dafs.toml.5 ]] || fail "there is no dafs.toml.5"
for key in listen lease_time_seconds '\[nfs\]' '\[\[export\.node\]\]' durable_replies osds; do
    sed 's/\\f.//g' "$work/manual/dafs.toml.5" | grep -E "(^|[ .])$key( |\$)" >/dev/null || fail "dafs.toml.5 has no $key"
done

step "the same bytes again"
mkdir "$work/again"
"$dafs" manual "$work/again"
diff -r "$work/manual" "$work/again" || fail "the pages differ"

step "completions of bash"
for shell in bash zsh fish; do
    "$dafs" completions "$shell" >"$work/dafs.$shell"
done
bash -n "$work/dafs.bash" || fail "bash does not take its script"
# completed WORD... -- the completions of the last word, on one line.
completed() {
    bash -uc '
        source "$1"
        shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _dafs dafs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[*]}"' bash "$work/dafs.bash" dafs "$@"
}
is() { [[ $1 == "$2" ]] || fail "completed '$1' instead of '$2'"; }
is "$(completed clus)" cluster
is "$(completed cluster '')" 'init status add drain replace scrub repair demo'
is "$(completed ls --transport '')" 'auto iwarp shm verbs'
is "$(completed ls --transport = i)" iwarp
is "$(completed --user cluster ls --dea)" --deadline
is "$(completed cluster add --st)" --state-directory
is "$(completed serve --role d)" data
is "$(completed ls dafs)" ''

if command -v groff >/dev/null; then
    step "groff takes all pages"
    for page in "$work"/manual/*; do
        said=$(groff -man -Tutf8 -ww "$page" 2>&1 >"$work/page") || fail "${page##*/}: $said"
        [[ ! $said && -s $work/page ]] || fail "${page##*/}: $said"
    done
fi
missing=()
for shell in zsh fish; do
    command -v "$shell" >/dev/null || { missing+=("$shell"); continue; }
    step "$shell takes its script"
    "$shell" -n "$work/dafs.$shell" || fail "$shell does not take its script"
done
if command -v fish >/dev/null; then
    step "completions of fish"
    # seen LINE -- the completions of a command line, on one line without their texts.
    seen() {
        HOME=$work fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$work/dafs.fish" "$1" |
            cut -f 1 | sort | xargs
    }
    is "$(seen 'dafs clus')" cluster
    is "$(seen 'dafs cluster ')" 'add demo drain init repair replace scrub status'
    is "$(seen 'dafs ls --transport ')" 'auto iwarp shm verbs'
    is "$(seen 'dafs cluster add --st')" --state-directory
fi
if command -v zsh >/dev/null; then
    step "completions of zsh"
    # The functions of its completion system that the script calls, each printing what it was given.
    cat >"$work/stage" <<'END'
compadd() { shift; print -r -- "$@" }
_describe() { local list=${@[-1]}; print -r -- ${${(P)list}%%:*} }
_files() { print files }
script=$1
shift
words=("$@") CURRENT=$#
source $script
END
    in_zsh() { zsh -f "$work/stage" "$work/dafs.zsh" dafs "$@"; }
    is "$(in_zsh cluster '')" 'init status add drain replace scrub repair demo'
    is "$(in_zsh ls --transport '')" 'auto iwarp shm verbs'
    is "$(in_zsh --user cluster ls '')" files
    in_zsh cluster add - | grep -w -e --state-directory >/dev/null || fail "zsh does not complete options"
fi
[[ ${#missing[@]} == 0 ]] ||
    skip "all but the scripts of these shells has passed: ${missing[*]}; install them with: scripts/setup.sh test"
