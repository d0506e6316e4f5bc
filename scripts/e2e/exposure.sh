#!/bin/bash
# No server is open to other hosts by accident.
source "$(dirname "$0")/lib.sh"

sentence='anyone who reaches this port can read and write these files'
mkdir "$work/export"
config=$work/dafs.toml
configure() {
    cat - <(printf '[[export]]\nname = "data"\npath = "export"\n') >"$config"
}
refused() {
    expect 2 "$sentence" timeout 20 "$dafs" serve --state-directory "$work/state" "$@"
}

step "every address is refused without a password file or the sentence"
for address in 0.0.0.0:0 '[::]:0' 192.0.2.1:0; do
    refused "$work/export" --listen "$address"
done
configure <<<'listen = ["0.0.0.0:0"]'
refused --config "$config"

step "only the exact sentence will do"
configure <<END
listen = ["0.0.0.0:0"]
danger_allow_unauthenticated_remote_clients = "yes"
END
expect 2 "$sentence" "$dafs" serve --config "$config" --state-directory "$work/state"
configure <<END
listen = ["0.0.0.0:0"]
danger_allow_unauthenticated_remote_clients = "$sentence"
END
serve --config "$config"
"$dafs" ls "dafs://127.0.0.1:${url##*:}" >/dev/null || fail "the open server does not answer"
stop_server

step "with passwords it may listen, unless it trusts other hosts without proof"
echo secret | "$dafs" passwd "$work/users" anna --uid 1 --gid 1
configure <<END
listen = ["0.0.0.0:0"]
password_file = "users"
END
serve --config "$config"
stop_server
configure <<END
listen = ["0.0.0.0:0"]
password_file = "users"
trusted = ["10.0.0.0/8"]
END
refused --config "$config"
