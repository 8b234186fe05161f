#!/bin/bash
# Runs a static linux/amd64 test binary on a processor emulated by Bochs:
#
#	CGO_ENABLED=0 go test -exec /path/to/run.sh ./pkg
#
# It boots KERNEL with an initramfs of the binary and init.go, prints what the
# binary prints, and exits with its status (120, 121: no result). The variables
# GPULINE_*, GODEBUG and GOMAXPROCS reach the binary.
#
#	KERNEL    kernel image (required)
#	MODEL     Bochs' processor model, default ryzen (has MONITORX)
#	FEATURES  features added to the model, for example waitpkg
#	SMP       processors, default 2
#	APPEND    more for the kernel's command line
#	ROOT      directory with the file system that Bochs is installed in, default /
#	LIMIT     seconds after which the emulator is killed, default 600
set -u
: "${KERNEL:?run.sh: set KERNEL to a kernel image}"
MODEL=${MODEL:-ryzen} FEATURES=${FEATURES:-} SMP=${SMP:-2} APPEND=${APPEND:-} ROOT=${ROOT:-} LIMIT=${LIMIT:-600}
ROOT=${ROOT%/}
here=$(cd "$(dirname "$0")" && pwd)
bin=$(readlink -f "$1")
shift

tmp=/tmp
[ -n "$ROOT" ] || tmp=${TMPDIR:-/tmp}
host=$(mktemp -d "$ROOT$tmp/bochs.XXXXXX") # the work directory as seen here
work=${host#"$ROOT"}                       # and as Bochs sees it
trap 'rm -rf "$host"' EXIT

mkdir -p "$host"/ram/{proc,sys,dev,tmp} "$host/iso/isolinux"
(cd "$here" && CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -ldflags='-s -w' -o "$host/ram/init" init.go) || exit 120
cp "$bin" "$host/ram/test"
for arg; do printf '%s\n' "$arg"; done > "$host/ram/args"
env | grep -E '^(GPULINE_[A-Z0-9_]*|GODEBUG|GOMAXPROCS)=' > "$host/ram/env"
(cd "$host/ram" && find . | cpio -o -H newc 2> /dev/null | gzip -1) > "$host/iso/initrd.gz"
cp "$KERNEL" "$host/iso/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$host/iso/isolinux/" || exit 120
cat > "$host/iso/isolinux/isolinux.cfg" << END
DEFAULT test
PROMPT 0
LABEL test
 KERNEL /vmlinuz
 INITRD /initrd.gz
 APPEND console=ttyS0,115200 quiet panic=-1 mitigations=off idle=halt $APPEND
END
xorriso -as mkisofs -o "$host/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
	-no-emul-boot -boot-load-size 4 -boot-info-table "$host/iso" > "$host/xorriso.log" 2>&1 ||
	{ cat "$host/xorriso.log"; exit 120; }

cat > "$host/rc" << END
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
megs: 512
cpu: model=$MODEL, count=$SMP, ips=100000000, reset_on_triple_fault=0${FEATURES:+, add_features="$FEATURES"}
clock: sync=none, time0=utc
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/log
END
bochs="${ROOT:+chroot $ROOT }bochs"
debugger=
if $bochs --help 2>&1 | grep -q -- '-rc filename'; then # built with the debugger: tell it to go on
	echo c > "$host/go"
	debugger="-rc $work/go"
fi
# The term display needs a terminal: script makes one. The limit is on Bochs
# itself, so that nothing is left running.
: > "$host/serial"
TERM=xterm script -qec "timeout -s KILL $LIMIT $bochs -q -f $work/rc $debugger" /dev/null < /dev/null > "$host/screen" 2>&1

tr -d '\r' < "$host/serial" > "$host/console"
sed -n '/@@BEGIN@@/,/@@EXIT/p' "$host/console" | grep -v -e '@@BEGIN@@' -e '@@EXIT'
status=$(sed -n 's/.*@@EXIT \(-\{0,1\}[0-9]*\)@@.*/\1/p' "$host/console" | tail -1)
if [ -z "$status" ]; then
	echo "run.sh: no exit status within $LIMIT s; the end of the console, of Bochs' log and screen:"
	tail -c 800 "$host/console"
	tail -n 5 "$host/log" 2> /dev/null
	tail -c 300 "$host/screen"
	exit 121
fi
[ "$status" -ge 0 ] || status=122
exit "$status"
