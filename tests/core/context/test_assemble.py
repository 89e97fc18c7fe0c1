"""Assembled contexts have no trace of earlier aborts: every call has its output."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, assemble, find_stray_output, finish_calls
from outlive.core.events import Json


def user(text: str, item_id: str | None = None) -> Json:
    return {"type": "message", "id": item_id, "role": "user", "content": text}


def call(call_id: str, status: str = "completed", type_: str = "function_call", item_id: str | None = None) -> Json:
    return {"type": type_, "id": item_id, "call_id": call_id, "name": "f", "arguments": "{}", "status": status}


def output(call_id: str, text: str = "done", type_: str = "function_call_output") -> Json:
    return {"type": type_, "call_id": call_id, "output": text}


def placeholder(call_id: str, type_: str = "function_call_output") -> Json:
    return {"type": type_, "call_id": call_id, "output": PLACEHOLDER_OUTPUT}


def test_history_comes_before_input() -> None:
    assert assemble([user("a")], [user("b")]) == [user("a"), user("b")]


def test_an_output_in_the_input_answers_a_call_in_history() -> None:
    assert assemble([user("a"), call("1")], [output("1")]) == [user("a"), call("1"), output("1")]


def test_an_unfinished_call_without_an_output_is_left_out() -> None:
    for status in ("in_progress", "incomplete"):
        assert assemble([user("a"), call("1", status)], [user("b")]) == [user("a"), user("b")]


def test_a_call_with_an_output_is_sent_as_completed_whatever_its_status() -> None:
    for kind in ("function_call", "custom_tool_call", "computer_call", "shell_call", "apply_patch_call"):
        answer = output("1", type_=f"{kind}_output")
        for status in ("in_progress", "incomplete"):
            begun, whole = call("1", status, kind), call("1", "completed", kind)
            assert assemble([], [user("a"), begun, answer]) == [user("a"), whole, answer]
            assert assemble([user("a"), begun], [answer]) == [user("a"), whole, answer]


def test_the_callers_own_calls_are_finished_and_get_a_placeholder() -> None:
    for status in ("in_progress", "incomplete"):
        assert assemble([], finish_calls([user("a"), call("1", status)])) == [user("a"), call("1"), placeholder("1")]


def test_an_unanswered_call_gets_a_placeholder() -> None:
    assert assemble([user("a"), call("1")], [user("b")]) == [user("a"), call("1"), placeholder("1"), user("b")]
    assert assemble([], [user("a"), call("1")]) == [user("a"), call("1"), placeholder("1")]
    custom = call("1", type_="custom_tool_call")
    assert assemble([custom], []) == [custom, placeholder("1", "custom_tool_call_output")]


def test_an_output_without_its_call_is_left_out() -> None:
    assert assemble([output("1"), user("a")], [output("2")]) == [user("a")]
    assert assemble([], [{"type": "local_shell_call_output", "output": ""}]) == []


def test_a_second_output_is_left_out() -> None:
    assert assemble([call("1"), output("1")], [output("1", "again")]) == [call("1"), output("1")]


def test_parallel_calls_stay_together_before_their_outputs() -> None:
    items = [call("1"), call("2"), output("2"), output("1")]
    assert assemble(items, []) == [call("1"), call("2"), output("1"), output("2")]
    assert assemble([call("1"), call("2")], [output("2")]) == [call("1"), call("2"), placeholder("1"), output("2")]


def test_model_text_between_parallel_calls_stays_between_them() -> None:
    thought = {"type": "reasoning", "id": "rs_2", "summary": []}
    word = {"type": "message", "id": "msg_2", "role": "assistant", "content": "and"}
    turn = [call("1"), thought, word, call("2")]
    assert assemble(turn, [output("1"), output("2")]) == [*turn, output("1"), output("2")]
    assert assemble(turn, [output("2")]) == [call("1"), placeholder("1"), thought, word, call("2"), output("2")]
    apart = [call("1"), output("1"), thought, call("2"), output("2")]
    assert assemble(apart, []) == apart
    searched = [call("1"), {"type": "web_search_call", "id": "ws_1"}, word]
    assert assemble(searched, [output("1")])[-1] == output("1")
    assert len(assemble(searched, [output("1")])) == 4


def test_messages_between_a_call_and_its_output_stand_before_the_turn_of_the_call() -> None:
    """As Vercel's SDK sends the steps of a run in a conversation: the question again, and all outputs again."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    history = [user("q"), thought, call("1")]
    context = assemble(history, [user("q"), output("1")])
    assert context == [user("q"), user("q"), thought, call("1"), output("1")]
    history += [user("q"), output("1"), call("2")]
    second = assemble(history, [user("q"), output("1"), output("2")])
    assert second == [*context, user("q"), call("2"), output("2")]
    both = [call("1"), call("2"), user("a"), output("2"), user("b"), output("1")]
    assert assemble(both, []) == [user("a"), user("b"), call("1"), call("2"), output("1"), output("2")]


def test_messages_behind_a_call_stay_there_when_its_output_came_first_or_much_later() -> None:
    assert assemble([call("1")], [output("1"), user("b")]) == [call("1"), output("1"), user("b")]
    answered = {"type": "message", "role": "assistant", "content": "fine"}
    behind = assemble([call("1"), output("1"), user("never mind"), answered], [])
    assert behind == [call("1"), output("1"), user("never mind"), answered]


def test_an_output_after_a_later_turn_stands_last_behind_a_copy_of_its_call() -> None:
    """Async tools, partly answered parallel calls and slow approvals: the model is to answer the new output."""
    meanwhile = [user("meanwhile"), {"type": "message", "role": "assistant", "content": "I wait."}]
    copy = call("1", item_id="fc_1_late")  # no two items of a request may have one id
    begun = [user("q"), call("1", item_id="fc_1")]
    late = assemble([*begun, *meanwhile], [output("1")])
    assert late == [*begun, placeholder("1"), *meanwhile, copy, output("1")]
    answered = {"type": "message", "role": "assistant", "content": "Here."}
    assert assemble([*begun, *meanwhile, output("1"), answered], [user("r")]) == [*late, answered, user("r")]
    waited = assemble([*begun, *meanwhile], [user("now?"), output("1")])
    assert waited == [*begun, placeholder("1"), *meanwhile, user("now?"), copy, output("1")]


def test_an_output_of_one_of_two_parallel_calls_may_come_a_turn_later() -> None:
    word = {"type": "message", "role": "assistant", "content": "One is there."}
    copy = call("2")
    first = [call("1"), call("2"), output("1")]
    late = assemble([*first, word], [output("2")])
    assert late == [call("1"), call("2"), output("1"), placeholder("2"), word, copy, output("2")]
    screen = {**call("2", type_="odd_call"), "id": "x"}
    shot = {"type": "odd_call_output", "call_id": "2"}
    moved = {**screen, "id": "x_late"}
    made_up = placeholder("2", "odd_call_output")
    late = assemble([call("1"), screen, output("1"), word], [shot])
    assert late == [call("1"), screen, output("1"), made_up, word, moved, shot]


def test_late_outputs_of_several_calls_stand_behind_all_their_calls() -> None:
    word = {"type": "message", "role": "assistant", "content": "Later, then."}
    late = assemble([call("1"), call("2"), user("wait"), word, call("3")], [output("1"), output("3"), output("2")])
    assert [item.get("call_id") for item in late[-6:]] == ["3", "1", "2", "3", "1", "2"]
    assert [item["type"] for item in late[-6:]] == ["function_call"] * 3 + ["function_call_output"] * 3


def test_calls_one_after_the_other_stay_apart() -> None:
    items = [call("1"), output("1"), call("2"), output("2")]
    assert assemble(items, []) == items


def test_a_late_output_stands_behind_its_call() -> None:
    assert assemble([call("1"), user("wait")], [output("1")]) == [user("wait"), call("1"), output("1")]


def test_call_ids_used_again_pair_with_the_nearest_call() -> None:
    items = [call("1"), user("stop"), call("1"), output("1", "second")]
    assert assemble(items, []) == [call("1"), placeholder("1"), user("stop"), call("1"), output("1", "second")]


def test_other_kinds_of_calls_pair_by_their_call_id() -> None:
    screen = call("1", type_="computer_call")
    shot: Json = {"type": "computer_call_output", "call_id": "1", "output": {"type": "computer_screenshot"}}
    assert assemble([screen], [shot]) == [screen, shot]


def test_every_known_call_gets_a_placeholder_of_its_own_form() -> None:
    for kind in ("computer_call", "shell_call", "local_shell_call", "apply_patch_call"):
        context = assemble([call("1", type_=kind)], [user("a")])
        assert [item["type"] for item in context] == [kind, f"{kind}_output", "message"]
        assert context[1]["call_id"] == "1"
    searched, found, _ = assemble([call("1", type_="tool_search_call")], [user("a")])
    assert (searched["type"], found["type"], found["call_id"]) == ("tool_search_call", "tool_search_output", "1")
    assert found["tools"] == []


def test_items_of_tools_that_the_models_server_runs_stay_as_they_came() -> None:
    """A program calls functions of the client while it runs, and a hosted search has no `call_id`."""
    search: Json = {"type": "tool_search_call", "id": "tsc_1", "call_id": None, "execution": "server", "arguments": {}}
    found: Json = {"type": "tool_search_output", "id": "tso_1", "call_id": None, "execution": "server", "tools": []}
    program: Json = {"type": "program", "id": "prog_1", "call_id": "p", "code": "f()", "fingerprint": "x"}
    ran: Json = {"type": "program_output", "id": "po_1", "call_id": "p", "result": "1", "status": "completed"}
    asked = [user("q"), search, found, program, call("1")]
    assert assemble(asked, [output("1")]) == [*asked, output("1")]
    assert assemble([*asked, output("1"), ran], [user("r")]) == [*asked, output("1"), ran, user("r")]
    assert find_stray_output([], [search, found, ran]) is None


def test_an_unanswered_call_of_an_unknown_kind_gets_a_placeholder() -> None:
    odd = call("1", type_="acme:search")
    assert assemble([odd], [user("a")]) == [odd, placeholder("1", "acme:search_output"), user("a")]


def test_an_item_given_again_is_there_once() -> None:
    first = user("a", "msg_1")
    assert assemble([first], [user("changed", "msg_1"), user("b", "msg_2")]) == [first, user("b", "msg_2")]


def test_a_reference_to_a_present_item_is_dropped() -> None:
    first = user("a", "msg_1")
    here, elsewhere = {"type": "item_reference", "id": "msg_1"}, {"type": "item_reference", "id": "msg_2"}
    assert assemble([first], [here, elsewhere]) == [first, elsewhere]


def test_items_without_ids_are_not_repeats() -> None:
    assert assemble([user("a")], [user("a")]) == [user("a"), user("a")]


kinds = st.sampled_from(["function_call", "custom_tool_call", "computer_call"])
call_ids = st.sampled_from(["1", "2", "3"])
items = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from("ab"), st.sampled_from([None, "msg_1", "msg_2"])),
        st.builds(call, call_ids, st.sampled_from(["completed", "in_progress", "incomplete"]), kinds),
        st.builds(output, call_ids, st.just("x"), kinds.map(lambda kind: f"{kind}_output")),
    ),
    max_size=20,
)


@given(items, items)
def test_every_group_of_calls_is_followed_by_its_outputs(history: list[Json], input: list[Json]) -> None:
    context = assemble(history, input)
    asked: list[str] = []
    answering = False
    for item in [*context, user("end")]:
        if item["type"].endswith("_output"):
            assert asked and item["call_id"] == asked.pop(0)
            answering = True
        elif "call_id" in item:
            assert not (answering and asked)
            assert item["status"] == "completed"
            asked.append(item["call_id"])
            answering = False
        else:
            assert not asked
    ids = [item["id"] for item in context if item.get("id")]
    assert len(ids) == len(set(ids))


@given(items, items)
def test_assembling_again_changes_nothing(history: list[Json], input: list[Json]) -> None:
    context = assemble(history, input)
    assert assemble(context, []) == context
    assert assemble(context[:3], context[3:]) == context


@given(items, items)
def test_messages_are_never_lost_or_reordered(history: list[Json], input: list[Json]) -> None:
    seen: set[str] = set()
    expected = []
    for item in (*history, *input):
        if item["type"] == "message" and (item["id"] is None or item["id"] not in seen):
            expected.append(item)
            seen.add(item["id"])
    assert [item for item in assemble(history, input) if item["type"] == "message"] == expected


def test_cost_is_linear() -> None:
    def cost(count: int) -> float:
        history = [item for n in range(count) for item in (user("a", f"msg_{n}"), call(str(n)), output(str(n)))]
        began = time.process_time()
        assemble(history, [])
        return time.process_time() - began

    small = min(cost(2_000) for _ in range(5))
    assert min(cost(20_000) for _ in range(3)) < 40 * max(small, 0.001)


def test_an_output_is_stray_only_when_no_call_at_all_was_made() -> None:
    assert find_stray_output([user("a"), call("1")], [user("b"), output("1")]) is None
    assert find_stray_output([call("1", "incomplete")], [output("1")]) is None  # its call was cut off (D6b)
    assert find_stray_output([], [call("1"), output("1")]) is None
    assert find_stray_output([call("1")], [user("b"), output("2")]) == 1
    assert find_stray_output([], [{"type": "function_call_output", "output": ""}]) == 0
