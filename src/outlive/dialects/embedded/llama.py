"""The process in which the embedded model lives: llama.cpp's own HTTP server on a free loopback port.

Run as a program by `local`, never imported by it, so that a crash in native code is not the server's. It imports
nothing of this package: it starts sooner, and from wherever it is found. It is told on its standard input, one JSON
line, what to serve; it answers on its standard output, one JSON line, where. When its input ends, its parent is gone
and it goes too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to take this process along when its parent is killed; where it cannot, the end of input does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(order: dict[str, object]) -> object:
    """Load the model and listen. The returned server works until it is dropped."""
    import xllamacpp  # native code, loaded only once the parent is being watched

    params = xllamacpp.CommonParams()
    params.model.path = order["path"]
    params.model_alias = {order["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = order["port"]  # 0: any free one
    params.api_keys = [order["key"]]  # loopback is open to every user of the machine and to every page in a browser
    params.cors_origins = ""
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    params.n_parallel = order["slots"]
    params.n_ctx = order["context"]
    params.n_predict = order["longest"]  # holds where the caller gives no limit of its own
    # One thread per open connection, so that callers wait for a slot, not for being heard.
    params.n_threads_http = 64
    # Prompts stay in the slots that work on them: no cache beside them, no endpoint that shows them, no log of them.
    params.cache_ram_mib = 0
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = params.ui = False
    params.verbosity = 1  # errors only
    params.offline = True
    return xllamacpp.Server(params)


def silence() -> None:
    """From here on not even an error may be written: it might quote a prompt."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may still need a model while it ends
    server = serve(json.loads(sys.stdin.readline()))
    address = server.listening_address  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps({"address": address}) + "\n")
    sys.stdout.flush()
    silence()
    while sys.stdin.read(1):
        pass
    os._exit(0)  # nothing here is worth an orderly end, and native threads make it slow


if __name__ == "__main__":
    main()
