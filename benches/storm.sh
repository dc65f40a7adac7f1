#!/usr/bin/env bash
# A storm of refusals: how many 429s a second the server answers over keep-alive connections, and
# what that does to the gaps between the tokens of the requests that it has admitted.
#
#   benches/storm.sh                      about a minute and a half; wants an idle machine
#   SECONDS_EACH=30 WORDS=20 ...          longer, or with shorter prompts in the storm
#
# The simulated runner decodes 16 streams, a step takes 13 ms. The storm's requests want 64 tokens
# within 760 ms, which an idle device can do and this one, at 13 ms a token, cannot: none of them
# takes device time from the streams.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

PORT="${PORT:-18081}"
SECONDS_EACH="${SECONDS_EACH:-20}"
CONNECTIONS="${CONNECTIONS:-64}"
STREAMS="${STREAMS:-16}"
export WORDS="${WORDS:-200}" DEADLINE_MS="${DEADLINE_MS:-760}"

URL="http://127.0.0.1:$PORT"
work=$(mktemp -d)
server=""
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT

need_rust
need 'command -v curl' curl
need 'command -v python3' python3
need 'command -v wrk' wrk
if [ -z "${BIN:-}" ]; then
    cargo build --release --package sluice-server --package sluice-load
    BIN="${CARGO_TARGET_DIR:-target}/release"
fi

cat >"$work/storm.toml" <<TOML
max_num_seqs = $STREAMS
[simulated.cost]
fixed_ns = 10_000_000
per_seq_ns = 200_000
per_context_token_ps = 0
per_prefill_token_ns = 50_000
TOML
"$BIN/sluice" serve --runner simulated --config "$work/storm.toml" --port "$PORT" 2>"$work/log" &
server=$!
wait_ready "$URL/health" "$server" 60

# Answers of a second and a quarter, one after the other on each stream.
streams() { # streams FILE
    "$BIN/sluice-load" closed --url "$URL" --concurrency "$STREAMS" \
        --per-slot $((SECONDS_EACH * 4 / 5)) \
        --prompt-tokens 16 --max-tokens 96 --timeout 10m --seed "$RANDOM" --json "$1" >/dev/null
}

say "$STREAMS streams alone"
streams "$work/calm.json"

say "$STREAMS streams and $CONNECTIONS connections that are refused"
streams "$work/storm.json" &
load=$!
sleep 2
wrk --threads 1 --connections "$CONNECTIONS" --duration "$((SECONDS_EACH - 4))s" \
    --script benches/storm.lua "$URL/v1/chat/completions" | tee "$work/wrk" >&2
wait "$load"

python3 - "$work" <<'PY'
import json, pathlib, sys

work = pathlib.Path(sys.argv[1])
def gaps(run):
    return json.loads((work / f"{run}.json").read_text())

calm, storm = gaps("calm"), gaps("storm")
print(f"{(work / 'wrk').read_text().splitlines()[-1]}\n")
print("| | alone | in the storm | |\n|---|--:|--:|--:|")
names = {"tpot_ms": "time per output token (TPOT)", "itl_ms": "single gap"}
for key, name in names.items():
    for at in ("p50", "p99"):
        before, after = calm[key][at], storm[key][at]
        rise = 100 * (after / before - 1)
        print(f"| {name}, {at} | {before:.2f} ms | {after:.2f} ms | {rise:+.1f} % |")
PY
