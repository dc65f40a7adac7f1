#!/usr/bin/env bash
# What a request feels of a Redis in trouble: 100 short requests a second on one of two replicas
# (simulated runner) while Redis is well, stopped, slow, down, flushed, failed over with lost writes,
# cut off from half of four replicas, full, behind a wrong password, and shared with 256 fakes.
#
#   benches/coordinator.sh                about 7 minutes; wants an otherwise idle machine
#   QUICK=1 benches/coordinator.sh        about 2 minutes
#
# Prints one table (decisions: the upper bound of the histogram's bucket).
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

need_rust
need 'command -v redis-server' redis-server
cargo build --release --package sluice-server --locked >&2
cargo run --release --quiet --package sluice-tests --example coordinator --locked
