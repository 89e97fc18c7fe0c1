"""The options of a create that have a structure of their own."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.requests.checks import (
    check_bool,
    check_enum,
    check_id,
    check_int,
    check_list,
    check_name,
    check_object,
    check_str,
    refuse,
    refuse_length,
    refuse_missing,
    refuse_type,
    refuse_unsupported,
    shorten,
)

INCLUDABLE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)

SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")

LEAST_THRESHOLD = 1000  # tokens

_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512
_MAX_FORMAT_NAME = 64
_FORMATS = ("text", "json_object", "json_schema")
_VERBOSITIES = ("low", "medium", "high")
_SUMMARIES = ("auto", "concise", "detailed")
_REASONING = {
    "effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    "summary": _SUMMARIES,
    "generate_summary": _SUMMARIES,
    "context": ("auto", "current_turn", "all_turns"),
}
_CACHE_MODES = ("implicit", "explicit")


def parse_metadata(value: object, param: str = "metadata") -> dict[str, str]:
    if value is None:
        return {}
    pairs = check_object(value, param)
    if len(pairs) > _MAX_PAIRS:
        message = f"'{param}' has {len(pairs)} pairs; at most {_MAX_PAIRS} are allowed."
        refuse(message, param, "object_above_max_properties")
    for key, text in pairs.items():
        if len(key) > _MAX_KEY:
            refuse_length(len(key), f"{param}.{shorten(key)}", _MAX_KEY)
        check_str(text, f"{param}.{key}", most=_MAX_VALUE)
    return pairs


def parse_include(value: object, param: str) -> list[str]:
    return [check_enum(name, f"{param}[{n}]", INCLUDABLE) for n, name in enumerate(check_list(value, param))]


def parse_conversation(value: object, param: str) -> str:
    """A conversation's id, given alone or as `{"id": ...}`."""
    if type(value) is dict:
        param += ".id"
        value = value.get("id")
        if value is None:
            refuse_missing(param)
    elif type(value) is not str:
        refuse_type(value, param, "a string or an object with an 'id'")
    return check_id(value, param)


def parse_text(value: object, param: str) -> Json:
    """How the answer is to be written; what was null is left out, so that defaults show in its place."""
    text = {name: option for name, option in check_object(value, param).items() if option is not None}
    if "format" in text:
        text["format"] = _parse_format(text["format"], f"{param}.format")
    if "verbosity" in text:
        check_enum(text["verbosity"], f"{param}.verbosity", _VERBOSITIES)
    return text


def parse_reasoning(value: object, param: str) -> Json:
    reasoning = check_object(value, param)
    for name, values in _REASONING.items():
        if reasoning.get(name) is not None:
            check_enum(reasoning[name], f"{param}.{name}", values)
    if reasoning.get("mode") is not None:
        check_str(reasoning["mode"], f"{param}.mode")
    return reasoning


def parse_cache_options(value: object, param: str) -> Json:
    options = check_object(value, param)
    if options.get("mode") is not None:
        check_enum(options["mode"], f"{param}.mode", _CACHE_MODES)
    if options.get("ttl") is not None:
        check_str(options["ttl"], f"{param}.ttl")
    if options.get("prewarm") is not None:
        check_bool(options["prewarm"], f"{param}.prewarm")
    return options


def parse_stream_options(value: object, param: str) -> Json:
    options = check_object(value, param)
    if options.get("include_obfuscation") is not None:
        check_bool(options["include_obfuscation"], f"{param}.include_obfuscation")
    return options


def parse_truncation(value: object, param: str) -> str:
    return check_enum(value, param, ("auto", "disabled"))


def parse_context_management(value: object, param: str) -> int | None:
    """The number of tokens above which a context is compacted; 0 leaves it to the server, None is never."""
    thresholds = [_parse_entry(entry, f"{param}[{n}]") for n, entry in enumerate(check_list(value, param))]
    return min(thresholds, default=None)


def _parse_entry(value: object, param: str) -> int:
    entry = check_object(value, param)
    if entry.get("type") is None:
        refuse_missing(f"{param}.type")
    if check_str(entry["type"], f"{param}.type") != "compaction":
        refuse_unsupported(f"{param}.type", "'compaction' is the only way it manages a context.")
    threshold = entry.get("compact_threshold")
    return 0 if threshold is None else check_int(threshold, f"{param}.compact_threshold", least=LEAST_THRESHOLD)


# -- known fields that cannot be honoured, unless their value asks for nothing


def refuse_prompt(value: object, param: str) -> None:
    refuse_unsupported(param, "it has no prompt templates. Send 'instructions' and 'input'.")


def refuse_moderation(value: object, param: str) -> None:
    refuse_unsupported(param, "it does not moderate.")


def refuse_agents(value: object, param: str) -> None:
    refuse_unsupported(param, "it runs one model per response.")


def refuse_compression(value: object, param: str) -> None:
    wish = check_object(value, param).get("context_compression")
    if (
        wish is not None
        and check_enum(wish, f"{param}.context_compression", ("auto", "enabled", "disabled")) == "enabled"
    ):
        refuse_unsupported(f"{param}.context_compression", "it does not compress images.")


def _parse_format(value: object, param: str) -> Json:
    form = check_object(value, param)
    if form.get("type") is None:
        refuse_missing(f"{param}.type")
    if check_enum(form["type"], f"{param}.type", _FORMATS) != "json_schema":
        return form
    for name in ("name", "schema"):
        if form.get(name) is None:
            refuse_missing(f"{param}.{name}")
    check_name(form["name"], f"{param}.name", _MAX_FORMAT_NAME)
    check_object(form["schema"], f"{param}.schema")
    if form.get("description") is not None:
        check_str(form["description"], f"{param}.description")
    strict = form.get("strict")
    strict = False if strict is None else check_bool(strict, f"{param}.strict")
    return {"type": "json_schema", "description": None, **form, "strict": strict}
