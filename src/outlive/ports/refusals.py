"""Errors with which both databases refuse a request."""

from outlive.core.errors import ClientFault, Conflict, ConversationLocked, InvalidRequest, MustWait, NotFound


def response_not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.")


def conversation_not_found(conversation_id: str | None, param: str | None = None) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id}' not found.", param=param)


def item_not_found(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id}' not found.")


def bad_cursor(after: str) -> InvalidRequest:
    return InvalidRequest(f"There is nothing with id '{after}' in this list to go on from.", param="after")


def refuse(
    refusal: str, detail: str | None = None, *, conversation: str | None = None, parent: str | None = None
) -> ClientFault:
    """Make the error for the reason why a response cannot be admitted."""
    if refusal == "locked":
        return ConversationLocked(conversation or "", detail or "")
    if refusal == "no conversation":
        return conversation_not_found(conversation, param="conversation")
    if refusal == "conflict":
        message = f"The same Idempotency-Key was used with another body, for response {detail}."
        return Conflict(message, param="Idempotency-Key")
    if refusal == "too many branches":
        message = "The ids of these items are in too many branches of this chain. Send the items without ids."
        return InvalidRequest(message, param="input")
    return MustWait() if refusal == "must wait" else _refuse_parent(refusal, detail, parent)


def _refuse_parent(refusal: str, detail: str | None, parent: str | None) -> InvalidRequest:
    subject, param = f"Previous response with id '{parent}'", "previous_response_id"
    if refusal == "parent unfinished":
        message = f"{subject} has not finished (it is {detail}). Wait for it, or cancel it."
        return InvalidRequest(message, param=param, code="response_not_finished")
    if refusal == "parent failed":
        message = f"{subject} failed, so there is nothing to continue from."
        return InvalidRequest(message, param=param, code="previous_response_failed")
    incomplete = refusal == "parent incomplete"
    why = " (an earlier response of its chain was deleted or has expired)" if incomplete else ""
    return InvalidRequest(f"{subject} not found{why}.", param=param, code="previous_response_not_found")
