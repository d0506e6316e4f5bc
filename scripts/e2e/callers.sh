#!/bin/bash
# A user of the server's host acts as that user, whatever it claims: from root's port to another
# address, from a port below 1024, and by any address of this host, over TCP and iWARP. A host
# cannot pose as the client of another one, and a host that no export admits gets no state here.
source "$(dirname "$0")/lib.sh"

needs_users
command -v python3 >/dev/null || skip "there is no python3"
# Addresses and the range of unprivileged ports belong to a network namespace: this gets one of its
# own.
if [[ ! ${DAFS_E2E_NETWORK:-} ]]; then
    unshare -n true 2>/dev/null || skip "this user may not make a network"
    rm -rf "$work"
    DAFS_E2E_NETWORK=1 exec unshare -n "$0"
fi
ip link set lo up
ip link add own type dummy 2>/dev/null || ip link add own type veth peer name other
ip addr add 192.0.2.1/24 dev own
ip addr add 2001:db8::1/64 dev own nodad
ip addr add fe80::1/64 dev own nodad
ip link set own up
other_network
ip link add toward type veth peer name own netns "$elsewhere"
ip addr add 198.51.100.1/24 dev toward
ip link set toward up
there=(nsenter -t "$elsewhere" -n)
for last in 2 3 4; do "${there[@]}" ip addr add 198.51.100.$last/24 dev own; done
"${there[@]}" ip link set own up
sysctl -qw net.ipv4.ip_unprivileged_port_start=0

user=1234
cp "$dafs" "$work/dafs"
chmod 755 "$work/dafs"
dafs=$work/dafs
mkdir -m 755 "$work/default" "$work/open" "$work/far"
echo secret | "$dafs" passwd "$work/users" anna --uid 1 --gid 1
cat >"$work/dafs.toml" <<END
listen = ["0.0.0.0:20490"]
password_file = "users"
[nfs]
listen = ["[::]:2049"]
rdma_listen = ["0.0.0.0:20049"]
[[export]]
name = "default"
path = "default"
squash = "none"
[[export]]
name = "open"
path = "open"
squash = "none"
networks = ["127.0.0.0/8", "192.0.2.0/24", "::1", "2001:db8::/64", "fe80::/10"]
unprivileged_ports = true
[[export]]
name = "far"
path = "far"
networks = ["198.51.100.2/31"]
END
serve --config "$work/dafs.toml"

step "hosts"
"${there[@]}" python3 scripts/e2e/callers.py hosts || fail "a host was taken for another"

step "users of this host over TCP"
python3 scripts/e2e/callers.py users "$user" || fail "a user of this host was taken for another"

step "users of this host over iWARP"
# In a name space of its own a user is root to itself, and its programs claim to be.
as_user=(setpriv --reuid "$user" --regid "$user" --clear-groups)
"${as_user[@]}" unshare -r true 2>/dev/null || as_user+=(env)
[[ ${as_user[-1]} == env ]] || as_user+=(unshare -r)
for address in 127.0.0.1 192.0.2.1; do
    expect 1 'ACCES' "${as_user[@]}" "$dafs" mkdir "nfs+rdma://$address:20049/open/by-user?transport=iwarp"
    expect 0 '' "$dafs" mkdir "nfs+rdma://$address:20049/open/by-root-$address?transport=iwarp"
    expect 1 'ACCES' "${as_user[@]}" "$dafs" --transport iwarp mkdir "dafs://$address:20490/open/by-user"
    expect 0 '' "$dafs" --transport iwarp mkdir "dafs://$address:20490/open/dafs-by-root-$address"
done
stop_server
