#!/bin/bash
# The crates as others get them: those that are published describe themselves and need no other ones, their archives are
# complete, and the example of the client runs. The long run also builds each crate from its archive.
source "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/env.sh
source scripts/env.sh

example=${DAFS_TARGET:-$(dirname "$dafs")}/examples/write_and_read
[[ -x $example ]] || fail "there is no $example; build it with: cargo build --examples"
command -v python3 >/dev/null || skip "there is no python3; install it with: scripts/setup.sh test"

step "the example of the client"
mkdir "$work/tree"
serve "$work/tree" ${squash[@]+"${squash[@]}"}
[[ $("$example" "$url") == 'hello, server' ]] || fail "the example does not run"
[[ $(<"$work/tree/hello") == 'hello, server' ]] || fail "the example has written something else"
expect 1 'usage' "$example"
stop_server

step "what the manifests say"
cargo metadata --locked --offline --no-deps --format-version 1 >"$work/metadata"
python3 - "$work/metadata" >"$work/private" <<'END' || fail "see above"
import json, sys
packages = json.load(open(sys.argv[1]))["packages"]
private = {each["name"] for each in packages if each["publish"] == []}
wrong = []
for each in packages:
    if each["name"] in private:
        continue
    for field in ("description", "license", "keywords", "categories", "rust_version"):
        if not each[field]:
            wrong.append(f"{each['name']} has no {field}")
    # The others are parts of these.
    if each["name"] in ("dafs", "dafs-client", "dafs-nfs-client", "dafs-rpc") and not each["readme"]:
        wrong.append(f"{each['name']} has no readme")
    for needed in each["dependencies"]:
        if needed["kind"] is None and needed.get("path") and needed["req"] == "*":
            wrong.append(f"{each['name']} needs {needed['name']} without a version")
        if needed["kind"] is None and needed["name"] in private:
            wrong.append(f"{each['name']} is published and needs {needed['name']}, which is not")
for text in wrong:
    print(text, file=sys.stderr)
print(*sorted(private), sep="\n")
sys.exit(bool(wrong))
END
excluded=()
while read -r name; do excluded+=(--exclude "$name"); done <"$work/private"
[[ ${#excluded[@]} -gt 0 ]] || fail "no crate is private"

step "archives"
verify=(--no-verify)
[[ ! ${DAFS_TEST_LONG:-} ]] || verify=()
cargo package --offline --allow-dirty --workspace "${excluded[@]}" ${verify[@]+"${verify[@]}"} \
    --target-dir "$work/target" >"$work/said" 2>&1 || { tail -n 40 "$work/said"; fail "cargo package"; }
# The crates have no home in the web yet.
! grep -E '^warning: (manifest|.*ignored)' "$work/said" | grep -v 'no documentation, homepage or repository' ||
    fail "cargo warns"
count=$(find "$work/target/package" -maxdepth 1 -name 'dafs*.crate' | wc -l)
[[ $count -gt 20 ]] || { cat "$work/said"; fail "$count archives"; }
tar -tzf "$work"/target/package/dafs-client-*.crate | grep 'examples/write_and_read.rs' >/dev/null ||
    fail "the example is not in the archive"
