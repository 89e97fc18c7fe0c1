"""The process of the embedded model: llama.cpp's own HTTP server on a free loopback port.

Run as a program by `embedded.backend`, never imported by it, so that a crash in native code does not crash the server.
It imports nothing of this package: it starts sooner, and from any path. Its settings come on its standard input, as one
line of JSON; it writes its address to its standard output, as one line of JSON. When its input ends, its parent is
gone, and it exits.
"""

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # let the kernel send a signal when the parent dies


def serve(settings: dict[str, object]) -> object:
    """Load the model and listen. The returned server works until it is garbage-collected."""
    import xllamacpp  # native code, loaded only once the parent is being watched

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]  # 0: any free one
    params.api_keys = [settings["key"]]  # loopback is open to every user of the machine and to every page in a browser
    params.cors_origins = ""
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["context"]
    params.n_predict = settings["longest"]  # holds where the caller gives no limit of its own
    # One thread per open connection, so that callers wait for a slot, not for a thread.
    params.n_threads_http = 64
    # Prompts stay in the slots that work on them: no cache beside them, no endpoint that shows them, no log of them.
    params.cache_ram_mib = 0
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = params.ui = False
    params.verbosity = 1  # errors only
    params.offline = True
    return xllamacpp.Server(params)


def main() -> None:
    if sys.platform == "linux":  # elsewhere the end of input ends this process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may still need a model while it ends
    server = serve(json.loads(sys.stdin.readline()))
    address = server.listening_address  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps({"address": address}) + "\n")
    sys.stdout.flush()
    # Close all output: from here on even an error message might quote a prompt.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    while sys.stdin.read(1):
        pass
    os._exit(0)  # nothing needs to be saved, and native threads make an orderly exit slow


if __name__ == "__main__":
    main()
