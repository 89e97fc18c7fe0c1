"""A stream begun by one process, which is killed, and finished by another, with a token stored in a file.

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


def show(events: ResponseStream, token_file: Path) -> None:
    for event in events:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        # Saved after the event was handled: a process killed between the two handles it again, and loses none.
        save(token_file, str(events.token))


def save(token_file: Path, token: str) -> None:
    new_file = token_file.with_suffix(".new")
    new_file.write_text(token)
    new_file.replace(token_file)  # atomic: the file never holds half a token


def begin(token_file: Path) -> None:
    """Show the stream from its beginning, in the first process."""
    with OpenAI() as client:
        show(stream(client, model=os.environ.get("MODEL", "demo"), input=PROMPT), token_file)


def start_and_kill(token_file: Path) -> None:
    """Start the first process and kill it as soon as it has shown a few words."""
    with subprocess.Popen([sys.executable, __file__, str(token_file)]) as first:
        while first.poll() is None:
            if token_file.exists() and (Token.parse(token_file.read_text()).cursor or 0) >= 8:
                first.kill()
            time.sleep(0.01)
    print("\n-- the first process is gone", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        begin(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder, OpenAI() as client:
        token_file = Path(folder) / "token"
        start_and_kill(token_file)
        events = resume(client, token_file.read_text())
        show(events, token_file)
        final = events.get_final_response()
        print(f"\n-- {final.status}; all of it:\n{final.output_text}")


if __name__ == "__main__":
    main()
