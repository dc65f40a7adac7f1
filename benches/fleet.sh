#!/usr/bin/env bash
# Four replicas behind nginx, round robin, one of them half as fast, at twice what they can do
# together: what the coordinator adds to replicas that decide alone, and what a gate costs that asks
# Redis for each request.
#
#   benches/fleet.sh                      about six minutes; wants an idle machine
#   QUICK=1 benches/fleet.sh              about two minutes, to see that it works
#   DURATION=5m RATES=1,2 SEEDS='1 2 3'   longer
#
# Real servers with the simulated runner. Requests are 128 tokens in, 64 out, and are to be done
# within four times their unloaded time. nginx asks the next replica when one refuses. Writes
# benches/results/fleet.jsonl and fleet.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

DURATION="${DURATION:-${QUICK:+20s}}"
DURATION="${DURATION:-60s}"
SEEDS="${SEEDS:-1}"
LOADS="${LOADS:-1,2}"
PORT="${PORT:-18100}"
REDIS_PORT=$((PORT + 9))
RESULTS="${RESULTS:-benches/results}"
RUNS="$RESULTS/fleet.jsonl"
work=$(mktemp -d)
pids=()

need_rust
need 'command -v curl' curl
need 'command -v redis-server' redis-server
need 'test -e /usr/lib/nginx/modules/ngx_http_lua_module.so' nginx libnginx-mod-http-lua
if [ -z "${BIN:-}" ]; then
    cargo build --release --package sluice-server --package sluice-load
    BIN="${CARGO_TARGET_DIR:-target}/release"
fi

stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
}
trap 'stop; rm -rf "$work"' EXIT

# A step with eight sequences takes 13 ms, on the slow replica 26.
profile() { # profile FACTOR
    cat <<TOML
max_num_seqs = 8
[simulated.cost]
fixed_ns = $((5000000 * $1))
per_seq_ns = $((1000000 * $1))
per_context_token_ps = 0
per_prefill_token_ns = $((50000 * $1))
TOML
}
profile 1 >"$work/fast.toml"
profile 2 >"$work/slow.toml"
# 64 steps of 6 ms and the prompt: 0.4 s alone.
SLO_MS=1600
# Three and a half replicas, each 8 x 1 / (64 x 13 ms + 8 x 6.4 ms).
CAPACITY=31.7

replicas() { # replicas ARGUMENTS...
    local i file
    for i in 1 2 3 4; do
        file="$work/fast.toml"
        [ "$i" != 4 ] || file="$work/slow.toml"
        "$BIN/sluice" serve --runner simulated --config "$file" --port $((PORT + i)) \
            --slo-ttft none --slo-tpot none --slo-e2e "${SLO_MS}ms" "$@" 2>"$work/log.$i" &
        pids+=($!)
    done
    for i in 1 2 3 4; do wait_ready "http://127.0.0.1:$((PORT + i))/readyz" "${pids[$((i - 1))]}" 60; done
}

redis() {
    redis-server --port "$REDIS_PORT" --save '' --appendonly no >"$work/redis" &
    pids+=($!)
}

balancer() { # balancer [LUA]: round robin; with LUA each request asks Redis first
    local ask=""
    if [ -n "${1:-}" ]; then
        ask="access_by_lua_block { require('gate').ask() }
             log_by_lua_block { require('gate').done() }"
    fi
    cat >"$work/nginx.conf" <<CONF
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
daemon off;
master_process off;

pid $work/nginx.pid;
error_log $work/nginx.log;
env REDIS_PORT; env COST_MS; env BUDGET_MS; env REPLICAS;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $work/body; proxy_temp_path $work/proxy; fastcgi_temp_path $work/f;
    uwsgi_temp_path $work/u; scgi_temp_path $work/s;
    lua_package_path "$PWD/benches/fleet/?.lua;;";
    upstream fleet {
        $(for i in 1 2 3 4; do echo "server 127.0.0.1:$((PORT + i)) max_fails=0;"; done)
        keepalive 64;
    }
    server {
        listen 127.0.0.1:$PORT;
        location / {
            $ask
            proxy_pass http://fleet;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_next_upstream http_429 http_503 non_idempotent;
        }
    }
}
CONF
    REDIS_PORT=$REDIS_PORT COST_MS=115 BUDGET_MS=$((SLO_MS * 8 / 10)) REPLICAS=4 \
        nginx -e "$work/nginx.log" -c "$work/nginx.conf" &
    pids+=($!)
    wait_ready "http://127.0.0.1:$PORT/health" "${pids[-1]}" 20
}

measure() { # measure LABEL
    local seed
    for seed in $SEEDS; do
        "$BIN/sluice-load" open --url "http://127.0.0.1:$PORT" --label "$1" --rate "$LOADS" \
            --capacity "$CAPACITY" --duration "$DURATION" --timeout 30s --slo-e2e "${SLO_MS}ms" \
            --prompt-ids --prompt-tokens 128 --max-tokens 64 --seed "$seed" --json "$RUNS"
    done
    stop
}

mkdir -p "$RESULTS"
rm -f "$RUNS"

say "replicas alone"
replicas
balancer
measure "alone"

say "replicas with a coordinator"
redis
sleep 1
redis_pid=${pids[-1]}
pids=()
replicas --coordinator "redis://127.0.0.1:$REDIS_PORT"
balancer
pids+=("$redis_pid")
measure "coordinator"

say "no admission, and nginx asks Redis for each request"
redis
sleep 1
redis_pid=${pids[-1]}
pids=()
replicas --admission none --scheduling-policy fcfs
balancer lua
pids+=("$redis_pid")
measure "Redis for each request"

{
    cpu=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
    echo "$(nproc) cores of $cpu, $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)."
    echo "Four simulated replicas behind nginx, one at half speed; capacity $CAPACITY requests/s;" \
        "Poisson arrivals for $DURATION; SLO: end to end within $SLO_MS ms."
    echo
    "$BIN/sluice-load" table "$RUNS"
} >"$RESULTS/fleet.md"
cat "$RESULTS/fleet.md"
