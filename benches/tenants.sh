#!/usr/bin/env bash
# What a burst of one tenant costs another on the real engine: the demo model on this machine. Two
# tenants have a share of 0.3 each. The steady one asks for 0.8 of its share, alone and then beside
# the bursting one, which asks for ten times its own. With reservations; with the gate that does not
# know whose requests they are; and with vtc, which refuses nobody.
#
#   benches/tenants.sh                    about 35 minutes; wants an otherwise idle machine
#   QUICK=1 benches/tenants.sh            a few minutes, to see that it works: figures mean little
#   RULES=tenants DURATION=600s ...       only a part, longer runs
#   TPOT_MS=40 ...                        another gap than four times the unloaded one
#
# Writes benches/results/tenants.md. The load generator runs on the same cores as the server.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

THREADS="${THREADS:-$(nproc)}"
PORT="${PORT:-18083}"
DURATION="${DURATION:-${QUICK:+30s}}"
DURATION="${DURATION:-300s}"
BUDGET="${BUDGET:-${QUICK:+10s}}"
BUDGET="${BUDGET:-60s}"
PER_SLOT="${PER_SLOT:-${QUICK:+2}}"
PER_SLOT="${PER_SLOT:-6}"
RULES="${RULES:-tenants gate vtc}"
RESULTS="${RESULTS:-benches/results}"
TTFT_MS=1500
TPOT_MS="${TPOT_MS:-}"
RESERVED=0.3 STEADY=0.8 BURST=10
# Medians; with a spread of 0.7 the means are a quarter more, and that is what capacity is of.
PROMPT=96 OUTPUT=48 SPREAD=0.7
MEAN_PROMPT=120 MEAN_OUTPUT=60

. benches/lib.sh

tenants() { # tenants RESERVED: a configuration file
    local name
    for name in steady burst; do
        printf '[tenant.%s]\napi_keys = ["%s"]\nreserved = %s\n' "$name" "$name" "$1"
    done
}

serve_by() { # serve_by RULES
    local rules=()
    case "$1" in
        tenants) tenants "$RESERVED" >"$WORK/config.toml" ;;
        gate) echo 'api_key = ["steady", "burst"]' >"$WORK/config.toml" ;;
        vtc)
            tenants 0 >"$WORK/config.toml"
            rules=(--admission none --scheduling-policy vtc)
            ;;
        *) fail "unknown rules '$1': tenants, gate or vtc" ;;
    esac
    serve --config "$WORK/config.toml" --profile "$WORK/profile.toml" "${rules[@]}" \
        --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
}

offer() { # offer load|load_beside FILE TENANT MULTIPLE SEED: MULTIPLE times its share
    local load
    load=$(python3 -c "print($RESERVED * $4)")
    "$1" "$WORK/runs" open --prompt-ids --api-key "$3" --rate "$load" --capacity "$capacity" \
        --duration "$DURATION" --prompt-tokens "$PROMPT" --max-tokens "$OUTPUT" \
        --spread "$SPREAD" --timeout 60s --seed "$5" --requests "$2" \
        --slo-ttft "${TTFT_MS}ms" --slo-tpot "${TPOT_MS}ms"
}

measure() { # measure RULES: a row
    rm -f "$WORK/alone" "$WORK/steady" "$WORK/burst"
    serve_by "$1"
    offer load "$WORK/alone" steady "$STEADY" 11
    stop
    serve_by "$1"
    offer load_beside "$WORK/burst" burst "$BURST" 12
    offer load "$WORK/steady" steady "$STEADY" 11
    wait_loads
    stop
    python3 benches/tenants.py row "$1" "$WORK/profile.toml" "$RESERVED" "$WORK/alone" \
        "$WORK/steady" "$WORK/burst" >>"$WORK/rows"
    tail -n 1 "$WORK/rows" >&2
}

build
say "sluice calibrate"
"$bin/sluice" calibrate "$model" --threads "$THREADS" --budget "$BUDGET" \
    --output "$WORK/profile.toml" >&2
measure_capacity
for rules in $RULES; do
    measure "$rules"
done
mkdir -p "$RESULTS"
{
    machine
    echo "Prompts and answers log-normal (medians $PROMPT and $OUTPUT tokens, deviation of the" \
        "logarithm $SPREAD), arrivals for $DURATION. SLO: TTFT $TTFT_MS ms, TPOT $TPOT_MS ms."
    echo "Capacity: $(printf %.2f "$capacity") requests of mean length a second, 32 at a time." \
        "Each tenant has $RESERVED of it; the steady one asks for $STEADY of its share, the" \
        "bursting one for $BURST times its own."
    echo
    python3 benches/tenants.py header
    cat "$WORK/rows"
    echo
    python3 benches/tenants.py words
} >"$RESULTS/tenants.md"
cat "$RESULTS/tenants.md"
