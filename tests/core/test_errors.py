"""Errors name whose fault they are, what to do, and the fields of the wire."""

from __future__ import annotations

import inspect

import pytest

from outlive.core import errors
from outlive.core.errors import (
    ClientFault,
    Conflict,
    ConversationLocked,
    InvalidRequest,
    NotFound,
    OutliveError,
    ServerFault,
    StorageUnavailable,
    TooMany,
    UpstreamFault,
)

ALL = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, OutliveError)]


@pytest.mark.parametrize("cls", ALL)
def test_every_error_is_in_the_one_tree_and_says_what_it_is(cls: type[OutliveError]) -> None:
    assert (cls.__doc__ or "").strip()
    assert cls.__mro__[-4] is OutliveError or cls is OutliveError


def test_an_error_without_a_message_speaks_its_docstring() -> None:
    assert str(NotFound()) == NotFound.__doc__
    assert NotFound("gone").message == "gone"


def test_an_error_names_the_field_and_may_have_a_code_of_its_own() -> None:
    error = InvalidRequest("no", param="model", code="model_not_found")
    assert (error.param, error.code) == ("model", "model_not_found")
    assert InvalidRequest("no").code == "invalid_value"
    assert InvalidRequest.code == "invalid_value"


def test_a_locked_conversation_names_the_response_that_holds_it() -> None:
    error = ConversationLocked("conv_1", "resp_1")
    assert "resp_1" in error.message
    assert error.code == "conversation_locked"
    assert error.retry_after == 1


def test_a_reused_key_must_not_be_retried() -> None:
    assert Conflict().should_retry is False
    assert NotFound().should_retry is None


def test_an_upstream_fault_has_the_upstreams_code_status_and_pause() -> None:
    fault = UpstreamFault("busy", code="rate_limit_exceeded", status=429, retry_after=3.0)
    assert (fault.code, fault.status, fault.retryable, fault.retry_after) == ("rate_limit_exceeded", 429, True, 3.0)
    assert UpstreamFault("x").code == "server_error"


def test_an_unavailable_storage_names_the_operation_and_not_the_databases_words() -> None:
    error = StorageUnavailable("append", "disk full")
    assert "append" in error.message
    assert "disk full" not in error.message
    assert error.cause == "disk full"
    assert isinstance(error, ServerFault)


def test_client_faults_and_server_faults_are_distinct() -> None:
    assert issubclass(TooMany, ClientFault)
    assert not issubclass(StorageUnavailable, ClientFault)
    assert not issubclass(UpstreamFault, ClientFault | ServerFault)
