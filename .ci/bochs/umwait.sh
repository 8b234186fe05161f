#!/bin/bash
# umwait.sh [CACHE]: runs the tests of internal/asm on an emulated Intel processor
# with WAITPKG. Takes about a minute; one more, and root, the first time on a
# system whose Bochs is too old (Debian 12).
new=1
# shellcheck source=.ci/bochs/setup.sh
. "$(dirname "$0")/setup.sh"
# The model's CPUID leaf 15H states the rate of the real processor's TSC: the
# kernel has to be told that of Bochs' (the library measures).
export MODEL=corei3_cnl FEATURES=waitpkg APPEND=tsc_early_khz=100000 GPULINE_REQUIRE_PARK=umwait
exec go test -count=1 -v -timeout 5m -exec "$here/run.sh" ./internal/asm
