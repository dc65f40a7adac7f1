#!/usr/bin/env bash
# From an empty clone to a server that answers and, when asked for too much, says no in time.
# PORT=8001 make demo    takes another port
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

PORT="${PORT:-8000}"
URL="http://127.0.0.1:$PORT"
LOG="$SLUICE_CACHE/demo-$PORT.log"

need_rust
need 'command -v curl' curl
model=$(models/fetch-demo.sh | tail -n 1)

say "building (a few minutes the first time)"
cargo build --release --package sluice-server --package sluice-load
bin="${CARGO_TARGET_DIR:-target}/release"

say "serving $model on $URL (log: $LOG)"
nohup "$bin/sluice" serve "$model" --port "$PORT" >"$LOG" 2>&1 </dev/null &
server=$!
if ! (wait_ready "$URL/readyz" "$server" 60); then
    tail -n 5 "$LOG" >&2
    exit 1
fi

say "one streamed answer"
curl -fsSN --max-time 60 "$URL/v1/chat/completions" -H 'content-type: application/json' -d '{
  "messages": [{"role": "user", "content": "Name three colours."}],
  "max_tokens": 40, "temperature": 0, "stream": true}' |
    python3 -u -c '
import json, sys
for line in sys.stdin:
    if line.startswith("data: {"):
        for choice in json.loads(line[6:])["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
print()'

say "a deadline that cannot be met even on an idle server: 400, and why"
curl -sS -i --max-time 60 "$URL/v1/completions" -H 'content-type: application/json' \
    -H 'x-slo-ttft-ms: 1' -d '{"prompt": "Once upon a time", "max_tokens": 8}'
echo

say "32 clients at once, each wants its first token within a second: some are refused, at once"
answers=$(mktemp -d)
trap 'rm -rf "$answers"' EXIT
clients=()
prompt=$(printf 'the quick brown fox number %s jumps over the lazy dog. ' {1..8})
for client in {1..32}; do
    curl -sS -i --max-time 60 -o "$answers/$client" "$URL/v1/completions" \
        -H 'content-type: application/json' -H 'x-slo-ttft-ms: 1000' \
        -d "{\"prompt\": \"$client: $prompt\", \"max_tokens\": 32}" &
    clients+=($!)
done
wait "${clients[@]}" || true
echo "answers by status:"
grep -ah -m 1 '^HTTP/' "$answers"/* | sort | uniq -c
if shed=$(grep -l '^HTTP/1.1 429' "$answers"/*); then
    echo
    cat "$(head -n 1 <<<"$shed")"
    echo
else
    echo "(this machine is fast enough for all of them: no 429 to show)"
fi

cat <<EOF

The server goes on running on $URL (process $server). Try:
  curl -N $URL/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages":[{"role":"user","content":"Tell me a story."}],"max_tokens":200,"stream":true}'
  curl $URL/metrics | grep inference_
  $bin/sluice-load open --url $URL --rate 10 --duration 20s --slo-e2e 4s \\
    --header 'x-request-deadline-ms: 4000'
Any OpenAI client works with base_url=$URL/v1 and any key.
Stop it with: kill $server
EOF
