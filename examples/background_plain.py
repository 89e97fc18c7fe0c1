"""The same prompt twice: in the foreground, and in the background, where a broken connection loses nothing.

OPENAI_BASE_URL=http://127.0.0.1:7878/v1 OPENAI_API_KEY=unused python examples/background_plain.py
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

from outlive.client import PollTimeout, ResponseFailed, create_and_poll, poll

PROMPT = "Say in one sentence why the sea is salty."


def main() -> None:
    model = os.environ.get("MODEL", "demo")
    with OpenAI() as client:
        plain = client.responses.create(model=model, input=PROMPT)
        print("plain:     ", plain.output_text)
        try:
            durable = create_and_poll(client, model=model, input=PROMPT, max_wait_seconds=60, raise_on=["failed"])
        except PollTimeout as timeout:
            print(f"{timeout.response_id} is still running; polling again.")
            durable = poll(client, timeout.response_id)
        except ResponseFailed as failed:
            sys.exit(str(failed))
        print("background:", durable.output_text)


if __name__ == "__main__":
    main()
