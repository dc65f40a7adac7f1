#!/usr/bin/env python3
"""Serve a GGUF with llama.cpp's own server, out of the PyPI wheel `xllamacpp`.

    llamacpp.py MODEL.gguf PORT [--slots 32] [--slot-context 512] [--threads 2]

Set up for a fair comparison: one slot for each concurrent request, a context that holds what the
benchmark sends, no reuse of earlier prompts (the benchmark's prompts share nothing). Leave
OMP_WAIT_POLICY alone: `passive` makes llama.cpp three times slower at concurrency 1.
"""

import argparse
import signal

import xllamacpp


def parameters(args: argparse.Namespace) -> "xllamacpp.CommonParams":
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = ["127.0.0.1"]
    params.port = args.port
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.slot_context
    params.kv_unified = False
    params.cache_prompt = False
    params.cpuparams.n_threads = args.threads
    params.cpuparams_batch.n_threads = args.threads
    # As many HTTP workers as may ever be connected, so that none waits for another's stream.
    params.n_threads_http = 512
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--slot-context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    server = xllamacpp.Server(parameters(parser.parse_args()))
    print("ready", server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
