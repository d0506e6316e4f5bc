#!/bin/bash
# Each part of setup.sh installs what it needs and no more: programs in place of Debian's note what it asks for.
# `make build` hands the commit to the compiler.
source "$(dirname "$0")/lib.sh"

command -v make >/dev/null || skip "there is no make; run: scripts/setup.sh build"
cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
    skip "this compiler came without rustfmt or clippy, which setup.sh would look for"

mkdir "$work/bin"
# No package is installed here, and each one that is asked for can be.
printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
cat >"$work/bin/apt-get" <<END
#!/bin/sh
echo "\$@" >>"$work/asked"
[ "\${*#* install }" != "\$*" ] || exit 0
echo 'debconf: delaying package configuration, since apt-utils is not installed' >&2
echo 'W: a warning of apt-get' >&2
END
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"
chmod +x "$work/bin/"*

# asked PART... -- the packages that setup.sh asks for, a line each.
asked() {
    : >"$work/asked"
    PATH=$work/bin:$PATH scripts/setup.sh "$@" >"$work/said" 2>&1 ||
        { cat "$work/said"; fail "setup.sh $*"; }
    sed -n 's/.* install --no-install-recommends //p' "$work/asked" | tr ' ' '\n' | sort
}

step "parts"
[[ $(asked format) == ca-certificates ]] || fail "formatting asks for $(asked format | xargs)"
[[ $(asked lint | xargs) == 'git python3 shellcheck' ]] || fail "lints ask for $(asked lint | xargs)"
[[ $(asked run | xargs) == 'ca-certificates gcc libc6-dev' ]] || fail "the demonstration asks for $(asked run | xargs)"
asked build | grep -x gcc >/dev/null || fail "a build asks for $(asked build | xargs)"
asked lab | grep -x iproute2 >/dev/null || fail "the stand-ins note nothing: $(asked lab | xargs)"

step "messages"
asked lint >/dev/null
has_warning() { grep 'W: a warning of apt-get' "$work/said"; }
eventually has_warning
! grep debconf "$work/said" || fail "it tells that apt-utils is not installed"

step "targets"
# setup MAKE_ARGUMENT... -- the parts that a target sets up.
setup() { env -u MAKEFLAGS -u MFLAGS -u PARTS -u SINCE make -n "$@" | sed -n 's/^scripts\/setup.sh //p'; }
[[ $(setup run) == run ]] || fail "make run sets up $(setup run)"
[[ $(setup fmt) == format ]] || fail "make fmt sets up $(setup fmt)"
[[ $(setup lint) == 'build lint' ]] || fail "make lint sets up $(setup lint)"
[[ $(setup test PARTS='tidy dependencies') == 'build lint' ]] || fail "small parts set up too much"
[[ $(setup test PARTS="tidy 'e2e/*'") == 'build test lab' ]] || fail "a part of all sets up too little"
[[ $(setup test) == 'build test lab' ]] || fail "make test sets up $(setup test)"

step "the commit"
# told TARGET -- the commit that the compiler is handed, for each of its calls.
told() { env -u DAFS_COMMIT -u MAKEFLAGS -u MFLAGS make -s SETUP=: CARGO='@echo "commit $$DAFS_COMMIT"; :' "$1"; }
commit=$(git rev-parse --short=12 HEAD 2>/dev/null) || commit=
[[ $(told build | sort -u) =~ ^"commit $commit"(-dirty)?$ ]] || fail "a build is told: $(told build)"
[[ $(told fmt) == 'commit ' ]] || fail "make fmt tells the compiler: $(told fmt)"
