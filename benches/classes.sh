#!/usr/bin/env bash
# Both classes on the real engine: the demo model on this machine.
#
# Steps: class latency, with the lengths of chats, at a fifth of the capacity over an endless backlog
# of class throughput; with our default settings, and with the rules of other servers, which refuse
# nobody: first come first served, a batch a quarter as large, a chunk a quarter as large. Beside
# them the backlog alone.
# Isolation: both classes at the capacity each, so twice as much as can be served is offered; and
# the latency class at the same rate alone.
#
#   benches/classes.sh                    about 90 minutes; wants an otherwise idle machine
#   QUICK=1 benches/classes.sh            a few minutes, to see that it works: figures mean little
#   PARTS=steps DURATION=240s ...         only a part, shorter runs: isolation wants ten times the
#                                         longest SLO, which is the minute of class throughput
#   TPOT_MS=40 BULK_TTFT_MS=30000 ...     other targets than four times the unloaded gap and a minute
#
# Writes benches/results/classes.md. The load generator runs on the same cores as the server.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

THREADS="${THREADS:-$(nproc)}"
PORT="${PORT:-18082}"
DURATION="${DURATION:-${QUICK:+20s}}"
DURATION="${DURATION:-600s}"
WARM_UP="${WARM_UP:-${QUICK:+5s}}"
WARM_UP="${WARM_UP:-30s}"
PARTS="${PARTS:-steps isolation}"
RESULTS="${RESULTS:-benches/results}"
TTFT_MS=1500
BULK_TTFT_MS="${BULK_TTFT_MS:-60000}"
TPOT_MS="${TPOT_MS:-}"
PER_SLOT="${PER_SLOT:-${QUICK:+2}}"
PER_SLOT="${PER_SLOT:-6}"
SHARE=0.2
# Medians; with a spread of 0.7 the means are a quarter more, and that is what capacity is of.
PROMPT=96 OUTPUT=48 SPREAD=0.7
MEAN_PROMPT=120 MEAN_OUTPUT=60
# The backlog: closed loops of PROMPT:OUTPUT tokens, and requests under way in each.
BACKLOG=(60:30 120:60 180:90)
UNDER_WAY=22
BULK=(--header 'x-sluice-class: throughput' --prompt-ids --timeout 10m)

. benches/lib.sh

start_backlog() {
    local lengths seed=50
    for lengths in "${BACKLOG[@]}"; do
        seed=$((seed + 1))
        load_beside "$WORK/ignored" closed -c "$UNDER_WAY" -n 40000 "${BULK[@]}" \
            --prompt-tokens "${lengths%:*}" --max-tokens "${lengths#*:}" --seed "$seed"
    done
    sleep "$WARM_UP"
}

chats() { # chats FILE LOAD: latency requests for DURATION
    load "$1" open --prompt-ids --rate "$2" --capacity "$capacity" --duration "$DURATION" \
        --prompt-tokens "$PROMPT" --max-tokens "$OUTPUT" --spread "$SPREAD" --timeout 60s \
        --seed 7 --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
}

step() { # step NAME yes|no ARGUMENTS...: a row; whether there are chats
    local name=$1 chats=$2 clock
    shift 2
    serve --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms" "$@"
    start_backlog
    scrape "$WORK/before"
    (sleep "$DURATION" && scrape "$WORK/after") &
    clock=$!
    rm -f "$WORK/chats"
    if [ "$chats" = yes ]; then chats "$WORK/chats" "$SHARE"; fi
    wait "$clock"
    stop_loads
    stop
    python3 benches/classes.py step "$name" "$DURATION" "$WORK/before" "$WORK/after" \
        "$WORK/chats" >>"$WORK/steps"
}

steps() {
    local open=(--admission none)
    step 'class throughput alone' no
    step 'default' yes
    step 'default, nobody refused' yes "${open[@]}"
    step 'first come, first served' yes "${open[@]}" --scheduling-policy fcfs
    step 'earliest deadline first, batch of 8' yes "${open[@]}" --scheduling-policy edf \
        --max-num-seqs 8
    step 'earliest deadline first, chunk of 128' yes "${open[@]}" --scheduling-policy edf \
        --max-num-batched-tokens 128
    echo "## What goes into a step"
    echo
    echo "Chats at $SHARE of the capacity over $((UNDER_WAY * ${#BACKLOG[@]})) bulk requests" \
        "under way (${BACKLOG[*]} tokens) for $DURATION."
    echo
    python3 benches/classes.py steps "$TPOT_MS" "$WORK/steps"
}

isolation() {
    serve --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
    chats "$WORK/alone" 1
    stop
    serve --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
    load_beside "$WORK/bulk" open --rate 1 --capacity "$capacity" --duration "$DURATION" \
        --prompt-tokens "$PROMPT" --max-tokens "$OUTPUT" --spread "$SPREAD" --seed 8 \
        --slo-ttft "${BULK_TTFT_MS}ms" "${BULK[@]}"
    chats "$WORK/beside" 1
    wait_loads
    scrape "$WORK/after"
    stop
    echo "## Isolation"
    echo
    echo "Both classes at $(printf %.2f "$capacity") requests a second for $DURATION, which is the" \
        "capacity each; class throughput is promised its first token in $BULK_TTFT_MS ms."
    echo
    python3 benches/classes.py isolation "$WORK/alone" "$WORK/beside" "$WORK/bulk" "$WORK/after"
}

build
measure_capacity
for part in $PARTS; do
    case "$part" in
        steps) steps >"$WORK/part-$part" ;;
        isolation) isolation >"$WORK/part-$part" ;;
        *) fail "unknown part '$part': steps or isolation" ;;
    esac
done
mkdir -p "$RESULTS"
{
    machine
    echo "Prompts and answers of chats log-normal (medians $PROMPT and $OUTPUT tokens, deviation" \
        "of the logarithm $SPREAD). SLO of class latency: TTFT $TTFT_MS ms, TPOT $TPOT_MS ms."
    echo "Capacity: $(printf %.2f "$capacity") requests of mean length a second, 32 at a time."
    for part in $PARTS; do
        echo
        cat "$WORK/part-$part"
    done
} >"$RESULTS/classes.md"
cat "$RESULTS/classes.md"
