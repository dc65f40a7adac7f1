# Shared by scripts that measure one server at a time (source it after .ci/lib.sh): starting and
# ending it, the load generator, and what the tables are headed with. Needs $PORT and $THREADS, and
# for the capacity $MEAN_PROMPT, $MEAN_OUTPUT, $PER_SLOT and $TPOT_MS (empty: measured).
# shellcheck shell=bash

URL="http://127.0.0.1:$PORT"
WORK=$(mktemp -d)
server=""
loads=() # load generators in the background

stop_loads() {
    local load
    for load in "${loads[@]}"; do
        kill "$load" 2>/dev/null || true
        wait "$load" 2>/dev/null || true
    done
    loads=()
}

stop() {
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=""
}
trap 'stop_loads; stop; rm -rf "$WORK"' EXIT

serve() { # serve ARGUMENTS...: runs a server until `stop`
    say "sluice serve $*"
    "$bin/sluice" serve "$model" --port "$PORT" --threads "$THREADS" "$@" >"$WORK/log" 2>&1 &
    server=$!
    (wait_ready "$URL/health" "$server" 120) || { tail -n 20 "$WORK/log" >&2; exit 1; }
}

load() { # load FILE ARGUMENTS...: runs the load generator, its figures into FILE
    local file=$1
    shift
    "$bin/sluice-load" "$@" --url "$URL" --json "$file" >&2
}

load_beside() { # the same in the background
    local file=$1
    shift
    "$bin/sluice-load" "$@" --url "$URL" --json "$file" >>"$WORK/loads" 2>&1 &
    loads+=($!)
}

wait_loads() { # until all in the background have ended
    local load
    for load in "${loads[@]}"; do
        wait "$load" || { tail -n 20 "$WORK/loads" >&2; fail "the load generator failed"; }
    done
    loads=()
}

figure() { # figure FILE FIELD...: of the latest run in FILE
    python3 - "$@" <<'PY'
import json, sys

value = json.loads(open(sys.argv[1]).readlines()[-1])
for field in sys.argv[2:]:
    value = value[field]
print(value)
PY
}

scrape() { curl -fsS "$URL/metrics" >"$1"; }

# Sets $capacity to what 32 equal chats at a time reach, and $TPOT_MS to four times the gap that one
# alone has.
measure_capacity() {
    local lengths=(--prompt-ids --prompt-tokens "$MEAN_PROMPT" --max-tokens "$MEAN_OUTPUT")
    serve --slo-ttft none --slo-tpot none
    load "$WORK/runs" closed -c 1 -n 12 "${lengths[@]}" --timeout 10m
    [ -n "$TPOT_MS" ] || TPOT_MS=$(python3 -c "print(round(4 * $(figure "$WORK/runs" tpot_ms p50)))")
    load "$WORK/runs" closed -c 32 -n "$PER_SLOT" "${lengths[@]}" --timeout 10m
    capacity=$(figure "$WORK/runs" requests_per_s)
    stop
}

machine() { # what was measured, on what
    local cpu changed=""
    cpu=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
    git diff --quiet HEAD -- || changed=" and changes"
    echo "$(nproc) cores of $cpu, $THREADS threads, the load generator on the same cores;" \
        "$(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)$changed."
}

build() { # sets $model and $bin
    need_rust
    need 'command -v python3' python3
    need 'command -v curl' curl
    model=$(models/fetch-demo.sh | tail -n 1)
    cargo build --release --package sluice-server --package sluice-load
    bin="${CARGO_TARGET_DIR:-target}/release"
}
