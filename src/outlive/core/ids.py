"""Identifiers: their prefixes, and the shape in which they are accepted."""

import re
from typing import Protocol

# One prefix per kind of thing, as OpenAI's clients know them. Items of a kind not listed get "item".
ITEM_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctc",
    "reasoning": "rs",
    "compaction": "cmp",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "computer_call": "cu",
    "shell_call": "sh",
    "local_shell_call": "lsh",
    "apply_patch_call": "apc",
    "tool_search_call": "tsc",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
}

ID_PATTERN = "^[A-Za-z0-9_-]{1,128}$"
_matches = re.compile(ID_PATTERN).fullmatch


class IdSource(Protocol):
    """A source of new identifiers; tests count, the server draws them at random."""

    def new(self, prefix: str) -> str:
        """A fresh identifier, `prefix_...`."""


def item_prefix(item_type: str) -> str:
    return ITEM_PREFIXES.get(item_type, "item")


def is_well_formed(identifier: str) -> bool:
    return _matches(identifier) is not None
