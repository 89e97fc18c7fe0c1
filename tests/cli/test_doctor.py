"""`outlive doctor`: what it finds in the settings, the disk, the server, and in upstreams of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlive.cli.doctor.findings import Section
from outlive.cli.doctor.probe import probe
from outlive.ports.backend import Upstream
from tests.cli.conftest import Run
from tests.cli.servers import FakeOutlive, FakeUpstream, serving
from tests.support.anthropic_upstream import AnthropicUpstream
from tests.support.anthropic_upstream import say as anthropic_say
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.responses_upstream import say as responses_say
from tests.support.upstream import Refuse


def examine(fake: FakeUpstream, model: str | None = None, path: str = "/v1", **fields: Any) -> Section:
    with serving(fake) as url:
        return probe(Upstream(name="x", url=url + path, **fields), model, 10.0)


def states(section: Section) -> dict[str, str]:
    return {finding.name: finding.state for finding in section.findings}


def test_an_upstream_that_is_as_configured_gets_no_advice() -> None:
    section = examine(FakeUpstream(key="k-1", continues="prefill"), key="k-1", continuation="prefill")
    assert section.set == {}
    assert set(states(section).values()) == {"ok"}
    assert set(states(section)) == {"models", "chat", "developer role", "stream_options", "continuation"}


@pytest.mark.parametrize(
    ("quirks", "fields", "advice"),
    [
        ({"refuses": {"max_completion_tokens"}}, {}, {"max_tokens_field": "max_tokens"}),
        ({"honours": {"max_tokens"}}, {}, {"max_tokens_field": "max_tokens"}),
        (
            {"refuses": {"max_tokens"}},
            {"max_tokens_field": "max_tokens"},
            {"max_tokens_field": "max_completion_tokens"},
        ),
        ({"refuses": {"developer"}}, {}, {"developer_role": False}),
        ({"hears": {"system"}}, {}, {"developer_role": False}),
        ({"hears": set()}, {}, {}),
        ({"refuses": {"developer"}}, {"developer_role": False}, {}),
        ({"refuses": {"stream_options"}}, {}, {"stream_options": False}),
        ({"refuses": {"stream_options"}}, {"stream_options": False}, {}),
        ({}, {"stream_options": False}, {"stream_options": True}),
        ({"continues": "prefill"}, {}, {"continuation": "prefill"}),
        ({"continues": "continue_final_message"}, {}, {"continuation": "continue_final_message"}),
        ({"continues": "prefix"}, {}, {"continuation": "prefix"}),
        ({"continues": "none"}, {"continuation": "prefill"}, {"continuation": "none"}),
    ],
)
def test_quirks_are_found_and_turned_into_advice(
    quirks: dict[str, Any], fields: dict[str, Any], advice: dict[str, Any]
) -> None:
    section = examine(FakeUpstream(**quirks), **fields)
    assert section.set == advice
    assert not section.failed


def test_an_upstream_that_counts_no_tokens_is_told() -> None:
    assert states(examine(FakeUpstream(sends_usage=False)))["stream_options"] == "warn"


def test_an_upstream_that_keeps_no_limit_is_told_and_not_listened_to_for_ever() -> None:
    section = examine(FakeUpstream(honours=set()))
    assert states(section)["max_tokens_field"] == "warn"
    assert section.set == {}


def test_questions_are_small_and_go_to_a_model_that_chats() -> None:
    fake = FakeUpstream()
    examine(fake, query={"api-version": "7"})
    assert {body["model"] for body in fake.bodies} == {"tiny"}
    assert all(body["stream"] and body["max_completion_tokens"] == 16 for body in fake.bodies)
    assert all(path.endswith("?api-version=7") for path in fake.paths)


def test_the_model_that_was_named_is_asked() -> None:
    fake = FakeUpstream(models=None)
    section = examine(fake, "mine")
    assert {body["model"] for body in fake.bodies} == {"mine"}
    assert states(section)["models"] == "warn"
    assert states(examine(FakeUpstream(models=[])))["chat"] == "skip"


def test_an_alias_names_a_model_to_ask() -> None:
    fake = FakeUpstream(models=[])
    examine(fake, models={"fast": "big"})
    assert {body["model"] for body in fake.bodies} == {"big"}


def test_a_refused_key_is_said_and_never_shown() -> None:
    section = examine(FakeUpstream(key="right"), key="s3cret-wrong-key")
    assert states(section) == {"key": "fail"}
    assert "s3cret" not in section.findings[0].detail
    assert "***" in section.findings[0].detail


def test_the_key_goes_in_the_header_that_was_chosen() -> None:
    section = examine(FakeUpstream(key="k-1"), key="k-1", key_header="api-key")
    assert not section.failed


def test_a_base_url_without_v1_is_noticed() -> None:
    section = examine(FakeUpstream(), path="")
    assert section.failed
    assert section.set["url"].endswith("/v1")


def test_an_upstream_that_fails_is_said_in_its_own_words() -> None:
    section = examine(FakeUpstream(broken="Out of memory with key s3cret-key"), key="s3cret-key")
    assert section.findings[-1].detail == (
        "tiny does not answer. The model's server answered 500: Out of memory with key ***"
    )


def test_an_upstream_that_is_not_there_is_said() -> None:
    section = probe(Upstream(name="x", url="http://127.0.0.1:9/v1"), None, 1.0)
    assert [(finding.state, finding.name) for finding in section.findings] == [("fail", "connection")]


# -- the command


def test_the_doctor_looks_at_everything(run: Run, fake: FakeOutlive, server: str, tmp_path: Path) -> None:
    with serving(FakeUpstream(key="s3cret-key", continues="prefill")) as url:
        (tmp_path / "key").write_text("s3cret-key")
        port = server.rpartition(":")[2]
        words = ("doctor", "--port", port, "--upstream", f"{url}/v1", "--upstream-key-file", "key")
        result = run(*words)
        as_json = run(*words, "--json", "--model", "tiny")
    assert result.exit_code == 0
    assert "s3cret" not in result.output + as_json.output
    for words_found in (
        "✓ settings: 1 upstreams",
        "✓ fsync: ",
        "✓ ready: ",
        "✓ chat: tiny answers",
        "! continuation: ",
    ):
        assert words_found in result.stdout
    assert '    [upstreams.upstream]\n    continuation = "prefill"\n' in result.stdout
    report = json.loads(as_json.stdout)
    assert report["ok"] is True
    assert [section["title"].split()[0] for section in report["sections"]] == [
        "Settings",
        "Database",
        "Server",
        "Upstream",
    ]
    assert report["sections"][-1]["set"] == {"continuation": "prefill"}


def test_wrong_settings_are_a_finding(run: Run) -> None:
    result = run("doctor", "--json", "--port", "x")
    assert result.exit_code == 1
    (section,) = json.loads(result.stdout)["sections"]
    assert section["findings"][0]["detail"] == "--port must be a whole number from 0 to 65535, not 'x'."


def test_a_file_that_is_no_database_is_a_finding(run: Run, tmp_path: Path) -> None:
    (tmp_path / "o.db").write_text("this is a letter to my aunt")
    result = run("doctor", "--no-probe", "--port", "9", "--database", "sqlite:///o.db")
    assert result.exit_code == 1
    assert "o.db is not a SQLite database" in result.stdout


def test_no_server_is_no_fault(run: Run) -> None:
    result = run("doctor", "--no-probe", "--port", "9", "--upstream", "ollama")
    assert result.exit_code == 0
    assert "- server: None is running at http://127.0.0.1:9." in result.stdout
    assert "Upstream" not in result.stdout


# -- upstreams that speak the Responses API


def test_that_a_chat_upstream_speaks_responses_too_is_told() -> None:
    assert states(examine(FakeUpstream(responds=True)))["responses"] == "ok"
    assert "responses" not in states(examine(FakeUpstream()))


def test_a_responses_upstream_is_asked_in_its_own_dialect() -> None:
    with ResponsesUpstream() as there:
        there.models = ["gpt-test"]
        there.on("gpt-test", responses_say("five"))
        given = Upstream(name="x", url=there.url, dialect="responses", reasoning_input="encrypted", key="k")
        section = probe(given, None, 10.0)
    assert section.set == {}
    found = states(section)
    assert found.pop("input_tokens") == "warn"  # its script is no number
    assert found == dict.fromkeys(("models", "responses", "developer role", "reasoning", "continuation"), "ok")
    assert there.refusals == []
    asked = [call.body for call in there.calls() if call.path.endswith("/responses")]
    assert all(body["max_output_tokens"] <= 16 for body in asked)


def test_quirks_of_a_responses_upstream_are_found() -> None:
    with ResponsesUpstream() as there:  # as strict as OpenAI: plain reasoning is refused
        there.on("m", responses_say(", five"))
        section = probe(Upstream(name="x", url=there.url, dialect="responses", developer_role=False), "m", 10.0)
    assert section.set == {"reasoning_input": "encrypted", "continuation": "prefill"}


def test_one_without_responses_is_said_to_be_a_chat_upstream() -> None:
    with serving(FakeUpstream()) as url:
        section = probe(Upstream(name="x", url=url + "/v1", dialect="responses"), None, 10.0)
    assert states(section) == {"models": "ok", "responses": "fail"}
    assert section.set == {"dialect": "chat"}


@pytest.mark.parametrize("lost", [False, True])
def test_whether_runs_can_be_taken_up_again_is_tried(lost: bool) -> None:
    with ResponsesUpstream() as there:
        there.on("m", responses_say("five"))
        there.lost = {"resp_bg1"} if lost else set()
        given = Upstream(name="x", url=there.url, dialect="responses", reasoning_input="encrypted", reattach=True)
        section = probe(given, "m", 10.0)
        assert states(section)["reattach"] == ("fail" if lost else "ok")
        assert section.set == ({"reattach": False} if lost else {})
        assert there.deleted == ([] if lost else ["resp_bg1"])


# -- upstreams that speak Anthropic's Messages API


def test_an_upstream_of_another_dialect_is_asked_in_it() -> None:
    with AnthropicUpstream() as claude:
        claude.models = ["claude-test"]
        claude.on("claude-test", anthropic_say("five"))
        section = probe(Upstream(name="x", url=claude.url, dialect="anthropic", key="k"), None, 10.0)
    assert section.set == {}
    assert states(section) == dict.fromkeys(("models", "messages", "thinking", "continuation", "count_tokens"), "ok")
    assert all(call.body["max_tokens"] <= 16 for call in claude.calls() if "max_tokens" in call.body)


def test_its_quirks_are_found_too() -> None:
    with AnthropicUpstream() as claude:
        claude.models = ["claude-sonnet-4-5"]
        claude.on("claude-sonnet-4-5", anthropic_say(", five"))
        given = Upstream(name="x", url=claude.url, dialect="anthropic", thinking="adaptive")
        section = probe(given, None, 10.0)
    assert section.set == {"thinking": "budget", "continuation": "prefill"}


def test_one_that_does_not_answer_says_why() -> None:
    with AnthropicUpstream() as claude:
        claude.models = []
        given = Upstream(name="x", url=claude.url, dialect="anthropic", key="k-secret-1")
        claude.on("m", [Refuse(401, {"type": "error", "error": {"type": "authentication_error", "message": "no"}})])
        section = probe(given, "m", 10.0)
        nobody = probe(given, None, 10.0)
    assert states(section) == {"models": "warn", "messages": "fail"}
    assert "refused this server's key" in section.findings[1].detail
    assert states(nobody) == {"models": "warn", "messages": "skip"}
