#!/usr/bin/env bash
# Runs fuzz targets from their corpora, one after another, each for so many seconds. Ends at the first that finds
# something; what it found is then in build/fuzz/found, and `build/fuzz/bin/NAME_fuzz FILE` does it again.
#
#   scripts/fuzz.sh SECONDS [NAME...]
#
# New inputs are kept in build/fuzz/corpus/NAME. To take into fuzz/corpus/NAME what reaches more than is there:
#   build/fuzz/bin/NAME_fuzz -merge=1 fuzz/corpus/NAME build/fuzz/corpus/NAME
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[[ ${1-} =~ ^[1-9][0-9]*$ ]] || die "usage: scripts/fuzz.sh SECONDS [NAME...]"
seconds=$1
shift
[ $# -gt 0 ] || set -- $(basename -a "$root"/fuzz/corpus/*)

install_missing clang libclang-rt-dev
build fuzz
mkdir -p "$root/build/fuzz/found"
for name in "$@"; do
  kept=$root/build/fuzz/corpus/$name
  mkdir -p "$kept"
  # What programs print is of no interest here (-close_fd_mask).
  quietly "Fuzzing $name for $seconds s" "$root/build/fuzz/bin/${name}_fuzz" -max_total_time="$seconds" \
    -rss_limit_mb=512 -timeout=1 -max_len=4096 -close_fd_mask=1 -artifact_prefix="$root/build/fuzz/found/$name-" \
    "$kept" "$root/fuzz/corpus/$name"
done
