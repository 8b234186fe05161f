#!/usr/bin/env bash
# gpucheck on a machine with an NVIDIA GPU, in two halves:
#   run.sh build [DIR]   where Go is: builds the binaries into DIR (default gpucheck.out)
#   run.sh run   [DIR]   where the GPU is: runs them, no Go and no network needed, and writes DIR/gpucheck.json (under 6 minutes)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(realpath -m "${2:-gpucheck.out}")
case "${1:-}" in
build)
  mkdir -p "$dir"
  cd "$here"
  CGO_ENABLED=0 go build -o "$dir/gpucheck" .
  CGO_ENABLED=0 go test -c -o "$dir/gpucheck.test" .
  cp "$here/run.sh" "$dir/run.sh"
  ;;
run)
  cd "$dir"
  timeout -k 5 355 ./gpucheck -test ./gpucheck.test -out gpucheck.json -budget 330s
  ;;
*)
  sed -n '2,5p' "$0" >&2
  exit 2
  ;;
esac
