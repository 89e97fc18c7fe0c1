"""The programs of the core, performed with an AsyncOpenAI."""

from __future__ import annotations

# The stream object (the same in sync.py without async):
#
# class AsyncResponseStream:
#     response_id: str | None                  (property) as soon as the first event was delivered
#     token: Token | None                      (property) at any time; None before the first event
#     progress: Progress
#     def __aiter__(self) / async def __anext__(self) -> ResponseStreamEvent
#     async def get_final_response(self) -> Response      reads what is left; the terminal response whatever its status
#     async def aclose(self) -> None                      (close() too) hangs up; the run is left alone
#     async with ...
