#!/bin/bash
# A confined server does its everyday work over all front ends, is reloaded and restarted, and shows its
# sandbox. It starts with no less than the configuration requires. Neither its log nor its metrics have
# keys or passwords, and a crash leaves no memory behind.
source "$(dirname "$0")/lib.sh"

# The build folder may be closed to others.
cp "$dafs" "$work/dafs"
chmod 755 "$work/dafs"
dafs=$work/dafs
head -c 3000000 /dev/urandom >"$work/file"

# run ARGUMENTS... -- the command, as the user of the server.
as=()
run() { "${as[@]+"${as[@]}"}" "$dafs" "$@"; }

# prepare NAME -- a folder of the server's user, with what a server needs.
prepare() {
    home=$work/$1
    config=$home/conf/dafs.toml
    "${as[@]+"${as[@]}"}" mkdir -p "$home/conf" "$home/export" "$home/neighbour"
    echo secret | "${as[@]+"${as[@]}"}" tee "$home/neighbour/secret" >/dev/null
    run pki init "$home/pki" >/dev/null
    run pki server "$home/pki" nas 127.0.0.1 >/dev/null
    "${as[@]+"${as[@]}"}" cp -p "$home/pki/"{nas,nas-key,ca}.pem "$home/conf"
    echo HushHushAnna | run passwd "$home/conf/users" anna --uid "$(stat -c %u "$home/conf")" \
        --gid "$(stat -c %g "$home/conf")"
}

# configure LINE... -- a configuration with these lines at the top, and those of `more` at the end. It
# replaces the one before, as editors do.
more=()
configure() {
    {
        printf '%s\n' "$@" 'listen = ["127.0.0.1:0"]' 'metrics_listen = "127.0.0.1:0"'
        printf '%s\n' 'password_file = "users"' 'lease_time_seconds = 2'
        printf '%s\n' '[server_auth]' 'id = "here"' 'password = "HushHushServer"'
        printf '%s\n' '[tls]' 'certificate = "nas.pem"' 'key = "nas-key.pem"' 'authorities = "ca.pem"'
        printf '%s\n' '[nfs]' 'listen = ["127.0.0.1:0"]' 'rdma_listen = ["127.0.0.1:0"]'
        printf '%s\n' '[[export]]' 'name = "data"' 'path = "../export"' 'squash = "none"' \
            'unprivileged_ports = true' 'durable_replies = "crash"'
        printf '%s\n' ${more[@]+"${more[@]}"}
    } | "${as[@]+"${as[@]}"}" tee "$config.new" >/dev/null
    "${as[@]+"${as[@]}"}" mv "$config.new" "$config"
}

# landlock ABI -- true if this kernel's Landlock has at least that ABI.
landlock() {
    local abi
    abi=$("$dafs" doctor | sed -n 's/.*Landlock has ABI \([0-9]*\).*/\1/p' || true)
    [[ ${abi:-0} -ge $1 ]]
}

scrape() {
    local metrics
    metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
    exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    cat <&3
    exec 3>&-
}
# shows FILES NETWORK CALLS -- the metrics say so of these parts.
shows() {
    local said='' part
    for part in files network system_calls; do said+=$(scrape | sed -n "s/^dafs_sandbox_$part //p" | tr -d '\r'); done
    [[ $said == "$1$2$3" ]] || { cat "$log"; fail "the metrics say '$said', not $*"; }
}
# filters FOLDER -- the mode and the number of filters of system calls. A container has some of its own.
filters() { sed -n 's/^Seccomp[_filters]*:[[:space:]]*//p' "$1/status" | tr '\n' ' '; }
outside=$(filters /proc/$$)
# has_filter PROCESS -- true if all threads of a process have a filter of system calls of their own.
has_filter() {
    local task
    for task in "/proc/$1/task/"*; do
        grep -Eq '^Seccomp:[[:space:]]*2$' "$task/status" || return 1
        [[ $(filters "$task") != "$outside" ]] || return 1
    done
}
is_confined() {
    has_filter "$server" && grep -Eq '^NoNewPrivs:[[:space:]]*1$' "/proc/$server/status" &&
        grep -Eq '^Max core file size +0 +0 ' "/proc/$server/limits"
}
is_free() { [[ $(filters "/proc/$server") == "$outside" ]]; }

# everyday -- work over all front ends and transports.
address() { sed -n "s/.*listening for NFS$1 *address=//p" "$log" | head -n 1; }
everyday() {
    local tcp rdma place query
    tcp=$(address '')
    rdma=$(address ' over RDMA (iWARP in software)')
    [[ $tcp && $rdma ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
    round "$url/data" '' --transport shm
    round "$url/data" '' --transport iwarp
    while read -r place query; do round "$place/data" "$query"; done <<END
nfs://$tcp ?vers=3
nfs://$tcp ?vers=4.2
nfs+rdma://$rdma ?vers=4.1&transport=iwarp
nfs+rdma://$rdma ?vers=4.2&transport=shm
END
    ! grep -q '^\[tls\]' "$config" || round "nfs://$tcp/data" "?vers=4.2&xprtsec=tls&ca=$home/conf/ca.pem"
}
# round PLACE QUERY OPTION... -- a file there and back, and names.
round() {
    local place=$1 query=$2
    shift 2
    run "$@" put --sync "$work/file" "$place/file$query"
    run "$@" mkdir -p "$place/a/b$query"
    run "$@" mv "$place/file$query" "$place/a/b/moved$query"
    run "$@" ln -s b "$place/a/link$query"
    run "$@" cat "$place/a/b/moved$query" >"$work/back"
    same "$work/file" "$work/back" "the file and what came back over $place$query $*"
    run "$@" ls "$place/a$query" >/dev/null
    run "$@" stat "$place/a/b/moved$query" >/dev/null
    run "$@" rm -r "$place/a$query"
}

# start -- a server with the configuration.
start() { serve --config "$config" --state-directory "$home/state"; }

# lives MEANS -- a server of this configuration through all that an administrator does with it.
lives() {
    local admin=(--state-directory "$home/state")
    start
    is_confined || { cat "/proc/$server/status" "$log"; fail "the process is not confined"; }
    shows 1 1 1
    grep -q "sandbox .*files=.*$1" "$log" || { cat "$log"; fail "the log does not say so"; }
    ("$dafs" doctor || true) | grep "server of process $server has a filter of system calls" >/dev/null ||
        fail "doctor does not say so"
    everyday

    step "it is asked, and reads a replaced configuration again"
    run clients "${admin[@]}" >/dev/null
    run sessions "${admin[@]}" >/dev/null
    more=('[[export]]' 'name = "further"' 'path = "../export"')
    configure 'sandbox = "required"'
    run reload "${admin[@]}"
    run ls "$url/further" >/dev/null
    more=('[[export]]' 'name = "further"' 'path = "../neighbour"')
    configure 'sandbox = "required"'
    expect 1 'restart it' run reload "${admin[@]}"
    run ls "$url/data" >/dev/null || fail "the exports have changed"
    more=()
    configure 'sandbox = "required"'
    run reload "${admin[@]}"
    everyday

    step "passwords count"
    DAFS_PASSWORD=HushHushAnna expect 0 '' run --transport iwarp --user anna ls "$url/data"
    DAFS_PASSWORD=Hush expect 3 'not accepted' run --transport iwarp --user anna ls "$url/data"

    step "it is killed, restarted, and ended in order"
    kill_server
    start
    everyday
    stop_server
    start
    everyday
    no_secrets
    stop_server
}

# no_secrets -- neither the logs nor the metrics have a password or the key of handles.
no_secrets() {
    local secret key
    # Behind a byte that tells the form of handles.
    key=$(od -An -tx1 -j 1 "$home/state/handle-key" | tr -d ' \n')
    [[ ${#key} == 32 ]] || fail "the key is $key"
    scrape >"$work/metrics"
    grep -q '^dafs_sandbox_landlock_abi [1-9]' "$work/metrics" || fail "the metrics do not tell the ABI"
    for secret in HushHushAnna HushHushServer "$key"; do
        ! grep -iF "$secret" "$work/metrics" "$work"/server-*.log || fail "a secret is shown: $secret"
    done
}

step "a word that is none of the three"
prepare words
configure 'sandbox = "yes"'
expect 2 'use "required", "if possible" or "off"' run serve --config "$config" --state-directory "$home/state"
expect 2 'use "required", "if possible" or "off"' run serve "$home/export" --sandbox yes

if is_root && ! landlock 4; then
    step "a kernel without Landlock for TCP"
    configure 'sandbox = "required"'
    expect 2 'lsm=' timeout 20 "$dafs" serve --config "$config" --state-directory "$home/state"
elif is_root && ! unshare -m true 2>/dev/null; then
    echo "this root may not make a mount namespace, so its servers open files by path"
elif is_root; then
    step "a server of root, in a mount namespace"
    prepare root
    configure 'sandbox = "required"'
    lives 'mount namespace'

    step "it sees neither the neighbour of its export nor secrets of the host"
    start
    seen=/proc/$server/root
    [[ -e $seen$home/export && ! -e $seen$home/neighbour ]] || fail "the neighbour is there"
    [[ -e $seen/etc/passwd && ! -e $seen/etc/shadow && ! -e $seen/proc/1 ]] || fail "/etc or /proc is there"
    [[ ! -e $seen/root && ! -e $seen/home && ! -e $seen/dev/sda ]] || fail "too much is there"
    stop_server
    [[ -e $home/neighbour/secret && -e /etc/hosts ]] || fail "the host has lost files"

    step "a server of root that may make no namespace"
    configure 'sandbox = "required"'
    command -v setpriv >/dev/null || skip "the rest needs setpriv (util-linux)"
    as=(setpriv "--bounding-set=-sys_admin" "--inh-caps=-sys_admin")
    expect 2 "a mount namespace cannot be made" timeout 20 "${as[@]}" "$dafs" serve --config "$config" \
        --state-directory "$home/state"
    grep -qF 'sandbox = "if possible"' "$work/said" || fail "no remedy"
    configure 'sandbox = "if possible"'
    start
    shows 0 "$(landlock 4 && echo 1 || echo 0)" 1
    grep -q 'WARN.*does not confine the files.*CAP_SYS_ADMIN' "$log" || { cat "$log"; fail "no warning"; }
    everyday
    stop_server
    as=()
fi
if is_root; then
    command -v setpriv >/dev/null || skip "the rest needs setpriv (util-linux)"
    step "without a word there is no sandbox for root"
    configure
    start
    is_free && shows 0 0 0
    stop_server

    user=daemon
    as=(setpriv --reuid "$(id -u $user)" --regid "$(id -g $user)" --init-groups)
    mkdir "$work/user"
    chown "$user" "$work/user"
    prepare user/place
else
    prepare place
fi

if ! landlock 4; then
    step "a kernel without Landlock for TCP"
    configure 'sandbox = "required"'
    expect 2 'lsm=' timeout 20 "${as[@]+"${as[@]}"}" "$dafs" serve --config "$config" --state-directory "$home/state"
    skip "this kernel has no Landlock for TCP"
fi

step "a server without privileges, by Landlock"
configure 'sandbox = "required"'
lives 'Landlock'

step "without a word a reload may name other directories"
configure
start
is_confined || fail "it is not confined"
shows 0 0 1
more=('[[export]]' 'name = "further"' 'path = "../neighbour"')
configure
run reload --state-directory "$home/state"
[[ $(run cat "$url/further/secret") == secret ]] || fail "the new export is not served"
more=()
stop_server

step "without a configuration all parts are in force, unless they are off"
serve "$home/export" --state-directory "$home/state" --metrics 127.0.0.1:0
is_confined || fail "it is not confined"
shows 1 1 1
run put "$work/file" "$url/file"
stop_server
serve "$home/export" --state-directory "$home/state" --sandbox off
is_free || fail "off is not off"
stop_server

step "a crash leaves no memory behind"
ulimit -c unlimited 2>/dev/null || true
mkdir "$work/cores"
chmod 777 "$work/cores"
as_before=("${as[@]+"${as[@]}"}")
as=(env -C "$work/cores" "${as_before[@]+"${as_before[@]}"}")
configure 'sandbox = "required"'
start
kill -ABRT "$server"
wait "$server" 2>/dev/null || true
forget_process "$server"
as=("${as_before[@]+"${as_before[@]}"}")
[[ ! $(ls -A "$work/cores") ]] || fail "there is a core dump"

step "a metadata server and a data server"
run cluster init --secret "$home/conf/cluster"
"${as[@]+"${as[@]}"}" mkdir "$home/names" "$home/data"
# Not by `run`, whose process would be another one.
"${as[@]+"${as[@]}"}" "$dafs" serve --role data --control 127.0.0.1:0 --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 \
    --nfs-unprivileged-ports --sandbox required --cluster-secret "$home/conf/cluster" "$home/data" \
    >"$work/data.out" 2>"$work/data.log" &
data=$!
started+=("$data")
data_is_ready() { grep -qs '^ready ' "$work/data.out" || ! kill -0 "$data"; }
eventually data_is_ready
control[1]=$(sed -n 's/^ready //p' "$work/data.out")
[[ ${control[1]} ]] || { cat "$work/data.log"; fail "the data server did not start"; }
grep -q 'sandbox .*files=Landlock network=Landlock system_calls=seccomp' "$work/data.log" ||
    { cat "$work/data.log"; fail "the data server is not confined"; }
"${as[@]+"${as[@]}"}" tee "$config" >/dev/null <<END
sandbox = "required"
listen = ["127.0.0.1:0"]
[nfs]
listen = ["127.0.0.1:0"]
rdma_listen = ["127.0.0.1:0"]
[cluster]
secret = "cluster"
[[export]]
name = "data"
path = "../names"
squash = "none"
unprivileged_ports = true
$(nodes 1)
END
serve --config "$config" --state-directory "$home/striped"
all_there() { run cluster status --state-directory "$home/striped"; }
eventually all_there
everyday
is_confined || fail "the metadata server is not confined"
stop_server
