#!/usr/bin/env bash
# Makes the Debian packages of a build and tries them in a clean Debian, as a user who has nothing else would: installs
# them with apt, which has to find all that they need, builds a project against them and runs it.
#
#   scripts/test_package.sh core [PRESET]     the program and paceline::core; half a minute once the packages are there
#   scripts/test_package.sh train [PRESET]    the template with libtorch too; some minutes, 2 GB of packages
#
# Needs root (chroot) and a Debian mirror.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

part=${1-core} preset=${2-release}
[[ $part = core || $part = train ]] || die "usage: scripts/test_package.sh [core|train] [PRESET]"
[ "$(id -u)" -eq 0 ] || die "scripts/test_package.sh makes a Debian of its own with chroot: run it as root"
install_missing debootstrap dpkg-dev

work=$(mktemp -d)
clean=$work/root
# One file system: what is mounted below must not be gone with it.
leave() {
  for mounted in "$clean/proc" "$clean/dev/shm"; do
    ! mountpoint -q "$mounted" || umount "$mounted"
  done
  rm -rf --one-file-system "$work"
}
trap leave EXIT

quietly "Making the packages" cpack --config "$root/build/$preset/CPackConfig.cmake" -G DEB -B "$work/packages"
mirror=$(apt-get indextargets --format '$(SITE)' | sed '/security/d; q')
quietly "Making a clean Debian" debootstrap --variant=minbase bookworm "$clean" "${mirror:-http://deb.debian.org/debian}"
# The way to the mirror is this machine's.
cp /etc/resolv.conf "$clean/etc/"
cp -r /etc/apt/apt.conf.d/. "$clean/etc/apt/apt.conf.d/"
mount -t proc proc "$clean/proc"
mkdir -p "$clean/dev/shm" "$clean/packages"
mount -t tmpfs tmpfs "$clean/dev/shm"

inside() { chroot "$clean" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root "$@"; }
install_inside() { quietly "Installing $*" inside apt-get install -y --no-install-recommends "$@"; }

cp "$work"/packages/paceline_*.deb "$work"/packages/libpaceline-dev_*.deb "$clean/packages/"
[ "$part" = core ] || cp "$work"/packages/libpaceline-train-dev_*.deb "$clean/packages/"
quietly "Updating its package lists" inside apt-get update

# The program alone needs no compiler.
install_inside ./packages/"$(basename "$clean"/packages/paceline_*.deb)"
inside paceline --version
inside paceline run -n 2 -- sh -c 'echo "worker $RANK of $WORLD_SIZE"'

mapfile -t packages < <(cd "$clean" && printf './%s\n' packages/libpaceline-*.deb)
install_inside "${packages[@]}" g++ cmake make
if [ "$part" = core ]; then
  cp -r "$root/tests/project/installed_core" "$clean/project"
  program=installed_core expected="of 2 over shm: sum 3"
else
  cp -r "$clean/usr/share/paceline/template" "$clean/project"
  program=my_training expected="2 workers, mean squared error 0.0"
fi
quietly "Configuring a project there" inside cmake -S /project -B /build
quietly "Building it" inside cmake --build /build
inside paceline run -n 2 -- "/build/$program" | tee "$work/output"
grep -q "$expected" "$work/output" || die "the project did not say \"$expected\""

quietly "Removing it" inside apt-get remove -y paceline
left=$(inside find /usr -path '*paceline*' -not -path '/usr/share/doc/*')
[ -z "$left" ] || die "removing the package leaves: $left"
echo "the packages install, build a project, run it, and are gone when they are removed"
