#!/bin/bash
# Unmodified programs work on files of a server under `dafs run`.
source "$(dirname "$0")/lib.sh"

here=$PWD
needs_preload

mkdir "$work/tree"
serve "$work/tree" ${squash[@]+"${squash[@]}"}
served() { timeout 120 "$dafs" run --at "/data=$url" "$@"; }

step "coreutils"
seq 1 200000 >"$work/numbers"
served cp "$work/numbers" /data/numbers
same "$work/numbers" "$work/tree/numbers" "what cp wrote and its source"
served cat /data/numbers | cmp - "$work/numbers" || fail "cat read something else"
sum=$(served md5sum /data/numbers)
[[ ${sum%% *} == "$(md5sum <"$work/numbers" | cut -d' ' -f1)" ]] || fail "md5sum read something else"
served cp /data/numbers /data/again
same "$work/numbers" "$work/tree/again" "a copy on the server and its source"
served ls -la /data >"$work/said" || fail "ls failed"
grep -q again "$work/said" || fail "ls does not show a file"

step "a shell, its redirections and its working directory"
served sh -c 'cd /data && echo one >line && echo two >>line && cat <line >both && pwd' >"$work/said"
[[ $(<"$work/said") == /data && $(<"$work/tree/both") == $'one\ntwo' ]] || fail "a shell got it wrong"

step "paths mean what they mean on a file system of this host"
mkdir "$work/local" "$work/tree/paths"
python3 "$here/scripts/e2e/preload_paths.py" "$work/local" >"$work/wanted" || fail "the local one ended early"
served python3 "$here/scripts/e2e/preload_paths.py" /data/paths >"$work/said" || fail "the served one ended early"
diff "$work/wanted" "$work/said" || fail "paths mean something else"
same_tree() { (cd "$1" && find . -printf '%p %y %m %s %l\n' | sort); }
diff <(same_tree "$work/local") <(same_tree "$work/tree/paths") || fail "something else was left"
rm -r "$work/local" "$work/tree/paths"

step "flock, whatever a file was opened for, and who is in the way"
served flock /data/lock echo locked >"$work/said" || fail "flock(1) does not work"
[[ $(<"$work/said") == locked ]] || fail "flock(1) did not run its command"
served bash -c '
    exec 9>/data/lock && flock 9 || exit 1
    flock -n /data/lock true && exit 2
    flock -s 9 && flock -ns /data/lock true || exit 3
    flock -n /data/lock true && exit 4
    flock -u 9 && flock -n /data/lock true || exit 5
    (flock 8 && ! flock -n 9) 8>/data/lock || exit 6
    for try in {1..100}; do flock -n 9 && break; sleep 0.05; done
    flock -n /data/lock true && exit 7
    exec 9>&-
    for try in {1..100}; do flock -n /data/lock true && exit 0; sleep 0.05; done
    exit 8' || fail "flock on a descriptor of the shell: $?"
# A lock of a directory, which is known to this host.
served mkdir /data/lock-directory
served flock /data/lock-directory echo locked >"$work/said" || fail "flock(1) does not lock a directory"
[[ $(<"$work/said") == locked ]] || fail "flock(1) did not run its command"
served bash -c '
    exec 9</data/lock-directory && flock 9 || exit 1
    flock -n /data/lock-directory true && exit 2
    flock -s 9 && flock -ns /data/lock-directory true || exit 3
    flock -u 9 && flock -n /data/lock-directory true || exit 4
    (flock 8 && ! flock -n 9) 8</data/lock-directory || exit 5
    for try in {1..100}; do flock -n 9 && exit 0; sleep 0.05; done
    exit 6' || fail "flock of a directory on a descriptor of the shell: $?"
# An unlock while another process with the same open file waits ends at once, and leaves that one
# waiting; the lock that it then gets is not lost.
served bash -c 'until_there() { until [[ -e $1 ]]; do sleep 0.05; done; }
    flock /data/lock bash -c "touch /data/held; until [[ -e /data/go ]]; do sleep 0.05; done" &
    until_there /data/held
    exec 9>/data/lock
    (flock 9 && touch /data/got) &
    sleep 0.5
    flock -n 9 && exit 1
    timeout 10 flock -u 9 || exit 2
    touch /data/go
    until_there /data/got
    flock -n /data/lock true && exit 3
    flock -u 9 && flock -n /data/lock true || exit 4' || fail "an unlock while a child waits: $?"
# All processes with one open file share its lock. One may lock it anew before the holder of the lock has noticed
# that another one has unlocked it, which happens in one round of a hundred.
rounds=3
[[ ! ${DAFS_TEST_LONG:-} ]] || rounds=300
served timeout 100 bash -c 'exec 9>/data/lock
    for round in $(seq '$rounds'); do
        flock 9 & flock 9 & flock 9 & wait
        flock -n /data/lock true && exit 1
        flock -s 9 & flock -s 9 & wait
        flock -n /data/lock true && exit 2
        flock -sn /data/lock true || exit 3
        flock -u 9
    done' || fail "several processes lock one open file: $?"
# Errors must not go to a file that has reused the number of standard error.
timeout 60 "$dafs" run --at /away=dafs://127.0.0.1:1/ python3 -c 'import os, sys
os.close(2)
assert os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY) == 2
assert not os.path.exists("/away/x")' "$work/record" || fail "the program failed"
[[ ! -s $work/record ]] || fail "another file was written to: $(<"$work/record")"
served python3 - <<'PYTHON' || fail "locks"
import fcntl, os, struct, subprocess, sys

ways = [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]
for first in ways:
    for second in ways:
        one, two = os.open("/data/lock", first), os.open("/data/lock", second)
        fcntl.flock(one, fcntl.LOCK_EX)
        try:
            fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
            sys.exit("locked twice")
        except BlockingIOError:
            pass
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(two)
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(one)
# A lock that a child has taken since the fork is locked for its parent, too, which can release it.
one, two = os.open("/data/lock", os.O_RDWR), os.open("/data/lock", os.O_RDWR)
for again in (fcntl.LOCK_UN, fcntl.LOCK_EX):
    child = os.fork()
    if child == 0:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    try:
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.exit("the child's lock is lost")
    except BlockingIOError:
        pass
    fcntl.flock(one, again)
    fcntl.flock(one, fcntl.LOCK_UN)
    fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(two, fcntl.LOCK_UN)
os.close(one)
os.close(two)
fd = os.open("/data/lock", os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
ask = """if 1:
    import fcntl, os, struct
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    lock = fcntl.fcntl(os.open("/data/lock", os.O_RDWR), fcntl.F_GETLK, lock)
    print(*struct.unpack("hhqqi4x", lock))
"""
told = subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True).stdout.split()
assert list(map(int, told)) == [fcntl.F_WRLCK, 0, 5, 10, os.getpid()], (told, os.getpid())
PYTHON

step "characters of several bytes"
if command -v rev >/dev/null && command -v column >/dev/null; then
    printf 'eins\tzw\303\266lf\n\342\202\254uro\t\344\270\255\n' >"$work/wide"
    LC_ALL=C.UTF-8 rev "$work/wide" >"$work/reversed"
    LC_ALL=C.UTF-8 column "$work/wide" >"$work/columns"
    cmp -s "$work/wide" "$work/reversed" && fail "rev does nothing"
    served cp "$work/wide" /data/wide
    export LC_ALL=C.UTF-8
    served rev /data/wide | cmp - "$work/reversed" || fail "rev read something else"
    served sh -c 'rev </data/wide' | cmp - "$work/reversed" || fail "rev read something else from its input"
    served sh -c 'rev /data/wide >/data/reversed' || fail "rev failed"
    same "$work/reversed" "$work/tree/reversed" "what rev wrote and what it is to write"
    served sh -c 'column </data/wide >/data/columns' || fail "column failed"
    same "$work/columns" "$work/tree/columns" "what column wrote and what it is to write"
    unset LC_ALL
fi

step "gzip and tar"
served sh -c 'gzip -c </data/numbers >/data/numbers.gz && gzip -dc /data/numbers.gz' |
    cmp - "$work/numbers" || fail "gzip packed something else"
served tar -C "$here/scripts" -cf /data/scripts.tar .
served mkdir /data/scripts
served tar -C /data/scripts -xf /data/scripts.tar
diff -r "$here/scripts" "$work/tree/scripts" || fail "tar unpacked something else"
served rm -r /data/scripts
[[ ! -e $work/tree/scripts ]] || fail "rm left something"

step "the report"
served --report - cat /data/line 2>"$work/said" >/dev/null
grep -q 'cat\[[0-9]*\]: served [0-9]* calls, 8 bytes read' "$work/said" ||
    { cat "$work/said"; fail "the report is not right"; }

served --report - mkfifo /data/pipe 2>"$work/said" && fail "a pipe was made on the server"
grep -q 'mkfifo\[[0-9]*\]: .* 1 refused (1 mkfifo /data/pipe);' "$work/said" ||
    { cat "$work/said"; fail "nothing was refused"; }
served --report - cat /data/line "$work/numbers" 2>"$work/said" >/dev/null
passed=$(sed -n 's/.*; \([0-9]*\) calls passed by$/\1/p' "$work/said")
served --report - cat /data/line "$work/numbers" "$work/numbers" 2>"$work/said" >/dev/null
more=$(sed -n 's/.*; \([0-9]*\) calls passed by$/\1/p' "$work/said")
[[ $more -gt $passed && $passed -gt 0 ]] || { cat "$work/said"; fail "what passed by is not told: $passed, $more"; }
# The search for a program counts as one call, however many places there are.
looked() { served --report - env PATH="${1:-}$PATH" true 2>&1 | sed -n 's/.* env\[.*; \([0-9]*\) calls passed by$/\1/p'; }
once=$(looked)
[[ $once && $once == "$(looked /no:/such:/place:)" ]] || fail "places of \$PATH are told as calls: $once, $(looked /no:/such:/place:)"

step "a server that nobody reaches is told once"
timeout 120 "$dafs" run --at /data=dafs://127.0.0.1:1/ sh -c 'read -r line </data/line; read -r line </data/line' \
    >"$work/said" 2>&1 && fail "a file of no server was read"
[[ $(grep -c '^dafs run: dafs://127.0.0.1:1' "$work/said") == 1 ]] || { cat "$work/said"; fail "the lost server is not told once"; }

step "a path that is left to this machine"
# The prefix is a directory here, too.
mkdir -p "$work/here/local" "$work/tree/local"
echo here >"$work/here/local/file"
echo there >"$work/tree/local/file"
told() { timeout 120 "$dafs" run --at "$work/here=$url" "$@" cat "$work/here/local/file"; }
[[ $(told) == there ]] || fail "the server's file is not served"
told --report - --bypass "$work/here/local" 2>"$work/said" >/dev/null
grep -q "calls passed by (1 by --bypass $work/here/local/file)\$" "$work/said" ||
    { cat "$work/said"; fail "the report does not say what was to pass by"; }
[[ $(told --bypass "$work/here/local") == here ]] || fail "a path that is to pass by was served"
[[ $(told --bypass "$work/here/loc") == there ]] || fail "a path was left out by the beginning of a name"

# Programs are started from this machine. A local program never replaces a served one of the same
# name.
for place in here tree; do
    printf '#!/bin/sh\necho started\n' >"$work/$place/local/tool"
    chmod +x "$work/$place/local/tool"
done
mkdir "$work/bypassed"
cp "$work/here/local/tool" "$work/bypassed/tool"
tool=$work/here/local/tool
starts() { PATH=$work/here/local:$PATH timeout 120 "$dafs" run --at "$work/here=$url" "$@"; }
starts sh -c "$tool" 2>"$work/said" && fail "a program was started in place of one that is served"
starts sh -c tool 2>"$work/said" && fail "a program was found in place of one that is served"
starts env "$tool" 2>"$work/said" && fail "a program was started in place of one that is served"
starts env tool 2>"$work/said" && fail "a program was found in place of one that is served"
expect 1 'leave its path to this machine with --bypass' starts "$tool"
expect 1 'no such program' starts tool
[[ $(starts --bypass "$work/here/local" sh -c "$tool && tool") == $'started\nstarted' ]] ||
    fail "a path that is to pass by is not this machine's"
if command -v python3 >/dev/null; then
    for function in posix_spawn posix_spawnp; do
        expect 0 'no such file' starts python3 -c "import os
try:
    os.$function('$tool', ['tool'], os.environ)
except FileNotFoundError:
    print('no such file')"
    done
fi
[[ $(PATH=$work/here/local:$work/bypassed:$PATH timeout 120 "$dafs" run --at "$work/here=$url" env tool) == started ]] ||
    fail "a program is not found behind a place that is served"
# As in the C library, the search skips executable files that cannot be started; it never starts a
# served one.
mkdir -p "$work/no program/tool" "$work/no interpreter"
printf '#!/no/such/interpreter\n' >"$work/no interpreter/tool"
chmod +x "$work/no interpreter/tool"
cat >"$work/starts.py" <<'PY'
import os
pid = os.posix_spawnp("tool", ["tool"], os.environ)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
looks() { PATH=$1:$PATH timeout 120 "$dafs" run --at "$work/here=$url" "${starter[@]}"; }
for function in execvp posix_spawnp; do
    starter=(env tool)
    if [[ $function == posix_spawnp ]]; then
        command -v python3 >/dev/null || continue
        starter=(python3 "$work/starts.py")
    fi
    for first in "$work/no program" "$work/no interpreter"; do
        looks "$first:$work/here/local" >"$work/said" 2>&1 && fail "$function started something behind $first"
        ! grep -q started "$work/said" || fail "$function started what is served from here, behind $first"
        for places in "$work/here/local:$first" "$first:$work/here/local"; do
            [[ $(looks "$places:$work/bypassed") == started ]] ||
                fail "$function finds no program in $places:$work/bypassed"
        done
    done
done

PATH=$work/here/local:$PATH:$work/numbers expect 126 '' timeout 120 "$dafs" run --at "$work/here=$url" env tool
PATH=$work/here/local:$PATH:$work/nowhere expect 127 '' timeout 120 "$dafs" run --at "$work/here=$url" env tool

step "the example of the documentation"
example=$(sed -n '/<!-- example: programs -->/{n;s/^ *//;p}' "$here/docs/programs.md")
[[ $example == 'dafs run '* ]] || fail "docs/programs.md has no example"
mkdir "$work/bin" "$work/tree/tree"
ln -s "$(realpath "$dafs")" "$work/bin/dafs"
cp "$work/numbers" "$work/tree/tree/report"
PATH=$work/bin:$PATH bash -euc "${example//dafs:\/\/localhost/$url}" >"$work/said"
gzip -dc "$work/tree/tree/report.gz" | cmp - "$work/numbers" || fail "the example packed something else"

step "installed"
mkdir "$work/build" "$work/an other"
ln -s "$(realpath "$dafs")" "$work/build/dafs"
ln -s "$(realpath "$DAFS_PRELOAD_LIBRARY")" "$work/build/libdafs_preload.so"
PREFIX=$work/installed BUILD=$work/build STRIP=no "$here/scripts/install.sh" program
(
    unset DAFS_PRELOAD_LIBRARY
    [[ $(timeout 120 "$work/installed/bin/dafs" run --at "/data=$url" cat /data/line) == $'one\ntwo' ]] ||
        fail "the installed command does not find its library"
    rm "$work/installed/lib/dafs/libdafs_preload.so"
    expect 1 'nor in ../lib/dafs' "$work/installed/bin/dafs" run --at "/data=$url" true
)
rm -r "$work/installed"

if is_root && command -v setpriv >/dev/null; then
    step "the groups that a process has, whatever the files of this host say"
    mkdir "$work/for-users"
    cp "$dafs" "$DAFS_PRELOAD_LIBRARY" "$work/for-users"
    mkdir "$work/tree/groups"
    echo content >"$work/tree/groups/of-group"
    chown 4321:5000 "$work/tree/groups/of-group"
    chmod 660 "$work/tree/groups/of-group"
    echo content >"$work/tree/groups/own"
    chown 1234:1234 "$work/tree/groups/own" "$work/tree/groups"
    in_group=(setpriv --reuid 1234 --regid 1234 --groups 5000
        env DAFS_PRELOAD_LIBRARY="$work/for-users/${DAFS_PRELOAD_LIBRARY##*/}"
        timeout 120 "$work/for-users/${dafs##*/}" run --at "/data=$url")
    "${in_group[@]}" sh -c 'cat /data/groups/of-group >/dev/null && echo more >>/data/groups/of-group &&
        chgrp 5000 /data/groups/own && chmod 2771 /data/groups/own' || fail "a group of the process counts for nothing"
    [[ $(stat -c %g:%a "$work/tree/groups/own") == 5000:2771 ]] ||
        fail "the file is $(stat -c %g:%a "$work/tree/groups/own")"
    "${in_group[@]}" chgrp 5001 /data/groups/own 2>/dev/null && fail "a group counts that the process has not"
    rm -r "$work/for-users" "$work/tree/groups"
fi

step "what cannot be served says so"
expect 1 'dafs run: dafs://127.0.0.1:1/' "$dafs" run --at /data=dafs://127.0.0.1:1/ cat /data/line
[[ $(grep -c 'dafs run: ' "$work/said") == 1 ]] || { cat "$work/said"; fail "it is told more than once"; }
served bash -c 'mkdir /data/gone && cd /data/gone && rmdir ../gone && ls' >"$work/said" ||
    fail "a removed directory is not empty"
served python3 -c 'import os
os.mkdir("/data/gone")
os.chdir("/data/gone")
os.rmdir("/data/gone")
try:
    print("it is called", os.getcwd())
except FileNotFoundError:
    pass' >>"$work/said" || fail "a removed directory has a name"
[[ ! -s $work/said ]] || { cat "$work/said"; fail "a removed directory is not empty"; }
cp "$DAFS_PRELOAD_LIBRARY" "$work/an other/libdafs_preload.so"
DAFS_PRELOAD_LIBRARY="$work/an other/libdafs_preload.so" expect 1 'cannot be preloaded' served true
rm -r "$work/an other"
expect 2 'one user' "$dafs" run --at /a=dafs://anne@localhost/ --at /b=dafs://bob@localhost/ true
expect 2 'leave one of them out' "$dafs" run --fence-id b --at '/a=dafs://localhost/?fence-id=a' true
# LD_PRELOAD that a program sets for another one gets this library added.
served env LD_PRELOAD= cat /data/line >"$work/said"
served env -i LD_PRELOAD=/nowhere.so PATH="$PATH" cat /data/line 2>/dev/null | cmp - "$work/said" ||
    fail "another LD_PRELOAD keeps us out"
expect 2 'write it as' "$dafs" run --at /data true
expect 1 'no such program' served no-such-program-anywhere
mkdir -p "$work/own"
if command -v gcc >/dev/null; then
    step "a program that tries everything"
    gcc -O2 -pthread -Wno-unused-result -D_FORTIFY_SOURCE=2 -o "$work/own/matrix" "$here/scripts/e2e/preload.c"
    served mkdir /data/matrix
    served "$work/own/matrix" /data/matrix
    step "calls that few programs make by themselves"
    gcc -O2 -pthread -fexceptions -D_FORTIFY_SOURCE=2 -Wno-unused-result -Wno-deprecated-declarations -o "$work/own/calls" \
        "$here/scripts/e2e/preload_calls.c"
    for call in read pread pread64 readlink readlinkat getcwd getwd realpath fgetws fwprintf wprintf; do
        nm -u "$work/own/calls" | grep " __${call}_chk@" >/dev/null || fail "the compiler uses no __${call}_chk"
    done
    for call in open open64 openat openat64; do
        nm -u "$work/own/calls" | grep " __${call}_2@" >/dev/null || fail "the compiler uses no __${call}_2"
    done
    served mkdir /data/calls
    served "$work/own/calls" /data/calls
    step "a program that reads in sequence while another one writes"
    gcc -O2 -o "$work/own/sequence" "$here/scripts/e2e/preload_sequence.c"
    served "$work/own/sequence" /data/sequence
    if printf 'int main(void) { return 0; }' | gcc -static -x c -o "$work/own/static" - 2>/dev/null; then
        expect 1 'linked statically' served "$work/own/static"
        step "a program that sees no prefix and is started by one that does"
        tells() {
            local wanted="; 1 programs started that see no prefix (1 $1)"
            shift
            served --report - "$@" 2>"$work/said" >/dev/null || { cat "$work/said"; fail "failed: $*"; }
            [[ $(grep -cF -e "$wanted" "$work/said") == 1 ]] ||
                { cat "$work/said"; fail "does not tell '$wanted': $*"; }
        }
        static=$work/own/static
        printf '#!%s\n' "$static" >"$work/own/script"
        chmod 755 "$work/own/script"
        tells "linked statically $static" sh -c "'$static'; cat /data/line"
        tells "linked statically $static" bash -c "cat /data/line; exec '$static'"
        tells "linked statically $static" env "$work/own/script"
        PATH=$work/own:$PATH tells "linked statically $static" env static
        if command -v python3 >/dev/null; then
            for call in posix_spawn posix_spawnp; do
                PATH=$work/own:$PATH tells "linked statically $static" python3 -c "import os
name = 'static' if '$call' == 'posix_spawnp' else '$static'
assert os.waitstatus_to_exitcode(os.waitpid(os.$call(name, ['static'], os.environ), 0)[1]) == 0"
            done
            tells "linked statically $static" python3 -c "import os
os.execve(os.open('$static', os.O_RDONLY | os.O_CLOEXEC), ['static'], os.environ)"
        fi
        served --report - sh -c 'env true; cat /data/line' 2>"$work/said" >/dev/null
        ! grep -q 'see no prefix' "$work/said" || { cat "$work/said"; fail "a program is told that is served"; }
    fi
fi
if command -v python3 >/dev/null && python3 -c 'import sqlite3' 2>/dev/null; then
    step "random operations, checked one by one"
    operations=3000
    [[ ! ${DAFS_TEST_LONG:-} ]] || operations=100000
    served python3 "$here/scripts/e2e/exercise.py" /data 1 "$operations" private ||
        fail "a file is not what it must be"
    step "sqlite3, four writers at once"
    cat >"$work/writer.py" <<'PY'
import sqlite3
database = sqlite3.connect("/data/database", timeout=100)
database.execute("create table if not exists lines (number)")
for number in range(5):
    database.execute("insert into lines values (?)", (number,))
    database.commit()
PY
    writers=()
    for _ in 1 2 3 4; do
        served python3 "$work/writer.py" &
        writers+=($!)
    done
    for writer in "${writers[@]}"; do wait "$writer" || fail "a writer failed"; done
    count=$(served python3 -c 'import sqlite3
database = sqlite3.connect("/data/database")
print(*database.execute("select count(*) from lines").fetchone(), *database.execute("pragma integrity_check").fetchone())')
    [[ $count == '20 ok' ]] || fail "the database says $count"
    step "what is told to end while its server is away, or does not answer, ends"
    cat >"$work/waits.py" <<'PY'
import os, signal, sys
def ends(number, frame):
    raise SystemExit(7)
signal.signal(getattr(signal, sys.argv[1]), ends)
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
print("begins", flush=True)
while True:
    try:
        os.pwrite(file, b"x", 0)
    except OSError as error:
        print("error", error, flush=True)
PY
    cat >"$work/waits.sh" <<'SH'
trap 'rm -f "$2"; exit 7' TERM
echo begins
while :; do echo x >>"$2"; done
SH
    has_begun() { grep -qs begins "$work/$name.said" && [[ -s $work/tree/$name ]]; }
    # A signal between two calls is handled at the end of the next call, as with the kernel's calls.
    # A program that has slept three times with the signal blocked all the while is inside a call
    # that will not be answered: the answer to the one before has come.
    is_waiting() {
        local key value blocked=0 sleeps=0
        while read -r key value; do
            case $key in
                SigBlk:) blocked=$((16#$value)) ;;
                voluntary_ctxt_switches:) sleeps=$value ;;
            esac
        done <"/proc/$client/status"
        if ((blocked >> ($(kill -l "${signal#SIG}") - 1) & 1)); then
            first=${first:-$sleeps}
        else
            first=
        fi
        [[ $first && $((sleeps - first)) -ge 3 ]]
    }
    is_over() { ! kill -0 "$client"; }
    # Prints the state of a program for which a condition does not come true.
    soon() {
        first=
        (eventually "$1") && return
        local task
        tail "$work/$name.said"
        for task in "/proc/$client/task"/* $(sed 's|[0-9][0-9]*|/proc/&|g' "/proc/$client/task/$client/children"); do
            echo "$task: $(tr '\0' ' ' <"$task/cmdline")"
            grep -E '^(Name|State|Sig...|ShdPnd|.*ctxt_switches):' "$task/status" || true
            tail -v -n +1 "$task/wchan" "$task/syscall" "$task/stack" 2>&1 || true
            echo
        done
        fail "$name: not so: $1"
    }
    for fate in 'STOP python3.SIGTERM' 'KILL python3.SIGTERM python3.SIGINT bash.SIGTERM'; do
        read -r -a programs <<<"$fate"
        fate=${programs[0]}
        clients=()
        for transport in shm iwarp; do
            for program in "${programs[@]:1}"; do
                name=$fate.$program.$transport
                signal=${program#*.}
                script=$work/waits.py
                [[ $program != bash.* ]] || script=$work/waits.sh
                (exec "$dafs" run --recovery 3600 --transport $transport --at "/data=$url" \
                    "${program%.*}" "$script" "$signal" "/data/$name") >"$work/$name.said" 2>&1 &
                client=$!
                started+=("$client")
                clients+=("$client $signal $name")
                soon has_begun
            done
        done
        if [[ $fate == STOP ]]; then kill -STOP "$server"; else kill_server; fi
        for one in "${clients[@]}"; do
            read -r client signal name <<<"$one"
            soon is_waiting
        done
        for one in "${clients[@]}"; do
            read -r client signal name <<<"$one"
            kill "-$signal" "$client"
        done
        for one in "${clients[@]}"; do
            read -r client signal name <<<"$one"
            soon is_over
            status=0
            wait "$client" || status=$?
            [[ $status == 7 ]] || { tail "$work/$name.said"; fail "$name: status $status, not 7"; }
        done
        [[ $fate != STOP ]] || kill -CONT "$server"
    done
fi
