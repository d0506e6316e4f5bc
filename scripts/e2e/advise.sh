#!/bin/bash
# `dafs advise`: the examples of docs/advise.md as they stand; programs that fail, are killed, start others or cannot be
# watched; wrong command lines, and a cache of constants that is damaged or cannot be written.
source "$(dirname "$0")/lib.sh"

here=$PWD
needs_preload
missing=()
for program in sqlite3 gzip fio python3 cc; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[[ ${#missing[@]} == 0 ]] || skip "there is no ${missing[*]}; install them with: make setup"

export XDG_CACHE_HOME=$work/cache HOME=$work
mkdir "$work/bin" "$work/example"
ln -s "$(realpath "$dafs")" "$work/bin/dafs"

# figures FILE -- its lines with # for each figure, and single blanks.
figures() { sed -E 's/[0-9]+([.][0-9]+)?/#/g; s/ +/ /g; s/^ //' "$1"; }

# advised NAME -- runs an example of the page, and compares its lines with the page's.
advised() {
    local commands line
    commands=$(example "$1" "$here/docs/advise.md")
    [[ $commands ]] || fail "docs/advise.md has no example of $1"
    step "the example of the documentation: $1"
    (
        cd "$work/example"
        PATH=$work/bin:$PATH bash -euo pipefail -c "$commands"
    ) >"$work/said" 2>&1 || { cat "$work/said"; fail "a command of the example failed: $1"; }
    figures "$work/said" >"$work/figures"
    example "$1 says" "$here/docs/advise.md" >"$work/wanted"
    [[ -s $work/wanted ]] || fail "docs/advise.md does not tell the output of $1"
    while read -r line; do
        grep -qF -e "$line" "$work/figures" || { cat "$work/said"; fail "the output of $1 has no line '$line'"; }
    done <"$work/wanted"
}
for name in sqlite3 gzip fio 'a description'; do advised "$name"; done
[[ -s $XDG_CACHE_HOME/dafs/advise.json ]] || fail "no constants were kept"
cd "$work/example" || exit

# told EXPRESSION -- true of the answer in $work/answer, as `a`, and of its files by name, as `f`.
told() {
    python3 - "$work/answer" "$1" <<'PYTHON' || { cat "$work/answer"; fail "not so: $1"; }
import json, os, sys
a = json.load(open(sys.argv[1]))
f = {os.path.basename(one["path"]): one for one in (a["observation"] or {"files": []})["files"]}
sys.exit(not eval(sys.argv[2]))
PYTHON
}
advise() { "$dafs" advise --json -o "$work/answer" "$@"; }

step "the output and the status are the program's"
status=0
advise -- sh -c 'echo out; echo err >&2; exit 7' >"$work/out" 2>"$work/err" || status=$?
[[ $status == 7 && $(<"$work/out") == out && $(<"$work/err") == err ]] || fail "status $status, or other output"
expect 137 '' "$dafs" advise -o "$work/answer" -- sh -c 'kill -9 $$'
status=0
(trap '' HUP && advise -- sh -c 'kill -HUP $$; exit 4') || status=$?
[[ $status == 4 ]] || fail "status $status: a signal that was ignored is not any more"
expect 127 'there is no such program' "$dafs" advise -- no-such-program
expect 127 'there is no such program' "$dafs" advise -- ./no-such-program
expect 126 'it is no program' "$dafs" advise -- "$work"
expect 2 'PROGRAM' "$dafs" advise
expect 0 'does nothing on files' "$dafs" advise -- true

step "what calls do, and on which files"
head -c 1000000 /dev/zero >big
advise -- dd if=big of=copy bs=4096 count=100 status=none
cmp -n 409600 big copy || fail "dd copied something else"
told 'f["big"]["reads"] == 100 and f["big"]["read_bytes"] == 409600 and f["big"]["read_sizes"] == {"4096": 100}'
told 'f["copy"]["writes"] == 100 and f["big"]["reads_in_order"] == 100 and f["big"]["reads_again"] == 0'
told 'a["workload"]["reads"]["calls"] >= 100 and a["machine"]["transports"]'
advise -- python3 -c 'import os
fd = os.open("big", os.O_RDONLY)
for _ in range(3):
    for place in (40960, 0, 81920): os.pread(fd, 512, place)
out = os.open("out", os.O_CREAT | os.O_WRONLY)
os.write(out, b"x"); os.fsync(out); os.fdatasync(out)'
told 'f["big"]["reads"] == 9 and f["big"]["reads_again"] == 6 and f["big"]["reads_in_order"] == 0'
told 'f["out"]["syncs"] == 2 and f["out"]["end"] == 1 and a["workload"]["syncs"] >= 2'
# Streams of the C library, which it reads and writes by itself.
cat >"$work/streams.c" <<'C'
#include <stdio.h>
int main(void)
{
    char text[1000];
    FILE *in = fopen("big", "r"), *out = fopen("streamed", "w");
    for (size_t bytes; (bytes = fread(text, 1, sizeof text, in)) > 0;) fwrite(text, 1, bytes, out);
    return fclose(in) || fclose(out);
}
C
cc -o "$work/streams" "$work/streams.c" || fail "the program does not compile"
advise -- "$work/streams"
cmp big streamed || fail "a stream was changed"
told 'f["big"]["stream_bytes"] == 1000000 and f["streamed"]["written_bytes"] == 1000000'

step "only files below a directory, and only those of others than the system"
mkdir sub
cp big sub/inner
advise --below sub -- cat big sub/inner >/dev/null
told 'set(f) == {"inner"}'
advise -- cat big /usr/share/common-licenses/GPL-3 >/dev/null
told '"big" in f and "GPL-3" not in f'
expect 2 '--below' "$dafs" advise --below no-such-directory -- true

step "processes that are started, replaced or killed"
advise -- sh -c 'dd if=big of=/dev/null bs=4096 count=10 status=none & wait
    env -i dd if=big of=/dev/null bs=4096 count=10 status=none
    exec dd if=big of=/dev/null bs=4096 count=10 status=none'
told 'f["big"]["reads"] == 30 and a["observation"]["processes"] >= 4'
status=0
advise -- sh -c 'dd if=big of=/dev/null bs=4096 count=10 status=none; kill -9 $$' || status=$?
[[ $status == 137 ]] || fail "status $status"
told 'f["big"]["reads"] == 10'
advise -- python3 -c 'import os, threading
def read():
    with open("big", "rb", buffering=0) as file:
        while file.read(1000): pass
threads = [threading.Thread(target=read) for _ in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
if os.fork() == 0:
    read(); os._exit(0)
os.wait()'
told 'f["big"]["reads"] == 5000 and f["big"]["opens"] >= 5'
# A signal to the command is for the program, whose counts are told.
"$dafs" advise --json -o "$work/answer" -- \
    sh -c 'dd if=big of=/dev/null bs=4096 count=1 status=none; touch started; exec sleep 100' &
advisor=$!
started+=("$advisor")
eventually test -e started
kill -TERM "$advisor"
status=0
wait "$advisor" || status=$?
forget_process "$advisor"
[[ $status == 143 ]] || fail "status $status after SIGTERM"
told 'f["big"]["reads"] == 1'

step "programs that cannot be watched"
printf 'int main(void) { return 5; }\n' >"$work/static.c"
if cc -static -o "$work/static" "$work/static.c" 2>"$work/said"; then
    expect 5 'NOT WATCHED' "$dafs" advise -- "$work/static"
    expect 0 'NOT WATCHED: 1 programs' "$dafs" advise -- sh -c "$work/static; true"
fi

if [[ $(id -u) == 0 ]]; then
    step "a program that becomes another user"
    # For that user the library must be within reach.
    chmod 711 "$work" "$work/example"
    mkdir "$work/programs"
    cp "$dafs" "$(dirname "$dafs")/libdafs_preload.so" "$work/programs"
    "$work/programs/dafs" advise --json -o "$work/answer" -- setpriv --reuid 65534 --clear-groups cat big >/dev/null
    told 'f["big"]["reads"] > 0 and not any("NOT WATCHED" in one for one in a["observation"]["remarks"])'
fi

step "descriptions"
expect 0 '' "$dafs" advise --save "$work/seen.toml" -o "$work/answer" -- cat big
expect 0 'bound by' "$dafs" advise --workload "$work/seen.toml"
printf 'names = 1\nnmes = 2\n' >"$work/wrong.toml"
expect 2 'wrong.toml line 2: unknown field `nmes`' "$dafs" advise --workload "$work/wrong.toml"
expect 2 'cannot read the workload' "$dafs" advise --workload "$work/no-such-file"
expect 2 'cannot read the workload' "$dafs" advise --workload "$(command -v gzip)"
expect 2 'cannot be used with' "$dafs" advise --workload "$work/seen.toml" true

step "servers"
rm -f started
expect 3 '' "$dafs" advise --server dafs://127.0.0.1:1/ -- touch started
[[ ! -e started ]] || fail "the program ran although there is no server"
expect 2 'name one with --server' "$dafs" --user me advise -- true
mkdir "$work/export"
serve "$work/export" ${squash[@]+"${squash[@]}"}
advise --server "$url/" -- cat big >/dev/null
told '{one["name"] for one in a["machine"]["transports"]} >= {"shm", "iwarp"}'
advise --server "$url/?transport=iwarp" -- cat big >/dev/null
told '[one["name"] for one in a["machine"]["transports"]] == ["iwarp"]'
head -c 1 big >"$work/export/file"
expect 2 'is no directory' "$dafs" advise --measure --server "$url/file" -- true
[[ $(ls -A "$work/export") == file ]] || fail "the measurement left a file"
stop_server

step "the cache of constants"
known=$(sha256sum "$XDG_CACHE_HOME/dafs/advise.json")
advise -- cat big >/dev/null
[[ $(sha256sum "$XDG_CACHE_HOME/dafs/advise.json") == "$known" ]] || fail "known constants were measured again"
echo garbage >"$XDG_CACHE_HOME/dafs/advise.json"
expect 0 'measuring again' "$dafs" advise -- cat big
expect 0 '' "$dafs" advise -o "$work/answer" -- cat big
! grep -q 'measuring again' "$work/said" || fail "the garbage is still there"
XDG_CACHE_HOME=/dev/null/none expect 0 'is not kept' "$dafs" advise -- cat big
