#!/bin/bash
# The Python package: a wheel is built and installed as by a user, and its tests run against a
# server of their own.
source "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/env.sh
source scripts/env.sh

python=$(command -v python3) || skip "there is no python3; install it with: scripts/setup.sh test"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    skip "the Python package needs Python 3.11 or newer: $("$python" --version)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    skip "Python cannot make environments; install python3-venv with: scripts/setup.sh test"

step "an environment with what the tests need"
target=${CARGO_TARGET_DIR:-$PWD/target}
# Kept in cargo's target directory: fetching these takes longer than the tests.
venv=$target/python-venv
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
wanted=(maturin pytest fsspec numpy pandas pyarrow tqdm zarr mypy)
"$venv/bin/pip" install --quiet --disable-pip-version-check "${wanted[@]}" >"$work/pip" 2>&1 || {
    tail -n 5 "$work/pip"
    skip "pip could not install ${wanted[*]}"
}

step "a wheel"
export CARGO_TARGET_DIR=$target
"$venv/bin/maturin" build --quiet --locked --manifest-path crates/dafs-python/Cargo.toml \
    --out "$work/wheels" || fail "no wheel"
[[ $(echo "$work"/wheels/*) == */dafs-*-cp311-abi3-*.whl ]] || fail "wheels: $(ls "$work/wheels")"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
    "$work"/wheels/*.whl

step "its tests"
DAFS=$(realpath "$dafs") "$venv/bin/pytest" -q -p no:cacheprovider \
    --rootdir crates/dafs-python -c crates/dafs-python/pyproject.toml crates/dafs-python/tests ||
    fail "the tests of the Python package"

step "many small reads through fsspec"
# A loaded machine and a build without optimisation take longer, so the times are printed, and judged by people.
mkdir "$work/small"
serve "$work/small" ${squash[@]+"${squash[@]}"}
timeout 300 "$venv/bin/python" crates/dafs-python/tests/measure_many.py "$url/" "$work/small" || fail "contents differ"
stop_server

# The wheels of torch from elsewhere are gigabytes, so that of Debian is used.
debian=/usr/bin/python3
"$debian" -c 'import numpy, pytest, torch' 2>"$work/said" || {
    tail -n 1 "$work/said"
    skip "all but the data loader of torch has passed; for that, install torch with: scripts/setup.sh test"
}
step "the data loader of torch"
"$venv/bin/pip" install --quiet --disable-pip-version-check --target "$work/site" fsspec \
    "$work"/wheels/*.whl
DAFS=$(realpath "$dafs") PYTHONPATH=$work/site "$debian" -m pytest -q -p no:cacheprovider \
    --rootdir crates/dafs-python -c crates/dafs-python/pyproject.toml \
    crates/dafs-python/tests/test_dataset.py >"$work/said" 2>&1 || {
    cat "$work/said"
    fail "the tests with torch"
}
tail -n 1 "$work/said"
grep SKIPPED "$work/said" || true
! grep SKIPPED "$work/said" | grep -v 'there is no CUDA device' >/dev/null || fail "tests with torch were skipped"
