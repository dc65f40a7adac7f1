#!/usr/bin/env bash
# What a request feels of a Redis in trouble: 100 short requests a second on one of two replicas
# (simulated runner) while Redis is well, stopped, slow, down, flushed, failed over with lost writes,
# cut off from half of four replicas, full, behind a wrong password, and shared with 256 fakes.
#
#   benches/coordinator.sh                some 6 minutes once built (an estimate); wants an otherwise idle machine
#   QUICK=1 benches/coordinator.sh        a minute
#
# Prints Markdown with one table (decisions: the upper bound of the histogram's bucket).
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

need_rust
need 'command -v redis-server && command -v redis-cli' redis-server
cargo build --release --package sluice-server --locked >&2
cargo build --release --quiet --package sluice-tests --example coordinator --locked >&2

cpu=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
echo "$(nproc) cores of $cpu, $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)."
echo
"${CARGO_TARGET_DIR:-target}/release/examples/coordinator"
