#!/usr/bin/env bash
# Installs the servers that the tests start, below $FOREBAY_TEST_TOOLS. Does nothing that is done.
#   setup.sh                 what every test run needs: an S3 server (moto)
#   setup.sh rgw azurite     besides, the servers of the long form (FOREBAY_LONG=1)
set -euo pipefail

tools=${FOREBAY_TEST_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/forebay/test-tools}
moto_version=5.2.5
azurite_version=3.35.0
mkdir -p "$tools"

setup_moto() {
  local stamp="$tools/moto/.installed-$moto_version"
  [ -e "$stamp" ] && return
  echo "installing moto $moto_version (about half a minute)"
  rm -rf "$tools/moto"
  python3 -m venv "$tools/moto"
  "$tools/moto/bin/pip" install -q --disable-pip-version-check "moto[server,s3]==$moto_version"
  touch "$stamp"
}

setup_azurite() {
  local stamp="$tools/azurite/.installed-$azurite_version"
  [ -e "$stamp" ] && return
  command -v npm >/dev/null || { echo "azurite needs Node 20 and npm" >&2; exit 1; }
  echo "installing azurite $azurite_version"
  rm -rf "$tools/azurite"
  mkdir -p "$tools/azurite"
  npm install --silent --no-audit --no-fund --prefix "$tools/azurite" "azurite@$azurite_version"
  touch "$stamp"
}

setup_rgw() {
  if ! command -v radosgw >/dev/null || ! command -v ceph-osd >/dev/null || ! command -v ceph-mon >/dev/null; then
    command -v apt-get >/dev/null || { echo "please install ceph-mon, ceph-osd and radosgw (names as in Debian)" >&2; exit 1; }
    echo "installing Ceph's object gateway"
    local sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ceph-mon ceph-osd radosgw >/dev/null
  fi
}

setup_moto
for tool in "$@"; do
  case "$tool" in
  moto) ;;
  rgw) setup_rgw ;;
  azurite) setup_azurite ;;
  *)
    echo "usage: setup.sh [rgw] [azurite]" >&2
    exit 2
    ;;
  esac
done
