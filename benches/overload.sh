#!/usr/bin/env bash
# Sluice beside its own FIFO baseline and llama.cpp, one at a time, on the same two threads:
# throughput at concurrency 1, 8 and 32, then Poisson load at 0.5, 1, 2 and 4 times Sluice's
# capacity. Every request is 128 tokens in, 64 out; clients give up after 30 s; the SLO is an
# end-to-end time of four times each server's own unloaded latency.
#
#   benches/overload.sh                   about 25 minutes; wants an otherwise idle machine
#   QUICK=1 benches/overload.sh           a few minutes, to see that it works: figures mean little
#   SERVERS='sluice fifo' THREADS=4 ...   leave servers out, or take other settings
#
# Writes benches/results/overload.jsonl (every figure), overload.md (the tables), goodput.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

SERVERS="${SERVERS:-sluice fifo llama.cpp}"
THREADS="${THREADS:-2}"
PORT="${PORT:-18080}"
DURATION="${DURATION:-${QUICK:+15s}}"
DURATION="${DURATION:-90s}"
PER_SLOT="${PER_SLOT:-${QUICK:+1}}"
PER_SLOT="${PER_SLOT:-4}"
LOADS="${LOADS:-0.5,1,2,4}"
capacity="${CAPACITY:-}"
SLO_MULTIPLE=4
PEER_PACKAGES=(xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6)

URL="http://127.0.0.1:$PORT"
RESULTS="${RESULTS:-benches/results}"
RUNS="$RESULTS/overload.jsonl"
LOG=$(mktemp)
server=""

start() { # start COMMAND...: runs a server until `stop`
    say "$*"
    "$@" >"$LOG" 2>&1 &
    server=$!
    (wait_ready "$URL/health" "$server" 120) || { tail -n 20 "$LOG" >&2; exit 1; }
}

stop() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=""
    fi
}
trap 'stop; rm -f "$LOG"' EXIT

measure() { # measure LABEL closed|open ARGUMENTS...
    local label=$1 mode=$2
    shift 2
    "$bin/sluice-load" "$mode" --url "$URL" --label "$label" --prompt-tokens 128 --max-tokens 64 \
        --json "$RUNS" "$@"
}

throughput() { # throughput LABEL; other seeds give other prompts, so that no cache can help
    measure "$1" closed --concurrency 1 --per-slot $((PER_SLOT * 3)) --timeout 10m --seed 2
    measure "$1" closed --concurrency 8,32 --per-slot "$PER_SLOT" --timeout 10m --seed 3
}

overload() { # overload LABEL SLO_MS
    [ -n "$capacity" ] || fail "give CAPACITY=requests-per-second, or measure sluice first"
    measure "$1" open --rate "$LOADS" --capacity "$capacity" --duration "$DURATION" \
        --timeout 30s --slo-e2e "${2}ms"
}

# figure LABEL CONCURRENCY FIELD...: one figure of a closed loop among the results
figure() {
    python3 - "$RUNS" "$@" <<'PY'
import json, sys

path, label, concurrency, *fields = sys.argv[1:]
for line in open(path):
    run = json.loads(line)
    if (run["label"], run.get("concurrency")) == (label, int(concurrency)):
        value = run
        for field in fields:
            value = value[field]
print(value)
PY
}

slo_ms() { python3 -c "print(round($SLO_MULTIPLE * $(figure "$1" 1 e2e_ms p50)))"; }

sluice() { start "$bin/sluice" serve "$model" --port "$PORT" --threads "$THREADS" "$@"; }

run_sluice() {
    # Without a promise to keep nothing is refused: this is the engine's throughput.
    sluice --slo-ttft none --slo-tpot none
    throughput sluice
    stop
    capacity=$(figure sluice 32 requests_per_s)
    local slo
    slo=$(slo_ms sluice)
    sluice --slo-ttft none --slo-tpot none --slo-e2e "${slo}ms"
    overload sluice "$slo"
    stop
}

run_fifo() {
    sluice --admission none --scheduling-policy fcfs
    throughput "sluice, FIFO"
    overload "sluice, FIFO" "$(slo_ms "sluice, FIFO")"
    stop
}

run_llama() {
    local python quantised="${DEMO_MODEL/Q4_1/Q4_0}"
    python=$(venv peers "${PEER_PACKAGES[@]}")/bin/python
    [ -f "$quantised" ] || {
        "$python" benches/peers/requantise.py "$model" "$quantised.part" Q4_0
        mv "$quantised.part" "$quantised"
    }
    start "$python" benches/peers/llamacpp.py "$quantised" "$PORT" --slots 32 --threads "$THREADS"
    throughput llama.cpp
    overload llama.cpp "$(slo_ms llama.cpp)"
    stop
}

need_rust
need_python
need 'command -v curl' curl
model=$(models/fetch-demo.sh | tail -n 1)
cargo build --release --package sluice-server --package sluice-load
bin="${CARGO_TARGET_DIR:-target}/release"
mkdir -p "$RESULTS"
rm -f "$RUNS"

# Sluice first: every server is offered the rates of its capacity.
for name in $SERVERS; do
    case "$name" in
        sluice) run_sluice ;;
        fifo) run_fifo ;;
        llama.cpp) run_llama ;;
        *) fail "unknown server '$name': sluice, fifo or llama.cpp" ;;
    esac
done

{
    cpu=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
    echo "$(nproc) cores of $cpu, $THREADS threads each, $(date -u +%Y-%m-%d)," \
        "commit $(git rev-parse --short HEAD)."
    echo "128 tokens in, 64 out; Poisson arrivals for $DURATION; clients give up after 30 s;" \
        "SLO: end to end within $SLO_MULTIPLE times the server's own unloaded latency."
    echo
    "$bin/sluice-load" table "$RUNS"
} >"$RESULTS/overload.md"
"$bin/sluice-load" plot "$RUNS" --output "$RESULTS/goodput.svg" >&2
cat "$RESULTS/overload.md"
