"""Parts of content are kept whole, completed where a field has a default, and refused where they cannot be used."""

from __future__ import annotations

import copy

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import check_text, check_value, make_check
from outlive.core.requests.content import Content, Part
from outlive.core.requests.limits import Limits

LIMITS = Limits(max_text=10)
check_part = make_check(Part)
check_content = make_check(Content)

GOOD: list[tuple[Json, Json]] = [
    ({"type": "input_text", "text": "Hi"}, {}),
    ({"type": "input_text", "text": "Hi", "x_vendor": [1]}, {}),
    ({"type": "output_text", "text": "Hi"}, {"annotations": []}),
    ({"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation"}]}, {}),
    ({"type": "refusal", "refusal": "No"}, {}),
    ({"type": "input_image", "image_url": "data:image/png;base64,AAAA" * 3}, {"detail": "auto"}),
    ({"type": "input_image", "image_url": "https://x", "detail": "low"}, {}),
    ({"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"}, {}),
    ({"type": "input_file", "file_url": "https://x"}, {}),
    ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}, {}),
    ({"type": "input_video", "video_url": "https://x"}, {}),
]

BAD: list[tuple[object, str, str]] = [
    ("Hi", "p", "invalid_type"),
    ({}, "p.type", "missing_required_parameter"),
    ({"type": "poem"}, "p.type", "invalid_value"),
    ({"type": 1}, "p.type", "invalid_type"),
    ({"type": "input_text"}, "p.text", "missing_required_parameter"),
    ({"type": "input_text", "text": 1}, "p.text", "invalid_type"),
    ({"type": "input_text", "text": "x" * 11}, "p.text", "string_above_max_length"),
    ({"type": "output_text", "text": "x", "annotations": {}}, "p.annotations", "invalid_type"),
    ({"type": "input_image"}, "p.image_url", "missing_required_parameter"),
    ({"type": "input_image", "image_url": "x", "detail": "tiny"}, "p.detail", "invalid_value"),
    ({"type": "input_image", "file_id": 1}, "p.file_id", "invalid_type"),
    ({"type": "input_file"}, "p", "missing_required_parameter"),
    ({"type": "input_file", "file_id": ""}, "p.file_id", "string_below_min_length"),
    ({"type": "input_audio"}, "p.input_audio", "missing_required_parameter"),
    ({"type": "input_audio", "input_audio": {"data": "x"}}, "p.input_audio.format", "missing_required_parameter"),
    ({"type": "input_video"}, "p.video_url", "missing_required_parameter"),
]


@pytest.mark.parametrize(("part", "added"), GOOD)
def test_a_part_is_kept_whole_and_the_given_one_is_not_changed(part: Json, added: Json) -> None:
    before = copy.deepcopy(part)
    assert check_part(part, LIMITS) == part | added
    assert part == before


@pytest.mark.parametrize(("part", "param", "code"), BAD)
def test_a_part_that_cannot_be_used_is_refused_by_its_field(part: object, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_value(check_part, part, "p", LIMITS)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_content_is_a_list_of_parts() -> None:
    parts = [part for part, _ in GOOD]
    assert len(check_content(parts, LIMITS)) == len(parts)
    with pytest.raises(InvalidRequest) as caught:
        check_value(check_content, [parts[0], {}], "content", LIMITS)
    assert caught.value.param == "content[1].type"
    with pytest.raises(InvalidRequest):
        check_content("Hi", LIMITS)


def test_text_is_measured_in_characters() -> None:
    assert check_text("\N{PILE OF POO}" * 10, LIMITS)
    with pytest.raises(InvalidRequest):
        check_text("\N{PILE OF POO}" * 11, LIMITS)
