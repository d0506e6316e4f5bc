#!/bin/bash
# The commands of the quick start in README.md work as they are printed, as this user, and if that is root as another, too.
source "$(dirname "$0")/lib.sh"

# The block of commands after the mark $1.
commands() {
    awk -v mark="<!-- quick start: $1 -->" '
        $0 == mark { found = 1; next }
        found && /^```$/ { exit }
        found && !/^```/' README.md
}
[[ $(commands server) && $(commands client) ]] || fail "README.md has no quick start"

# A port of our own instead of the usual one, which may be in use.
server_commands=$(commands server | sed 's/^dafs serve .*/exec & --listen 127.0.0.1:0/')
client_commands=$(commands client)
# A user without the rights of root finds the build folder closed, perhaps.
mkdir "$work/bin"
cp "$dafs" "$work/bin/dafs"
chmod 755 "$work/bin/dafs"
export PATH=$work/bin:$PATH

# quick_start DIRECTORY COMMAND... -- the commands in a new directory, as the user that COMMAND makes of this one.
quick_start() {
    local here=$1 port
    shift
    "$@" mkdir "$here"
    # The run before has left its own.
    rm -f "$work/ready"
    (cd "$here" && exec "$@" bash -euc "$server_commands") >"$work/ready" 2>"$work/log" &
    server=$!
    started+=("$server")
    is_ready() { grep -qs '^ready ' "$work/ready" || ! kill -0 "$server"; }
    eventually is_ready
    port=$(sed -n 's,^ready dafs://127.0.0.1:\([0-9]*\)/$,\1,p' "$work/ready")
    [[ $port ]] || { cat "$work/log"; fail "the server did not start"; }
    (cd "$here" && "$@" bash -euxc "${client_commands//dafs:\/\/localhost/dafs://localhost:$port}") >"$work/said" 2>&1 ||
        { cat "$work/said"; fail "a command of the quick start failed"; }
    cat "$work/said"
    grep -q 'hello, direct access' "$work/said" || fail "cat did not print the file"
    grep -q 'round trips' "$work/said" || fail "ping did not measure"
    [[ ! -e $here/demo/new && $(cat "$here/back/hello") == 'hello, direct access' ]] || fail "the copies are not right"
    kill -TERM "$server"
    wait "$server" || fail "the server ended with status $?"
}

step "as user $(id -un)"
quick_start "$work/here" env
if is_root; then
    needs_users
    step "as user daemon"
    mkdir -m 777 "$work/of-users"
    quick_start "$work/of-users/here" "${as_other[@]}"
fi
