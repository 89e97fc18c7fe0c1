"""A stream begun by one process, which is killed, and finished by another: the token in between is one string.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/resume_in_another_process.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openai import OpenAI

from outlive.client import ResponseStream, Token, resume, stream

PROMPT = "Tell me a story about a lighthouse, in two hundred words."


def show(events: ResponseStream, notes: Path) -> None:
    for event in events:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        # After the event was dealt with: whoever is killed between the two deals with it again, and loses nothing.
        keep(notes, str(events.token))


def keep(notes: Path, token: str) -> None:
    fresh = notes.with_suffix(".new")
    fresh.write_text(token)
    fresh.replace(notes)  # whole or not at all


def begin(notes: Path) -> None:
    """What the first process does."""
    with OpenAI() as client:
        show(stream(client, model=os.environ.get("MODEL", "demo"), input=PROMPT), notes)


def watch_and_kill(notes: Path) -> None:
    """Start the first process and kill it as soon as it has shown a few words."""
    with subprocess.Popen([sys.executable, __file__, str(notes)]) as first:
        while first.poll() is None:
            if notes.exists() and (Token.parse(notes.read_text()).cursor or 0) >= 8:
                first.kill()
            time.sleep(0.01)
    print("\n-- the first process is gone", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        begin(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder, OpenAI() as client:
        notes = Path(folder) / "token"
        watch_and_kill(notes)
        events = resume(client, notes.read_text())
        show(events, notes)
        final = events.get_final_response()
        print(f"\n-- {final.status}; all of it:\n{final.output_text}")


if __name__ == "__main__":
    main()
