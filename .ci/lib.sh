# Shared by the scripts of the house (source it): finding tools, and where downloads are kept.
# shellcheck shell=bash

# Models, virtual environments and npm packages, so that a second run fetches nothing.
SLUICE_CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/sluice"
DEMO_MODEL="$SLUICE_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf"

say() { printf '\n== %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# need 'CHECK' PACKAGE...: if the shell command CHECK fails, install Debian packages by name.
need() {
    local check=$1
    shift
    if eval "$check" >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "missing: $*. Install it with your package manager."
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "missing: $*. As root: apt-get install $*"
        as_root=(sudo)
    fi
    say "installing $*"
    "${as_root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -qq -y --no-install-recommends "$@" >&2
    eval "$check" >/dev/null 2>&1 || fail "$* is installed and \`$check\` still fails"
}

need_rust() {
    command -v cargo >/dev/null || fail "cargo is missing: install Rust 1.90 or newer (rustup.rs)"
    need 'command -v cc' build-essential
}

need_python() {
    need 'python3 -m pip --version' python3 python3-pip
    need 'python3 -c "import ensurepip, venv"' python3-venv
}

# venv NAME PACKAGE==VERSION...: a virtual environment in the cache with exactly these packages;
# prints its folder. A change of the list makes it anew.
venv() {
    local dir="$SLUICE_CACHE/$1"
    shift
    if [ "$(cat "$dir/packages" 2>/dev/null)" != "$*" ]; then
        need_python
        say "making $dir ($*)"
        rm -rf "$dir"
        python3 -m venv "$dir"
        "$dir/bin/python" -m pip install -q --disable-pip-version-check "$@" >&2
        echo "$*" >"$dir/packages"
    fi
    echo "$dir"
}

# wait_ready URL PID SECONDS: until URL answers with success.
wait_ready() {
    local deadline=$((SECONDS + $3))
    until curl -fsS -o /dev/null --max-time 2 "$1" 2>/dev/null; do
        kill -0 "$2" 2>/dev/null || fail "the server ended before it was ready"
        [ "$SECONDS" -lt "$deadline" ] || fail "$1 was not ready after $3 s"
        sleep 0.2
    done
}
