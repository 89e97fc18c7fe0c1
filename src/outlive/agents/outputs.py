"""Tool outputs as JSON and back, so that what a tool returned looks the same to the run that did not see it return."""

from __future__ import annotations

import json
from typing import Any

from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText

Content = ToolOutputText | ToolOutputImage | ToolOutputFileContent
KINDS: dict[str, type[Content]] = {"text": ToolOutputText, "image": ToolOutputImage, "file": ToolOutputFileContent}


def pack(output: Any) -> Any:
    """`json` where that changes nothing, `content` for the SDK's own output types, else the `text` the model sees."""
    if isinstance(output, Content):
        return {"content": output.model_dump(mode="json", exclude_none=True)}
    if isinstance(output, list) and any(isinstance(each, Content) for each in output):
        return {"list": [pack(each) for each in output]}
    try:
        again = json.loads(json.dumps(output))
    except (TypeError, ValueError):
        return {"text": str(output)}
    # The SDK shows the model str(output): tuples, numbers as keys and the like would show otherwise after a round trip.
    return {"json": output} if str(again) == str(output) else {"text": str(output)}


def unpack(packed: Any) -> Any:
    if "content" in packed:
        return KINDS[packed["content"]["type"]].model_validate(packed["content"])
    if "list" in packed:
        return [unpack(each) for each in packed["list"]]
    return packed["json"] if "json" in packed else packed["text"]
