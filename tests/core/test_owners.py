"""Owners and their end users, as rows carry them."""

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.owners import SEPARATOR, hide_content, join, split

names = st.text(st.characters(exclude_characters=SEPARATOR), min_size=1)


@given(names, st.none() | names)
def test_what_a_row_carries_splits_into_owner_and_end_user(owner, end_user):
    assert split(join(owner, end_user)) == (owner, end_user)


@given(names, names)
def test_an_end_user_never_has_the_rows_of_its_owner(owner, end_user):
    assert join(owner, end_user) != join(owner, None)


def test_an_admin_sees_codes_and_numbers_of_an_element_and_none_of_its_texts() -> None:
    thing = {
        "id": "resp_1",
        "usage": {"total_tokens": 3},
        "metadata": {"a": "secret"},
        "error": {"code": "server_error", "message": "secret"},
        "incomplete_details": None,
        "a_field_of_a_later_version": "secret",
    }
    hidden = {"metadata": {}, "error": {"code": "server_error", "message": ""}, "incomplete_details": None}
    assert hide_content(thing) == {"id": "resp_1", "usage": {"total_tokens": 3}} | hidden
