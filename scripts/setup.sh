# Sourced by run, test and .ci/run: installs what is missing and builds. Quiet when there is nothing to do.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_packages=(
  g++ cmake ninja-build pkg-config zlib1g-dev libtorch-dev libopenblas0-pthread libfmt-dev
  nlohmann-json3-dev libcli11-dev libhwy-dev libxxhash-dev libssl-dev libgtest-dev dataset-fashion-mnist
  bible-kjv bible-kjv-text python3 ccache
)

# What tests need beside that: hosts that are network namespaces.
test_packages=(iproute2 iptables util-linux)

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# quietly WHAT COMMAND...: runs it without its output; says how long it took, or how the output ended where it failed.
quietly() {
  local what=$1 log status=0 start=$SECONDS
  shift
  log=$(mktemp)
  printf '%s ... ' "$what"
  "$@" </dev/null >"$log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    printf 'done (%d s)\n' $((SECONDS - start))
    rm -f "$log"
    return
  fi
  printf 'failed\n'
  tail -n 40 "$log" >&2
  printf '%s failed: %s (exit status %d; all of its output is in %s)\n' "$what" "$*" "$status" "$log" >&2
  exit "$status"
}

# Prints those of the named packages that are not installed.
missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || printf '%s ' "$package"
  done
}

# install_missing PACKAGE...
install_missing() {
  local missing as_root=()
  command -v dpkg-query >/dev/null ||
    die "this script knows Debian 12 and Ubuntu only; elsewhere, install these by hand and build with CMake: $*"
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      die "packages are missing, and there is no sudo to install them. As root, run:
  apt-get update && apt-get install --no-install-recommends ${missing% }"
    fi
    as_root=(sudo)
    sudo -v || die "packages are missing, and sudo does not let you install them. As root, run:
  apt-get update && apt-get install --no-install-recommends ${missing% }"
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  quietly "Updating the package lists" "${as_root[@]}" apt-get update
  # shellcheck disable=SC2086  # one word for each package
  quietly "Installing ${missing% }" "${as_root[@]}" apt-get install -y --no-install-recommends $missing
}

# build PRESET [TARGET...]: configures and builds build/PRESET, or just these targets of it.
build() {
  local folder=$root/build/$1
  quietly "Configuring build/$1" cmake -S "$root" --preset "$1"
  shift
  [ $# -eq 0 ] || set -- --target "$@"
  set -- cmake --build "$folder" -j "${PACELINE_JOBS:-2}" "$@"
  if [ -t 1 ]; then
    "$@" || die "the build failed: $*"
  else
    quietly "Building ${folder#"$root"/} (some minutes the first time)" "$@"
  fi
}

# run_tests PRESET [WRAPPER...]: runs all tests of build/PRESET, two programs at a time, says how long they took, prints
# "N passed, N failed, N skipped", and fails unless all passed.
run_tests() {
  local preset=$1 folder=$root/build/$1 status=0 passed failed skipped broken=0 log start=$SECONDS
  shift
  log=$folder/Testing/Temporary
  rm -f "$log"/LastTest*.log
  "$@" ctest --test-dir "$folder" -j "${PACELINE_JOBS:-2}" --output-on-failure --no-tests=error || status=$?
  printf 'Testing build/%s took %d s\n' "$preset" $((SECONDS - start))
  passed=$(grep -acE '^\[       OK \] ' "$log/LastTest.log") || true
  failed=$(grep -acE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log/LastTest.log") || true
  skipped=$(grep -acE '^\[  SKIPPED \] .* \([0-9]+ ms\)$' "$log/LastTest.log") || true
  [ ! -f "$log/LastTestsFailed.log" ] || broken=$(wc -l <"$log/LastTestsFailed.log")
  # A program that crashed or ran out of time names no failed case.
  [ $((failed + skipped)) -ge "$broken" ] || failed=$broken
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$status" -eq 0 ] && [ "$failed" -eq 0 ] && [ "$skipped" -eq 0 ] && [ "$passed" -gt 0 ]
}
