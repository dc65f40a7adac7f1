#!/usr/bin/env bash
# The official OpenAI clients that the tests talk through, in the cache, at pinned versions.
# Prints the Python interpreter and the folder that holds node_modules, one a line.
set -euo pipefail
cd "$(dirname "$0")/../.."
. .ci/lib.sh

PYTHON_PACKAGES=(openai==3.57.0 httpx==0.28.1 pytest==9.2.0 pytest-timeout==2.4.0)
NPM_CLIENT="openai@7.59.0"

python=$(venv clients "${PYTHON_PACKAGES[@]}")/bin/python
npm_dir="$SLUICE_CACHE/npm"
if [ "$(cat "$npm_dir/packages" 2>/dev/null)" != "$NPM_CLIENT" ]; then
    need 'command -v npm' npm
    say "installing $NPM_CLIENT"
    mkdir -p "$npm_dir"
    (cd "$npm_dir" && npm install --no-fund --no-audit --silent "$NPM_CLIENT") >&2
    echo "$NPM_CLIENT" >"$npm_dir/packages"
fi
echo "$python"
echo "$npm_dir"
