#!/bin/bash
# mwaitx.sh [CACHE]: runs the tests of internal/asm on an emulated AMD processor
# with MONITORX and MWAITX. Takes about a minute, twice that on a busy machine.
#
# Bochs 2.7 (Debian 12) is good enough to run the instructions but not to show
# that a store ends the wait; new=1 in the environment asks for a later one.
# shellcheck source=.ci/bochs/setup.sh
. "$(dirname "$0")/setup.sh"
export MODEL=ryzen GPULINE_REQUIRE_PARK=mwaitx
if [ "$old" ]; then
	echo "mwaitx.sh: Bochs before 2.8: not asking that a store ends the wait"
	# The kernel's own use of the instruction hangs it; programs still see it.
	export APPEND=clearcpuid=mwaitx GPULINE_PARK_LOOSELY=1
fi
exec go test -count=1 -v -timeout 5m -exec "$here/run.sh" ./internal/asm
