"""All tables of a database, for copying them to another."""

from typing import Any

Row = tuple[Any, ...]

# In the order in which they are copied. A database that stores something elsewhere, or in another form, converts it to
# this form: items are whole, leases have no worker, requests are with the leases, final objects with their responses.
_COLUMNS = {
    "threads": "key root parent fork head hole expired_from used_at",
    "responses": "key id owner status background created_at ended_at hidden conversation expired_at thread first "
    "input_end last runs events format about expires_at snapshot",
    "leases": "response owner background fence attempts notes sealed deadline request",
    "events": "response first count at frames",  # of each response together, from its first on
    "packs": "response first count at block",
    "items": "thread position id response body",
    "conversations": "key id owner created_at used_at hidden expired_at thread running metadata",
    "idempotency": "owner kind key digest target used_at",
    "unanswered": "response owner digest created_at",
    "secrets": "name value",
    "usage": "response owner end_user model upstream ended_at status input_tokens cached_tokens output_tokens "
    "reasoning_tokens estimated_input estimated_output attempts tool_calls responses",
    "owner_policies": "owner policy",
    "tickets": "id owner target expires_at digest",
    "keys": "id owner role acts_for digest created_at expires_at last_used_at revoked_at",
    "audit": "at actor action subject detail",
    "webhook_endpoints": "id owner name url event_types created_at updated_at hint sealed disabled_at",
    "webhook_deliveries": "key id owner endpoint response event created_at give_up_at attempts due_at delivered_at log",
}
TABLES = {table: tuple(columns.split()) for table, columns in _COLUMNS.items()}
