#!/usr/bin/env bash
# `make bench`: criterion (gate, planner, kernels), then the side-by-side table of overload.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo bench --package sluice-benches
benches/overload.sh
