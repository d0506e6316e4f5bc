#!/bin/bash
# The experiments of the papers, as short as possible: each runs, counters show that bytes took the way
# of their row, and the page has every experiment. A run that is interrupted leaves its rows, no
# process and no file. Times are not checked.
source "$(dirname "$0")/lib.sh"

bench=${DAFS_TARGET:-$PWD/target/debug}/dafs-bench
[[ -x $bench ]] || fail "there is no $bench; build it with: cargo build --workspace"

step "all experiments, with two sizes of blocks"
timeout 1800 "$bench" papers --scale 1 --rounds 1 --blocks 4096,262144 --pnfs-clients 2 \
    --json "$work/papers.json" --document "$work/page.md" | tee "$work/out"
python3 - "$work/papers.json" "$work/out" >"$work/rows" <<'PYTHON' || fail "the rows"
import json
import re
import sys

results, output = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
assert results["is_complete"]
# libnfs hangs at times, and no other row fails.
failed = [row for row in results["skipped"] if row["cell"]]
assert all(row["way"] == "libnfs" for row in failed), failed
retried = [row for row in results["retried"] if " libnfs " not in row["rows"]]
assert not retried, retried
# Our own server starts in every network that can be.
assert not any("serve-all" in row["reason"] for row in results["skipped"]), results["skipped"]
skipped = {(row["network"], row["way"]) for row in results["skipped"] if not row["cell"]}
programs = results["programs"]
groups = results["groups"]
assert output.count("papers: SKIPPED") == sum(len(part["skipped"]) for part in (results, programs, groups))
assert all(way in (None, "libnfs") for _, way in skipped), skipped
rows = {(row["network"], row["way"]) for row in results["rows"]}
ways = ["tcp", "rdma", "dafs-iwarp", "dafs-shm", "libnfs", "nfs-tcp", "nocopy-iwarp", "nocopy-shm", "prepost"]
for network in ["free", "link", "far", "slow"]:
    for way in ["dafs-iwarp", "libnfs", "nfs-tcp"] if network == "slow" else ways:
        if network == "free" or not way.endswith("-shm"):
            gone = {(network, way), (network, None), (None, None)} & skipped
            assert bool(gone) != ((network, way) in rows), (network, way)
for row in results["rows"]:
    for sample in row["samples"]:
        count, crossed, copied = (sample[key] for key in ["bytes", "crossed_bytes", "copied_bytes"])
        assert count == sample["operations"] * row["block"] > 0, row
        if row["block"] < 262144:
            continue
        assert crossed is None or (crossed < count / 10 if row["way"].endswith("-shm") else crossed >= count), row
        assert copied is None or copied < count / 10 or row["way"] in ("nfs-tcp", "prepost"), row
print(len(results["rows"]), "rows,", len(results["skipped"]), "skipped")

assert all(row["step"] is None for row in programs["skipped"]), programs["skipped"]
skipped = {(row["work"], row["network"]) for row in programs["skipped"] if not row["door"]}
rows = {(row["work"], row["network"], row["door"]) for row in programs["rows"]}
for work, doors in {"gzip": 4, "sizes": 2, "counts": 2, "pages": 3, "queue": 3, "tpcc": 2}.items():
    for network in ["free", "link"]:
        gone = {(work, network), (work, None), (None, network), (None, None)} & skipped
        found = [row for row in rows if row[:2] == (work, network)]
        closed = [row for row in programs["skipped"] if row["work"] == work and row["door"]]
        assert len(found) == (0 if gone else doors - len(closed)), (work, network, found)
for row in programs["rows"]:
    for sample in row["samples"]:
        count, crossed = sample["bytes"], sample["crossed_bytes"]
        assert sample["operations"] > 0 and count > 0, row
        if row["work"] == "queue" and crossed is not None:
            assert crossed < count / 10 if row["network"] == "free" else crossed > count / 10 * 9, row
        # Each page is read four times. A client's cache has it after the first, without a cache none is saved.
        if row["work"] == "pages" and row["step"] == 100000 and row["network"] == "link" and crossed is not None:
            assert row["door"] != "cached" or crossed < count / 2, row
            assert row["door"] != "library" or crossed >= count, row
skipped = {row["group"] for row in groups["skipped"]}
assert skipped | {row["group"] for row in groups["rows"]} == {"fio", "matching", "rdma", "guest", "host", "pnfs", "disks", "advise"}, skipped
# fio and applications may be unwilling. Other groups are skipped only where something is missing, layouts of
# our own where data servers cannot be, and the kernel's client where there is no guest or no mount.
for row in groups["skipped"]:
    missing = re.match("there is no |networks of|no links|DAFS layouts: |there can be no guest: |this host ", row["reason"])
    assert row["group"] in ("fio", "advise") or missing, row
# Predictions may be wrong, even all of them.
assert all(row["value"] > 0 or row["unit"] == "MiB" or row["case"] == "share of right predictions" for row in groups["rows"]), groups
# The kernel's client has moved all bytes of each way, or there is a reason.
for group, names in {"guest": ["TCP", "siw", "TCP to a guest", "rxe"], "host": ["TCP", "RDMA"]}.items():
    gone = {row["way"] for row in groups["skipped"] if row["group"] == group}
    counted = {row["case"]: row["value"] for row in groups["rows"] if row["group"] == group and "counted" in row["case"]}
    assert all(share >= 1 for share in counted.values()), counted
    for name in names:
        for case in [f"{name}: {operation}, bytes that the kernel counted" for operation in ["read", "write"]]:
            assert (case in counted) != bool(gone & {name, None}), case
# The same for the ways of Direct-pNFS: layouts of our own may be missing alone.
gone = [row["reason"] for row in groups["skipped"] if row["group"] == "pnfs"]
found = {row["case"] for row in groups["rows"] if row["group"] == "pnfs"}
blocks = [f"{operation}, {files}, {size}" for operation in ["write", "read"] for files in ["separate files", "one file"] for size in ["2 MiB", "8 KiB"]]
patterns = ["atlas", "oltp", "postmark", "btio", "unpack", "configure", "build"]
ways = ["Direct-pNFS", "CephFS", "2-tier", "3-tier", "NFSv4"]
for way in [*ways, "CephFS uncached", "DAFS layouts", *(f"{way} with nine clients" for way in ways)]:
    loads = ["btio"] if "nine" in way else blocks if way == "DAFS layouts" else [*blocks, *patterns]
    reasons = [reason for reason in gone if way == "DAFS layouts" or not reason.startswith("DAFS layouts: ")]
    assert reasons or all(f"{way}: {load}" in found for load in loads), (way, found)
print(len(groups["rows"]), "rows of groups,", len(groups["skipped"]), "skipped")
print(len(programs["rows"]), "rows of programs,", len(programs["skipped"]), "skipped")
PYTHON

cat "$work/rows"

step "a page with all experiments and figures"
ids=(P0-{F{1..8},H{1..3}} P1-{F{1..3},T{1..4},H1,H2} P2-{T1,F{1..12},S6} P3-{F{1..18},H{1..3}}
    P4-{F{1..5},F6{a..e},F7{a..d},F8{a..d},H1})
for id in "${ids[@]}"; do grep -q "^| $id | " "$work/page.md" || fail "$id is missing on the page"; done
# Each claim finds the row of a group that it names.
! grep 'its group was not measured' "$work/page.md" || fail "a claim without its row"
# The page keeps the rules for pages.
! LC_ALL=C grep -nP '[^\x00-\x7f]|[[:blank:]]$' "$work/page.md" || fail "a character that pages do not have"
python3 - "$work/page.md" <<'PYTHON' || fail "sentences of the page"
import pathlib
import sys

sys.path.insert(0, "scripts/house")
import pages

page = pathlib.Path(sys.argv[1])
faults = [*pages.broken_links(page), *pages.faults_of_words(page, 50), *pages.nothing_to_type([page])]
sys.exit("\n".join(faults) or None)
PYTHON
for figure in "$work"/figures/papers-p{0,1,2,3}.svg; do
    grep -q '<circle' "$figure" || fail "$figure is empty"
    grep -qF "(figures/${figure##*/})" "$work/page.md" || fail "the page has no $figure"
done
cp "$work/page.md" "$work/first.md"
"$bench" papers --draw --json "$work/papers.json" --document "$work/page.md"
same "$work/first.md" "$work/page.md" "pages of the same results"

step "one experiment, an unknown one, and no folder for the file"
"$bench" papers --scale 1 --rounds 1 --only P2-F1 --json "$work/one.json" --document "$work/one.md"
grep -q '^| P2-F1 | DAFS copies nothing at the client | .* | met | ' "$work/one.md" ||
    { grep P2-F1 "$work/one.md"; fail "a direct read is copied"; }
for words in 'Only these experiments were measured: P2-F1[.]' 'are at 1 %[.]'; do
    grep -q "$words" "$work/one.md" || fail "the page does not tell that it is a part: $words"
done
"$bench" papers --scale 1 --rounds 1 --only P3-H2 --blocks 1024 --json "$work/inline.json" --document "$work/inline.md"
grep -q '"way":"nfs-inline"' "$work/inline.json" && grep -q '"way":"nfs-direct"' "$work/inline.json" ||
    fail "no NFS inside messages"
# A sample of long blocks is short, and what comes before it must not count.
"$bench" papers --scale 1 --rounds 1 --only P2-T1 --blocks 1048576 --json "$work/floors.json" --document "$work/floors.md"
! grep 'crossed the network for' "$work/floors.md" || fail "a floor that moves more bytes than it counts"
expect 1 "there is no experiment P9-F1" "$bench" papers --only P9-F1 --json "$work/none.json"
"$bench" papers --scale 1 --only P2-F1 --folder "$work/none" --json "$work/none.json" --document "$work/none.md"
grep -q '^| all | there is no file in ' "$work/none.md" || fail "no reason"

# papers ONLY NAME ARGUMENTS... -- runs experiments as short as possible, with results in files of that name.
papers() {
    local only=$1 name=$2
    shift 2
    timeout 600 ${by[@]+"${by[@]}"} "$bench" papers --scale 1 --rounds 1 --blocks 4096 --only "$only" \
        --json "$work/$name.json" --document "$work/$name.md" "$@" >"$work/$name.out" 2>&1 ||
        { cat "$work/$name.out"; fail "a run with something missing: $name"; }
}
by=()
if is_root && unshare -m true 2>/dev/null; then
    step "a full disk: its rows are skipped with the reason, and it is empty again"
    mkdir "$work/small"
    if mount -t tmpfs -o size=4m tmpfs "$work/small" 2>/dev/null; then
        undo+=("umount -l '$work/small'")
        papers P2-F1,P2-F12 full --folder "$work/small"
        grep -q '^| all | there is no file in .*No space left' "$work/full.md" || fail "no reason"
        ! compgen -G "$work/small/*" >/dev/null || fail "files are left: $(ls "$work/small")"
    fi

    # without NAME ONLY COMMANDS -- the same after commands that take something away, for this run alone.
    without() {
        local said
        said=$(
            export -f papers fail
            export bench work
            unshare -m bash -c "$3
                papers $2 $1 --folder /dev/shm" 2>&1
        ) || { echo "$said"; fail "a run without them: $1"; }
    }
    step "no control groups"
    without unlimited P0-F5 'mount -t tmpfs tmpfs /sys/fs/cgroup'
    grep -q '^| slow | ' "$work/unlimited.md" || { cat "$work/unlimited.out"; fail "slow is not skipped"; }
    # Where there are links, those without a limit have rows.
    grep -q '^| link | ' "$work/unlimited.md" || grep -q '"network":"link","way":"dafs-iwarp"' "$work/unlimited.json" ||
        fail "the rows without a limit did not run"

    step "no tc, no Berkeley DB, no Ganesha"
    # Each is there by its name, and does not work.
    without masked P0-F5,P2-F12 '
        for program in tc ganesha.nfsd; do
            found=$(PATH=$PATH:/usr/sbin:/sbin type -P "$program") && mount --bind /dev/null "$found"
        done
        [[ ! -f /usr/include/db.h ]] || mount --bind /dev/null /usr/include/db.h'
    for rows in link slow 'free libnfs'; do
        grep -q "^| $rows | " "$work/masked.md" || { cat "$work/masked.out"; fail "$rows is not skipped"; }
    done
    grep -Eq '^\| (P2, figure 12: .*|all programs) \| ' "$work/masked.md" || fail "TPC-C is not skipped"
    grep -q '"way":"dafs-iwarp"' "$work/masked.json" || fail "the other rows did not run"

    by=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    if "${by[@]}" test -x "$bench" 2>/dev/null; then
        step "no root"
        chmod 755 "$work"
        mkdir -m 777 "$work/other"
        papers P0-F5,P2-F12 other/none --folder /dev/shm
        for rows in link 'all programs'; do
            grep -q "^| $rows | " "$work/other/none.md" || fail "$rows is not skipped without root"
        done
        grep -q '"way":"dafs-iwarp"' "$work/other/none.json" || fail "no rows without root"
    fi
fi

# is_left GROUP -- true while a process of that group lives.
is_left() { ps -e -o pgid= -o stat= | awk -v group="$1" '$1 == group && $2 !~ /^Z/' | grep . >/dev/null; }
is_gone() { ! is_left "$1"; }
# The control groups of all runs on this machine.
control_groups() { ls -d /sys/fs/cgroup/{,cpu/,memory/}dafs-bench-* 2>/dev/null || true; }
before=$(control_groups)
has_no_more_groups() { [[ $(control_groups) == "$before" ]]; }
has_no_folder() { ! compgen -G "$work/dafs-bench*" >/dev/null; }
# True when the file has rows. It is written after each part of a run, also after one without any.
has_rows() { grep -qs '"rows":\[{' "$work/part.json"; }
# interrupt SIGNAL EXPERIMENT -- ends a run by a signal.
interrupt() {
    step "a run of $2 that is interrupted by $1"
    rm -f "$work/part.json"
    # Many rounds in a group of processes of its own, with all servers, links and limits.
    setsid "$bench" papers --rounds 1000 --scale 1 --only "$2" --folder "$work" --json "$work/part.json" \
        >"$work/part.out" 2>&1 &
    run=$!
    started+=("$run")
    eventually grep -q '^round 1 ' "$work/part.out"
    eventually has_rows
    kill -"$1" "$run"
    status=0
    wait "$run" || status=$?
    [[ $status != 0 ]] || { cat "$work/part.out"; fail "it ended well"; }
    eventually is_gone "$run"
    eventually has_no_more_groups
    eventually has_no_folder
    python3 - "$work/part.json" <<'PYTHON' || fail "rows so far"
import json
import sys

results = json.load(open(sys.argv[1]))
assert not results["is_complete"] and (results["rows"] or results["programs"]["rows"]), results
PYTHON
}
for signal in INT KILL; do
    interrupt "$signal" P0-F5
    # Where no program can run, there is none to interrupt.
    ! grep -q '^[0-9].* rows of programs, 0 skipped' "$work/rows" || interrupt "$signal" P2-F10
done
