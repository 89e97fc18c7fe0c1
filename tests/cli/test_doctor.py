"""`outlive doctor`: findings about settings, database, server, and upstreams of every dialect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outlive.cli.doctor.probe import probe
from outlive.cli.terminal import Section
from outlive.ports.backend import Upstream
from tests.cli.conftest import Run
from tests.cli.servers import FakeChatServer, FakeOutlive
from tests.support.anthropic_upstream import AnthropicUpstream
from tests.support.anthropic_upstream import say as anthropic_say
from tests.support.fake_server import serving
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.responses_upstream import say as responses_say
from tests.support.upstream import Refuse


def examine(fake: FakeChatServer, model: str | None = None, path: str = "/v1", **fields: Any) -> Section:
    with serving(fake) as url:
        return probe(Upstream(name="x", url=url + path, **fields), model, 10.0)


def states(section: Section) -> dict[str, str]:
    return {finding.name: finding.state for finding in section.findings}


def test_a_correctly_configured_upstream_gets_no_advice() -> None:
    section = examine(FakeChatServer(key="k-1", continues="prefill"), key="k-1", continuation="prefill")
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
        ({"heeds": {"system"}}, {}, {"developer_role": False}),
        ({"heeds": set()}, {}, {}),
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
    section = examine(FakeChatServer(**quirks), **fields)
    assert section.set == advice
    assert not section.failed


def test_an_upstream_without_usage_is_reported() -> None:
    assert states(examine(FakeChatServer(sends_usage=False)))["stream_options"] == "warn"


def test_an_upstream_that_ignores_every_limit_is_reported_and_its_answers_are_cut() -> None:
    section = examine(FakeChatServer(honours=set()))
    assert states(section)["max_tokens_field"] == "warn"
    assert section.set == {}


def test_questions_are_small_and_go_to_a_chat_model() -> None:
    fake = FakeChatServer()
    examine(fake, query={"api-version": "7"})
    assert {body["model"] for body in fake.bodies} == {"tiny"}
    assert all(body["stream"] and body["max_completion_tokens"] == 16 for body in fake.bodies)
    assert all(path.endswith("?api-version=7") for path in fake.paths)


def test_a_given_model_is_asked() -> None:
    fake = FakeChatServer(models=None)
    section = examine(fake, "mine")
    assert {body["model"] for body in fake.bodies} == {"mine"}
    assert states(section)["models"] == "warn"
    assert states(examine(FakeChatServer(models=[])))["chat"] == "skip"


def test_the_target_of_an_alias_is_asked() -> None:
    fake = FakeChatServer(models=[])
    examine(fake, models={"fast": "big"})
    assert {body["model"] for body in fake.bodies} == {"big"}


def test_a_refused_key_is_reported_without_the_key() -> None:
    section = examine(FakeChatServer(key="right"), key="s3cret-wrong-key")
    assert states(section) == {"key": "fail"}
    assert "s3cret" not in section.findings[0].detail
    assert "***" in section.findings[0].detail


def test_the_key_is_sent_in_the_configured_header() -> None:
    section = examine(FakeChatServer(key="k-1"), key="k-1", key_header="api-key")
    assert not section.failed


def test_a_base_url_without_v1_is_reported() -> None:
    section = examine(FakeChatServer(), path="")
    assert section.failed
    assert section.set["url"].endswith("/v1")


def test_a_failing_upstream_is_reported_in_its_own_words() -> None:
    section = examine(FakeChatServer(broken="Out of memory with key s3cret-key"), key="s3cret-key")
    assert section.findings[-1].detail == (
        "tiny does not answer. The model's server answered 500: Out of memory with key ***"
    )


def test_an_unreachable_upstream_is_reported() -> None:
    section = probe(Upstream(name="x", url="http://127.0.0.1:9/v1"), None, 1.0)
    assert [(finding.state, finding.name) for finding in section.findings] == [("fail", "connection")]


# -- the command


def test_the_doctor_checks_settings_database_server_and_upstream(
    run: Run, fake: FakeOutlive, server: str, tmp_path: Path
) -> None:
    with serving(FakeChatServer(key="s3cret-key", continues="prefill")) as url:
        (tmp_path / "key").write_text("s3cret-key")
        port = server.rpartition(":")[2]
        words = ("doctor", "--port", port, "--upstream", f"{url}/v1", "--upstream-key-file", "key")
        result = run(*words)
        as_json = run(*words, "--json", "--model", "tiny")
    assert result.exit_code == 0
    assert "s3cret" not in result.output + as_json.output
    for line in (
        "✓ settings: 1 upstreams",
        "✓ fsync: ",
        "✓ ready: ",
        "✓ chat: tiny answers",
        "! continuation: ",
    ):
        assert line in result.stdout
    assert '    [upstreams.upstream]\n    continuation = "prefill"\n' in result.stdout
    report = json.loads(as_json.stdout)
    assert report["ok"] is True
    assert [section["title"].split()[0] for section in report["sections"]] == [
        "Settings",
        "Database",
        "Libraries",
        "Server",
        "Upstream",
    ]
    assert report["sections"][-1]["set"] == {"continuation": "prefill"}


def test_wrong_settings_are_reported(run: Run) -> None:
    result = run("doctor", "--json", "--port", "x")
    assert result.exit_code == 1
    (section,) = json.loads(result.stdout)["sections"]
    assert section["findings"][0]["detail"] == "--port must be a whole number from 0 to 65535, not 'x'."


def test_a_file_that_is_not_a_database_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "o.db").write_text("not a database")
    result = run("doctor", "--no-probe", "--port", "9", "--database", "sqlite:///o.db")
    assert result.exit_code == 1
    assert "o.db is not a SQLite database" in result.stdout


def test_a_missing_server_is_no_failure(run: Run) -> None:
    result = run("doctor", "--no-probe", "--port", "9", "--upstream", "ollama")
    assert result.exit_code == 0
    assert "- server: None is running at http://127.0.0.1:9." in result.stdout
    assert "Upstream" not in result.stdout


# -- upstreams that speak the Responses API


def test_a_chat_upstream_that_speaks_responses_too_is_reported() -> None:
    assert states(examine(FakeChatServer(responds=True)))["responses"] == "ok"
    assert "responses" not in states(examine(FakeChatServer()))


def test_a_responses_upstream_is_probed_in_its_dialect() -> None:
    with ResponsesUpstream() as upstream:
        upstream.models = ["gpt-test"]
        upstream.on("gpt-test", responses_say("five"))
        given = Upstream(name="x", url=upstream.url, dialect="responses", reasoning_input="encrypted", key="k")
        section = probe(given, None, 10.0)
    assert section.set == {}
    found = states(section)
    assert found.pop("input_tokens") == "warn"  # its script is not a number
    assert found == dict.fromkeys(("models", "responses", "developer role", "reasoning", "continuation"), "ok")
    assert upstream.refusals == []
    asked = [call.body for call in upstream.calls() if call.path.endswith("/responses")]
    assert all(body["max_output_tokens"] <= 16 for body in asked)


def test_quirks_of_a_responses_upstream_are_found() -> None:
    with ResponsesUpstream() as upstream:  # as strict as OpenAI: plain reasoning is refused
        upstream.on("m", responses_say(", five"))
        section = probe(Upstream(name="x", url=upstream.url, dialect="responses", developer_role=False), "m", 10.0)
    assert section.set == {"reasoning_input": "encrypted", "continuation": "prefill"}


def test_a_chat_server_configured_as_responses_gets_the_advice_to_use_chat() -> None:
    with serving(FakeChatServer()) as url:
        section = probe(Upstream(name="x", url=url + "/v1", dialect="responses"), None, 10.0)
    assert states(section) == {"models": "ok", "responses": "fail"}
    assert section.set == {"dialect": "chat"}


@pytest.mark.parametrize("lost", [False, True])
def test_reattach_is_tried_and_reported(lost: bool) -> None:
    with ResponsesUpstream() as upstream:
        upstream.on("m", responses_say("five"))
        upstream.lost = {"resp_bg1"} if lost else set()
        given = Upstream(name="x", url=upstream.url, dialect="responses", reasoning_input="encrypted", reattach=True)
        section = probe(given, "m", 10.0)
        assert states(section)["reattach"] == ("fail" if lost else "ok")
        assert section.set == ({"reattach": False} if lost else {})
        assert upstream.deleted == ([] if lost else ["resp_bg1"])


# -- upstreams that speak Anthropic's Messages API


def test_an_anthropic_upstream_is_probed_in_its_dialect() -> None:
    with AnthropicUpstream() as claude:
        claude.models = ["claude-test"]
        claude.on("claude-test", anthropic_say("five"))
        section = probe(Upstream(name="x", url=claude.url, dialect="anthropic", key="k"), None, 10.0)
    assert section.set == {}
    assert states(section) == dict.fromkeys(("models", "messages", "thinking", "continuation", "count_tokens"), "ok")
    assert all(call.body["max_tokens"] <= 16 for call in claude.calls() if "max_tokens" in call.body)


def test_quirks_of_an_anthropic_upstream_are_found() -> None:
    with AnthropicUpstream() as claude:
        claude.models = ["claude-sonnet-4-5"]
        claude.on("claude-sonnet-4-5", anthropic_say(", five"))
        given = Upstream(name="x", url=claude.url, dialect="anthropic", thinking="adaptive")
        section = probe(given, None, 10.0)
    assert section.set == {"thinking": "budget", "continuation": "prefill"}


def test_an_anthropic_upstream_that_refuses_the_key_is_reported() -> None:
    with AnthropicUpstream() as claude:
        claude.models = []
        given = Upstream(name="x", url=claude.url, dialect="anthropic", key="k-secret-1")
        claude.on("m", [Refuse(401, {"type": "error", "error": {"type": "authentication_error", "message": "no"}})])
        section = probe(given, "m", 10.0)
        without_model = probe(given, None, 10.0)
    assert states(section) == {"models": "warn", "messages": "fail"}
    assert "refused this server's key" in section.findings[1].detail
    assert states(without_model) == {"models": "warn", "messages": "skip"}
