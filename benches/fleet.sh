#!/usr/bin/env bash
# Four replicas behind nginx, round robin, one of them half as fast.
#
# Overload: what the coordinator adds to replicas that decide alone, and what a gate is worth that
# asks Redis for each request. Caps: how much a tenant uses of its cap for all replicas while it
# asks one of them, then another one, then all, with leases, with a quarter of the cap on each
# replica, and with counters that replicas share only once a second.
#
#   benches/fleet.sh                      some 12 minutes (an estimate); wants an idle machine
#   QUICK=1 benches/fleet.sh              about three minutes, to see that it works
#   DURATION=5m LOADS=1,2 SEEDS='1 2 3'   longer; PARTS=overload or PARTS=caps leaves one out,
#                                         SERVERS='local coordinator' the bench's own gate
#
# Real servers with the simulated runner. Requests are 128 tokens in, 64 out, and are to be done
# within four times their time on an idle fast replica. nginx asks the next replica when one
# refuses. Capacity and cost of a request are measured first. Writes benches/results/fleet.md, and
# every figure to fleet.jsonl and fleet-caps.jsonl.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

DURATION="${DURATION:-${QUICK:+20s}}"
DURATION="${DURATION:-60s}"
LOADS="${LOADS:-${QUICK:+2}}"
LOADS="${LOADS:-1,2}"
# Of the caps, in seconds.
PHASE="${PHASE:-${QUICK:+6}}"
PHASE="${PHASE:-20}"
PER_SLOT="${PER_SLOT:-${QUICK:+3}}"
PER_SLOT="${PER_SLOT:-8}"
SEEDS="${SEEDS:-1}"
SERVERS="${SERVERS:-local coordinator ask}"
PARTS="${PARTS:-overload caps}"
PORT="${PORT:-18100}"
# Eight of the fleet's 32 slots, so that one replica alone could serve it, and four divide it.
CAP="${CAP:-8}"
SHARED_EVERY_S="${SHARED_EVERY_S:-1}"
RESULTS="${RESULTS:-benches/results}"
RUNS="$RESULTS/fleet.jsonl"
CAP_RUNS="$RESULTS/fleet-caps.jsonl"
REDIS_PORT=$((PORT + 9))
work=$(mktemp -d)
pids=()

need_rust
need 'command -v python3' python3
need 'command -v curl' curl
need 'command -v redis-server' redis-server
need 'test -e /usr/lib/nginx/modules/ngx_http_lua_module.so' nginx libnginx-mod-http-lua
if [ -z "${BIN:-}" ]; then
    cargo build --release --package sluice-server --package sluice-load --locked >&2
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

replicas() { # replicas [CAP] -- ARGUMENTS...: with a cap there is a tenant that has it
    local i max=""
    [ "$1" = -- ] || { max="max_requests = $1"; shift; }
    shift
    for i in 1 2 3 4; do
        {
            profile $((i == 4 ? 2 : 1))
            printf '[tenant.capped]\napi_keys = ["capped"]\n%s\n' "$max"
        } >"$work/replica-$i.toml"
        "$BIN/sluice" serve --runner simulated --config "$work/replica-$i.toml" \
            --port $((PORT + i)) --log-format json --slo-ttft none --slo-tpot none "$@" \
            2>"$work/log.$i" &
        pids+=($!)
    done
    for i in 1 2 3 4; do
        wait_ready "http://127.0.0.1:$((PORT + i))/readyz" "${pids[-5 + i]}" 60
    done
}

redis() {
    redis-server --port "$REDIS_PORT" --bind 127.0.0.1 --save '' --appendonly no >"$work/redis" &
    pids+=($!)
    until redis-cli -p "$REDIS_PORT" ping >/dev/null 2>&1; do sleep 0.1; done
}

# Until each replica sees all four, and holds UNITS of the tenant's cap.
together() { # together [UNITS]
    local i line deadline=$((SECONDS + 30))
    for i in 1 2 3 4; do
        for line in 'peers{.*state="ready".*} 4' "lease_units.* ${1:-0}"; do
            until curl -fsS "http://127.0.0.1:$((PORT + i))/metrics" |
                grep "^inference_coordinator_$line" >/dev/null; do
                [ "$SECONDS" -lt "$deadline" ] || fail "replica $i never had $line"
                sleep 0.2
            done
        done
    done
}

# Each replica behind a server of its own that counts, at 10 ports above the replica's.
counters() {
    local i
    for i in 1 2 3 4; do
        cat <<CONF
    server {
        listen 127.0.0.1:$((PORT + 10 + i));
        location /v1/completions {
            access_by_lua_block { require('gate').count($i) }
            log_by_lua_block { require('gate').counted($i) }
            proxy_pass http://127.0.0.1:$((PORT + i));
        }
        location / { proxy_pass http://127.0.0.1:$((PORT + i)); }
    }
CONF
    done
}

balancer() { # balancer [ask|count]: round robin; each request asks Redis first, or is counted
    local i ask="" above=0
    [ "${1:-}" != count ] || above=10
    [ "${1:-}" != ask ] || ask="access_by_lua_block { require('gate').ask() }
            log_by_lua_block { require('gate').asked() }"
    cat >"$work/nginx.conf" <<CONF
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
daemon off;
master_process off;
pid $work/nginx.pid;
error_log $work/nginx.log;
env REDIS_PORT; env COST_MS; env BUDGET_MS; env REPLICAS; env CAP; env SHARED_EVERY_S;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $work/body; proxy_temp_path $work/proxy; fastcgi_temp_path $work/f;
    uwsgi_temp_path $work/u; scgi_temp_path $work/s;
    lua_package_path "$PWD/benches/fleet/?.lua;;";
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_buffering off;
    upstream fleet {
        $(for i in 1 2 3 4; do echo "server 127.0.0.1:$((PORT + above + i)) max_fails=0;"; done)
        keepalive 64;
    }
    server {
        listen 127.0.0.1:$PORT;
        location /v1/completions {
            $ask
            proxy_pass http://fleet;
            proxy_next_upstream http_429 http_503 non_idempotent;
        }
        location / { proxy_pass http://fleet; }
    }
    $([ "$above" = 0 ] || counters)
}
CONF
    REDIS_PORT=$REDIS_PORT COST_MS=$COST_MS BUDGET_MS=$((SLO_MS * 8 / 10)) REPLICAS=4 \
        CAP=$CAP SHARED_EVERY_S=$SHARED_EVERY_S nginx -e "$work/nginx.log" -c "$work/nginx.conf" &
    pids+=($!)
    wait_ready "http://127.0.0.1:$PORT/health" "${pids[-1]}" 20
}

load() { # load MODE PORT LABEL FILE ARGUMENTS...
    local mode=$1 port=$2 label=$3 file=$4
    shift 4
    "$BIN/sluice-load" "$mode" --url "http://127.0.0.1:$port" --label "$label" --api-key capped \
        --prompt-tokens 128 --max-tokens 64 --json "$file" "$@" >&2
}

# Sets CAPACITY, SLO_MS and COST_MS: without promises, each replica with all slots taken.
measure_fleet() {
    local i
    say "what the replicas can do"
    replicas --
    load closed $((PORT + 1)) "fast, unloaded" "$work/closed.jsonl" -c 1 -n 8 --seed 11
    for i in 1 2 3 4; do
        load closed $((PORT + i)) "replica $i" "$work/closed.jsonl" -c 8 -n "$PER_SLOT" \
            --seed "$i" --timeout 10m
    done
    stop
    python3 benches/fleet/figures.py measured "$work/closed.jsonl" >"$work/measured"
    # shellcheck disable=SC1091
    . "$work/measured"
    say "capacity $CAPACITY requests/s, a request takes $COST_MS ms of a replica, SLO $SLO_MS ms"
}

overload() { # overload LABEL SEED: whatever is running now
    local i
    load open "$PORT" "$1" "$RUNS" --rate "$LOADS" --capacity "$CAPACITY" --duration "$DURATION" \
        --timeout 30s --slo-e2e "${SLO_MS}ms" --seed "$2"
    for i in 1 2 3 4; do
        curl -fsS "http://127.0.0.1:$((PORT + i))/metrics" >"$work/scrape.$i"
    done
    python3 benches/fleet/figures.py reasons "$1" "$work"/scrape.? >>"$work/reasons.md"
    stop
}

overload_of() { # overload_of local|coordinator|ask SEED
    local e2e=(--slo-e2e "${SLO_MS}ms")
    case "$1" in
        local)
            say "overload, seed $2: local only"
            replicas -- "${e2e[@]}"
            balancer
            overload "local only" "$2"
            ;;
        coordinator)
            say "overload, seed $2: coordinator"
            redis
            replicas -- "${e2e[@]}" --coordinator "redis://127.0.0.1:$REDIS_PORT"
            together
            balancer
            overload "coordinator" "$2"
            ;;
        ask)
            say "overload, seed $2: no admission, and nginx asks Redis for each request"
            redis
            replicas -- --admission none --scheduling-policy fcfs
            balancer ask
            overload "Redis for each request" "$2"
            ;;
        *) fail "unknown server '$1': local, coordinator or ask" ;;
    esac
}

overloads() {
    local seed server
    rm -f "$RUNS"
    for seed in $SEEDS; do
        for server in $SERVERS; do
            overload_of "$server" "$seed"
        done
    done
}

# The tenant's load on whatever is running, whose ports are so many ABOVE the usual ones.
capped() { # capped LABEL ABOVE
    local port begin
    rm -f "$work/phases"
    for port in $((PORT + $2 + 1)) $((PORT + $2 + 2)) "$PORT"; do
        begin=$(date +%s)
        load open "$port" "$1" "$CAP_RUNS" --rate 1 --capacity "$CAPACITY" --duration "${PHASE}s" \
            --timeout 30s --slo-e2e "${SLO_MS}ms" --seed "$((port % 10))"
        echo "$begin $((begin + PHASE))" >>"$work/phases"
    done
    stop
    python3 benches/fleet/figures.py cap "$1" "$CAP" "$work/phases" "$CAP_RUNS" "$work"/log.? \
        >>"$work/caps.md"
}

caps() {
    local e2e=(--slo-e2e "${SLO_MS}ms")
    rm -f "$CAP_RUNS"
    say "caps: leases"
    redis
    replicas "$CAP" -- "${e2e[@]}" --coordinator "redis://127.0.0.1:$REDIS_PORT" \
        --coordinator-replicas 4
    together $((CAP / 4))
    balancer
    capped "leases" 0
    say "caps: a quarter on each replica"
    replicas $((CAP / 4)) -- "${e2e[@]}"
    balancer
    capped "a quarter each" 0
    say "caps: counters shared once in $SHARED_EVERY_S s"
    replicas -- "${e2e[@]}"
    balancer count
    capped "counters, $SHARED_EVERY_S s old" 10
}

mkdir -p "$RESULTS"
measure_fleet
for part in $PARTS; do
    case "$part" in
        overload) overloads ;;
        caps) caps ;;
        *) fail "unknown part '$part': overload or caps" ;;
    esac
done

{
    cpu=$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)
    echo "$(nproc) cores of $cpu, $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)."
    echo "Four simulated replicas behind nginx, one at half speed; capacity $CAPACITY requests/s;" \
        "Poisson arrivals for $DURATION, seeds $SEEDS; SLO: end to end within $SLO_MS ms."
    if [ -e "$work/reasons.md" ]; then
        printf '\n'
        "$BIN/sluice-load" table "$RUNS"
        printf '\n| server | refusals of all replicas, by reason |\n|---|---|\n'
        cat "$work/reasons.md"
    fi
    if [ -e "$work/caps.md" ]; then
        printf '\nA tenant with %s requests for all replicas asks for %s a second for %s s each: ' \
            "$CAP" "$CAPACITY" "$PHASE"
        printf 'one replica, another one, all.\n\n'
        echo "| cap by | highest use, one replica | another one | all | above the cap |" \
            "mean use, one replica | another one | all | in time, requests/s |"
        echo "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
        cat "$work/caps.md"
    fi
    if [ -e "$work/reasons.md" ] && [ -e "$work/caps.md" ]; then
        printf '\n'
        python3 benches/fleet/figures.py goals "$RUNS" "$work/caps.md"
    fi
} >"$RESULTS/fleet.md"
cat "$RESULTS/fleet.md"
