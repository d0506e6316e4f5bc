#!/bin/bash
# Thousands of connections from one host are limited, while an existing session goes on. A client
# that stops reading delays no other. Silent connections make room at all front ends, however few
# descriptors there are. They fill neither the log nor the memory, and delay no scraper.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
truncate -s 200G "$work/export/long"
echo hello >"$work/export/file"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
lease_time_seconds = 3
metrics_listen = "127.0.0.1:0"
[limits]
connections_per_address = 40
[nfs]
listen = ["127.0.0.1:0"]
[[export]]
name = "data"
path = "export"
END
serve --config "$work/dafs.toml"
port=${url##*:}
file=$url/data/file
memory() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status"; }
metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
scrape() {
    exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
    printf 'GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n' >&3
    cat <&3
}
first=$(memory)

step "a client that stops reading"
for transport in shm iwarp; do
    "$dafs" --transport $transport cat "$url/data/long" >/dev/null 2>"$work/stopped" &
    client=$!
    started+=("$client")
    is_reading() { [[ $(count opens) == 1 ]]; }
    eventually is_reading
    kill -STOP "$client"
    before=$(memory)
    for _ in $(seq 20); do
        [[ $(timeout 20 "$dafs" --transport $transport cat "$file") == hello ]] || fail "held up"
    done
    [[ $(memory) -lt $((before + 65536)) ]] || fail "memory: $before KiB, then $(memory) KiB"
    kill -9 "$client"
    wait "$client" || true
    is_free() { [[ $(counts) =~ connections=0\ sessions=0\ pending=0 && $(count opens) == 0 ]]; }
    eventually is_free
done

"$dafs" --transport iwarp ping --wake sleep -c 1000000 "$url" >"$work/pings" &
pinging=$!
started+=("$pinging")
has_session() { [[ $(count sessions) -ge 1 ]]; }
eventually has_session
[[ $(ulimit -Hn) == unlimited || $(ulimit -Hn) -ge 4000 ]] ||
    skip "cannot open 3000 connections: ulimit -Hn is $(ulimit -Hn)"
ulimit -n 4000
mkfifo "$work/done"

# flood MESSAGE -- 3000 connections that send this and no more, until told to end.
flood() {
    local before
    before=$(memory)
    rm -f "$work/flooding"
    perl -MIO::Socket::INET -e '
        $| = 1;
        my ($port, $message, $done) = @ARGV;
        my @open;
        for (1 .. 3000) {
            my $socket =
                IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $port, Timeout => 5);
            next unless $socket;
            print $socket eval "qq($message)";
            $socket->flush;
            push @open, $socket;
        }
        print scalar(@open), " connections\n";
        open my $wait, "<", $done; <$wait>;' "$port" "$1" "$work/done" >"$work/flooding" &
    flood=$!
    started+=("$flood")
    # It takes the kernel some ten seconds on an idle machine.
    while [[ ! -s $work/flooding ]]; do
        kill -0 "$flood" || fail "the flood has ended early"
        sleep 0.1
    done
    sleep 0.5
    echo "$(cat "$work/flooding"): $(counts | sed 's/.*counts //')"
    # The others are sessions of ours.
    [[ $(count connections) -le 43 ]] || fail "more than the limit: $(counts)"
    [[ $(timeout 20 "$dafs" --transport shm cat "$file") == hello ]] || fail "shm is shut out"
    [[ $(memory) -lt $((before + 131072)) ]] || fail "memory: $before KiB, then $(memory) KiB"
    kill -0 "$pinging" || fail "the session that was there has ended: $(cat "$work/pings")"
    echo >"$work/done"
    wait "$flood"
}

step "3000 connections that say nothing"
flood ''
step "3000 connections that ask to be connected, and then say nothing"
flood 'MPA ID Req Frame\x00\x01\x00\x00'
pings() { scrape | sed -n 's/^dafs_operation_duration_seconds_count.*operation="NULL"} //p'; }
answered=$(pings)
is_answered() { [[ $(pings) -gt $answered ]]; }
eventually is_answered
kill "$pinging"
wait "$pinging" || true
forget_process "$pinging"

step "60 sessions where 40 are allowed"
mkfifo "$work/blocked"
exec 7<>"$work/blocked"
holders=()
for number in $(seq 60); do
    "$dafs" --transport iwarp cat "$url/data/long" >&7 2>"$work/holder-$number" &
    holders+=($!)
done
started+=("${holders[@]}")
has_settled() { [[ $(cat "$work"/holder-* | wc -l) -ge 20 && $(count sessions) == 40 ]]; }
eventually has_settled
[[ $(cat "$work"/holder-* | wc -l) == 20 ]] || fail "refused: $(cat "$work"/holder-*)"
sort "$work"/holder-* | uniq -c
for pid in "${holders[@]}"; do kill "$pid" 2>/dev/null || true; done
exec 7>&-

step "the log tells of the flood in few lines, and the memory comes back"
[[ $(wc -c <"$log") -lt 65536 ]] || fail "the log has $(wc -c <"$log") bytes"
is_told() { counts && grep -q 'lines of .* were left out' "$log"; }
eventually is_told
has_memory() { [[ $(memory) -lt $((first + 32768)) ]]; }
eventually has_memory

step "ten scrapers that say nothing hold up no other one"
silent=()
for _ in $(seq 10); do
    exec {socket}<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
    silent+=("$socket")
done
# One after the other they would take twenty seconds.
export -f scrape
metrics=$metrics timeout 10 bash -c scrape >"$work/metrics" || fail "a scrape was held up"
grep -q '^dafs_connections_evicted_total [1-9]' "$work/metrics" || fail "nothing was counted: $(cat "$work/metrics")"
for socket in "${silent[@]}"; do exec {socket}<&-; done

step "afterwards there is room again"
has_room() { [[ $("$dafs" --transport iwarp cat "$file") == hello ]]; }
eventually has_room

step "100 connections at the NFS port where 40 are allowed"
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
perl -MIO::Socket::INET -MIO::Select -e '
    my @open;
    for (1 .. 100) {
        my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 5);
        push @open, $socket if $socket;
    }
    my $select = IO::Select->new(@open);
    # Those that the server has closed can be read from.
    while (my @over = $select->can_read(2)) { $select->remove(@over) }
    print $select->count, "\n"' "$nfs" >"$work/kept"
kept=$(cat "$work/kept")
[[ $kept -ge 30 && $kept -le 40 ]] || fail "the server has kept $kept connections"
stop_server

step "1100 silent connections where the process may open 1024 files"
command -v prlimit >/dev/null || skip "there is no prlimit"
as=(prlimit --nofile=1024:1024)
serve "$work/export" --state-directory "$work/few" --nfs 127.0.0.1:0 --nfs-unprivileged-ports
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
grep -q 'may open few descriptors' "$log" || fail "the log does not say that descriptors are few"
perl -MIO::Socket::INET -e '
    $| = 1;
    my @open;
    for (1 .. 1100) {
        my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], Timeout => 5);
        push @open, $socket if $socket;
    }
    print scalar(@open), " connections\n";
    sleep;' "$nfs" >"$work/silent" &
flood=$!
started+=("$flood")
while [[ ! -s $work/silent ]]; do
    kill -0 "$flood" || fail "the flood has ended early"
    sleep 0.1
done
cat "$work/silent"
for _ in 1 2 3; do
    [[ $(timeout 20 "$dafs" --transport iwarp cat "$url/file") == hello ]] || fail "DAFS is shut out"
    [[ $(timeout 20 "$dafs" ls "nfs://$nfs/") == *file* ]] || fail "NFS is shut out"
done
[[ $(timeout 20 "$dafs" --transport shm cat "$url/file") == hello ]] || fail "shm is shut out"
kill "$flood"
stop_server
