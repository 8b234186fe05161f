# shellcheck shell=bash
# Sourced by the scripts beside it: installs what they need, on Debian 12 or 13.
#
# Sets cache (the first argument, or gpuline-bochs in the directory for temporary
# files), KERNEL, and ROOT where Bochs is not the system's own. With new=1 it
# makes sure of Bochs 2.8 or later: where the system's is older, it sets up a
# minimal Debian 13 in the cache (half a GB, needs root) and takes Bochs from there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-${TMPDIR:-/tmp}/gpuline-bochs}"
cache=$(cd "${1:-${TMPDIR:-/tmp}/gpuline-bochs}" && pwd)

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo

# quietly COMMAND...: shows its output only if it fails.
quietly() {
	"$@" > "$cache/log" 2>&1 || { cat "$cache/log" >&2; exit 1; }
}

# install PACKAGE...: installs those that are missing.
install() {
	dpkg -s "$@" > /dev/null 2>&1 && return
	quietly $sudo apt-get update
	quietly $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

bochs="bochs bochsbios vgabios bochs-term"
# shellcheck disable=SC2086
install $bochs isolinux syslinux-common xorriso cpio bsdutils
dpkg --compare-versions "$(dpkg-query -Wf '${Version}' bochs)" ge 2.8 && old= || old=1

if [ "${new:-}" ] && [ "$old" ]; then
	export ROOT="$cache/trixie"
	if [ ! -e "$ROOT/ready" ]; then
		install debootstrap
		$sudo rm -rf "$ROOT"
		quietly $sudo debootstrap --variant=minbase trixie "$ROOT" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
		# shellcheck disable=SC2086
		quietly $sudo env DEBIAN_FRONTEND=noninteractive chroot "$ROOT" apt-get install -y --no-install-recommends $bochs
		$sudo chroot "$ROOT" touch /ready
	fi
	old=
fi

# The kernel is taken out of its package, not installed.
if ! ls "$cache"/kernel/boot/vmlinuz-* > /dev/null 2>&1; then
	[ -n "$(apt-cache depends linux-image-cloud-amd64 2> /dev/null)" ] || quietly $sudo apt-get update
	package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
	cd "$cache"
	quietly apt-get download "$package"
	dpkg -x "$package"_*.deb kernel
	rm "$package"_*.deb
fi
KERNEL=$(echo "$cache"/kernel/boot/vmlinuz-*)
export KERNEL CGO_ENABLED=0 GOOS=linux GOARCH=amd64
cd "$here/../.."
