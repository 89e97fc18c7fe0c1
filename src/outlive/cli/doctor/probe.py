"""Finds out which quirks an upstream really has, by asking it a few tiny questions."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from outlive.cli.doctor.findings import Section
from outlive.cli.doctor.questions import MOST_TOKENS, Answer, Questioner
from outlive.config.load import is_loopback
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.ports.backend import ContinuationMode, Upstream

_COUNT = [{"role": "user", "content": "Count from 1 to 100 in digits, separated by spaces, and say nothing else."}]
_WORD = "tangerine"
_HINT = f"The secret word is {_WORD}. When asked for it, reply with that one word."
_ASK = {"role": "user", "content": "What is the secret word?"}
# Only an answer that really goes on begins with the comma; a new one would begin with a word.
_CUT_ASK = {"role": "user", "content": "Count from one to ten in English words, separated by commas."}
_CUT, _REST = "one, two, three, four", ","

# Lists hold models that do not chat; the first that may is asked.
_NO_CHAT = re.compile(
    r"embed|whisper|tts|dall-e|image|audio|realtime|moderation|transcribe|rerank|sora|imagen|veo|babbage|davinci"
)


def probe(upstream: Upstream, model: str | None, timeout: float) -> Section:
    """Ask one upstream everything. The section never holds a secret."""
    section = Section(f"Upstream {upstream.name} ({upstream.url})", table=f"upstreams.{upstream.name}")
    parts = urlsplit(upstream.url)
    if upstream.key and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        section.add("warn", "transport", "The key travels unencrypted; use https if the way is not your own.")
    try:
        if upstream.dialect == "anthropic":
            # Every other command starts faster without this import.
            from outlive.cli.doctor.messages_probe import examine

            examine(upstream, model, timeout, section)
            return section
        if upstream.dialect == "responses":
            from outlive.cli.doctor.responses_probe import examine

            examine(upstream, model, timeout, section)
            return section
        examination = _Examination(upstream, section, timeout)
        model = examination.find_model(model)
        if model is not None:
            examination.ask_everything(model)
    except UpstreamFault as error:
        section.add("fail", "connection", f"{error.message}.")
    return section


class _Examination:
    """The questions, in the order in which they build on each other."""

    def __init__(self, upstream: Upstream, section: Section, timeout: float) -> None:
        self._upstream = upstream
        self._section = section
        self._questioner = Questioner(upstream, timeout)
        self._body: Json = {}  # what every question holds: the model, and a limit that works

    def find_model(self, wanted: str | None) -> str | None:
        """Which model to ask: the one that was named, an alias' target, or the first listed that may chat."""
        listed = self._questioner.models()
        if isinstance(listed, list):
            self._section.add("ok", "models", f"{len(listed)} listed")
        elif listed.status in (401, 403):
            self._section.add("fail", "key", f"It refuses the key (status {listed.status}): {listed.error}")
            return None
        elif not self._misses_v1():
            self._section.add("warn", "models", f"It lists none (status {listed.status}): {listed.error}")
        else:
            return None
        names = listed if isinstance(listed, list) else []
        chatting = [name for name in names if not _NO_CHAT.search(name.lower())]
        chosen = wanted or next(iter([*self._upstream.models.values(), *chatting]), None)
        if chosen is None:
            self._section.add("skip", "chat", "There is no model to ask; give --model NAME.")
        return chosen

    def _misses_v1(self) -> bool:
        """Whether the base URL was given without its last part, the commonest slip."""
        base = self._upstream.url + "/v1"
        if self._upstream.url.endswith("/v1") or not isinstance(self._questioner.models(base), list):
            return False
        self._section.add("fail", "url", f"There is nothing at {self._upstream.url}, but there is at {base}.")
        self._section.set["url"] = base
        return True

    def ask_everything(self, model: str) -> None:
        self._body = {"model": model}
        if self._ask_limit(model):
            self._ask_developer()
            self._ask_usage()
            self._ask_continuation()
            self._ask_responses(model)

    def _ask(self, messages: list[Json], **more: object) -> Answer:
        return self._questioner.ask(self._body | {"messages": messages} | more)

    def _ask_limit(self, model: str) -> bool:
        """Which name of the token limit is honoured; the configured one is asked first."""
        configured = self._upstream.max_tokens_field
        other = "max_tokens" if configured == "max_completion_tokens" else "max_completion_tokens"
        answers: dict[str, Answer] = {}
        for field in (configured, other):
            answer = answers[field] = self._ask(_COUNT, **{field: MOST_TOKENS})
            if not answer.refused and not answer.endless:
                self._body[field] = MOST_TOKENS
                self._section.add("ok", "chat", f"{model} answers, and honours {field}")
                if field != configured:
                    why = "refuses" if answers[configured].refused else "ignores"
                    self._section.add("warn", "max_tokens_field", f"It {why} {configured}.")
                    self._section.set["max_tokens_field"] = field
                return True
        if all(answer.refused for answer in answers.values()):
            first = answers[configured]
            self._section.add("fail", "chat", f"{model} does not answer (status {first.status}): {first.error}")
            return False
        self._section.add("warn", "max_tokens_field", "It honours no limit: max_output_tokens will have no effect.")
        return True

    def _ask_developer(self) -> None:
        answer = self._ask([{"role": "developer", "content": _HINT}, _ASK])
        heard = _WORD in answer.text.lower()
        if not answer.refused and not heard:
            # A weak model, or one that only thought, may not say it in any role; then nothing is known.
            system = self._ask([{"role": "system", "content": _HINT}, _ASK])
            dropped = _WORD in system.text.lower()
        else:
            dropped = False
        if not answer.refused and not dropped:
            self._section.add("ok", "developer role", "understood" if heard else "accepted")
            return
        fault = "refused" if answer.refused else "accepted, but not heeded"
        if self._upstream.developer_role:
            self._section.add("warn", "developer role", f"It is {fault}.")
            self._section.set["developer_role"] = False
        else:
            self._section.add("ok", "developer role", f"{fault}, and not used")

    def _ask_usage(self) -> None:
        answer = self._ask([_ASK], stream_options={"include_usage": True})
        if answer.refused:
            self._report("stream_options", False, f"It refuses them: {answer.error}")
        elif answer.usage is None:
            self._section.add(
                "warn", "stream_options", "They are accepted, but no usage is sent: tokens are not counted."
            )
        else:
            self._report("stream_options", True, "Usage is sent.")

    def _ask_responses(self, model: str) -> None:
        """Whether it speaks the other dialect too; that it does not is no news."""
        if self._questioner.responds({"model": model, "input": "Hello", "max_output_tokens": MOST_TOKENS}):
            detail = 'It speaks the Responses API too: dialect = "responses" would use its own tools and reasoning.'
            self._section.add("ok", "responses", detail)

    def _report(self, key: str, found: bool, detail: str) -> None:
        """A switch that should be as it was found."""
        if getattr(self._upstream, key) == found:
            self._section.add("ok", key, detail if found else detail + " They are not used.")
        else:
            self._section.add("warn", key, detail)
            self._section.set[key] = found

    def _ask_continuation(self) -> None:
        """Whether an interrupted answer can go on, and by which of the dialects."""
        configured = self._upstream.continuation
        modes: list[ContinuationMode] = ["prefill", "continue_final_message", "prefix"]
        modes.sort(key=lambda mode: mode != configured)
        works = next((mode for mode in modes if self._continues(mode)), "none")
        if works == configured:
            detail = "Interrupted answers cannot go on." if works == "none" else f"Interrupted answers go on ({works})."
            self._section.add("ok", "continuation", detail)
            return
        found = "no answer went on where it was cut" if works == "none" else f"{works} works"
        self._section.add("warn", "continuation", f"It is set to {configured}, but {found}.")
        self._section.set["continuation"] = works

    def _continues(self, mode: ContinuationMode) -> bool:
        cut: Json = {"role": "assistant", "content": _CUT}
        more: Json = {}
        if mode == "prefix":
            cut["prefix"] = True
        elif mode == "continue_final_message":
            more = {"continue_final_message": True, "add_generation_prompt": False}
        answer = self._ask([_CUT_ASK, cut], **more)
        return not answer.refused and answer.text.startswith(_REST)
