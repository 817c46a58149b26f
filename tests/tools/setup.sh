#!/usr/bin/env bash
# Installs the servers that the tests start.
set -euo pipefail
