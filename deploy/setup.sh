#!/usr/bin/env bash
# Installs the system packages that are missing: "build" for the build, "tests" for the test tools, "bench"
# for what Forebay is measured against.
# Uses sudo only when it is not root, and apt only when something is missing.
set -euo pipefail

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }

case "${1:-build}" in
build)
  need_command cc build-essential
  need_command c++ build-essential
  # bindgen loads libclang at build time and needs the headers that come with it.
  if ! compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null && ! ldconfig -p 2>/dev/null | grep -q 'libclang\.so'; then
    missing+=(libclang-dev)
  fi
  ;;
tests)
  need_command python3 python3
  need_command curl curl
  need_command pgrep procps
  if command -v python3 >/dev/null 2>&1 && ! python3 -c 'import ensurepip, venv' >/dev/null 2>&1; then
    missing+=(python3-venv)
  fi
  ;;
bench)
  need_command nginx nginx-light
  need_command fio fio
  need_command iperf3 iperf3
  need_command curl curl
  ;;
*)
  echo "usage: deploy/setup.sh build|tests|bench" >&2
  exit 2
  ;;
esac

if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "please install: ${missing[*]} (names as in Debian)" >&2
  exit 1
fi
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
echo "installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
# RUNLEVEL: what is installed must not start as a service of the machine.
"${sudo[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
