#!/usr/bin/env bash
# How well the real engine keeps its forecasts: the demo model on this machine under mixed lengths,
# Poisson and bursty arrivals, at multiples of its capacity; once with known lengths and an
# end-to-end SLO of four times the unloaded time, once with lengths that only the model knows and
# an SLO on first token and gap. Beside the gate, static caps on the requests inside, with the same
# scheduling: who is over the cap is refused, everybody else is let in.
#
#   benches/forecasts.sh                  about 50 minutes; wants an otherwise idle machine
#   QUICK=1 benches/forecasts.sh          a few minutes, to see that it works: figures mean little
#   LOADS='1 2' DURATION=120s ...         other loads, longer runs
#   LENGTHS=learned ARRIVALS=3 ...        only a part: burstiness is the deviation of the gaps
#   CAPS='' ...                           the gate alone
#
# Writes benches/results/forecasts.md. The load generator runs on the same cores as the server.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

THREADS="${THREADS:-$(nproc)}"
PORT="${PORT:-18081}"
DURATION="${DURATION:-${QUICK:+10s}}"
DURATION="${DURATION:-60s}"
LOADS="${LOADS:-0.5 1 2 4}"
ARRIVALS="${ARRIVALS:-1 3}"
LENGTHS="${LENGTHS:-known learned}"
CAPS="${CAPS-4 8 16}"
RESULTS="${RESULTS:-benches/results}"
SLO_MULTIPLE=4
TTFT_MS=1500
TPOT_MS="${TPOT_MS:-50}"
# Medians; with a spread of 0.7 the means are a quarter more, and that is what capacity is of.
PROMPT=96 OUTPUT=48 SPREAD=0.7
MEAN_PROMPT=120 MEAN_OUTPUT=60
OPEN_ENDED=256

. benches/lib.sh

# series LENGTHS ADMISSION ARGUMENTS...: a row for each arrival process and load
series() {
    local lengths=$1 admission=$2
    shift 2
    local burstiness multiple
    for burstiness in $ARRIVALS; do
        for multiple in $LOADS; do
            scrape "$WORK/before"
            load "$WORK/runs" open --rate "$multiple" --capacity "$capacity" --duration "$DURATION" \
                --burstiness "$burstiness" --spread "$SPREAD" --timeout 60s \
                --seed "${multiple//./}$burstiness" "$@"
            scrape "$WORK/after"
            python3 benches/forecasts.py "$lengths" "$admission" "$burstiness" "$multiple" \
                "$WORK/before" "$WORK/after" "$WORK/runs" >>"$WORK/rows"
            tail -n 1 "$WORK/rows" >&2
        done
    done
}

known_lengths() {
    local lengths=(--prompt-tokens "$MEAN_PROMPT" --max-tokens "$MEAN_OUTPUT" --timeout 10m)
    serve --slo-ttft none --slo-tpot none
    load "$WORK/runs" closed -c 1 -n 12 "${lengths[@]}"
    local slo
    slo=$(python3 -c "print(round($SLO_MULTIPLE * $(figure "$WORK/runs" e2e_ms p50)))")
    load "$WORK/runs" closed -c 32 -n 4 "${lengths[@]}"
    capacity=$(figure "$WORK/runs" requests_per_s)
    stop
    local admission
    for admission in deadline ${CAPS:+$(printf 'queue-cap=%s ' $CAPS)}; do
        serve --admission "$admission" --slo-ttft none --slo-tpot none --slo-e2e "${slo}ms"
        series "known, E2E ${slo} ms" "$admission" --prompt-tokens "$PROMPT" \
            --max-tokens "$OUTPUT" --slo-e2e "${slo}ms"
        stop
    done
}

learned_lengths() {
    local lengths=(--api chat --prompt-tokens "$MEAN_PROMPT" --open-ended "$OPEN_ENDED")
    serve --slo-ttft none --slo-tpot none
    load "$WORK/runs" closed -c 32 -n 4 --timeout 10m "${lengths[@]}"
    capacity=$(figure "$WORK/runs" requests_per_s)
    stop
    local admission
    for admission in deadline ${CAPS:+$(printf 'queue-cap=%s ' $CAPS)}; do
        serve --admission "$admission" --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
        series "learned, TTFT $TTFT_MS ms, TPOT $TPOT_MS ms" "$admission" --api chat \
            --prompt-tokens "$PROMPT" --open-ended "$OPEN_ENDED" \
            --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
        stop
    done
}

build
mkdir -p "$RESULTS"
touch "$WORK/rows"
for lengths in $LENGTHS; do
    case "$lengths" in
        known) known_lengths ;;
        learned) learned_lengths ;;
        *) fail "unknown lengths '$lengths': known or learned" ;;
    esac
done
{
    machine
    echo "Prompts and answers log-normal (medians $PROMPT and $OUTPUT tokens, deviation of the" \
        "logarithm $SPREAD), answers of unknown length up to $OPEN_ENDED; arrivals for $DURATION."
    echo "Load 1 is the throughput of 32 requests of mean length at once. Errors are" \
        "|actual / forecast - 1|, median / p90, read from histogram buckets."
    echo
    python3 benches/forecasts.py header
    cat "$WORK/rows"
} >"$RESULTS/forecasts.md"
cat "$RESULTS/forecasts.md"
