"""The names of all failpoints, at which `outlive.failpoints` kills a server."""

# What a transaction may commit; each has a point before and one after its commit.
OPERATIONS = (
    *("add items", "admit", "append", "claim", "close", "confirm", "create conversation", "delete"),
    *("delete conversation", "delete expired", "delete item", "erase", "expire", "find secret", "forget keys"),
    *("free dead leases", "mark answered", "pack", "probe", "release", "release leases", "restore"),
    *("save checkpoint", "shrink", "stage", "take over", "update conversation"),
)
POINTS = {
    *("before-call-journaled", "after-call-journaled", "before-output-journaled", "after-output-journaled"),
    *("before-upstream-noted", "between-steps", "after-webhook-sent", "before-commit", "after-commit"),
    *(f"{when}-commit-of-{each.replace(' ', '-')}" for when in ("before", "after") for each in OPERATIONS),
}


def check_point(value: str) -> None:
    """Refuse a value of OUTLIVE_KILL_AT that names no failpoint: its test would wait for a kill that never comes."""
    point, separator, count = value.partition(":")
    assert point in POINTS, f"there is no failpoint {point}"
    assert not separator or (count.isdecimal() and int(count) > 0), f"{value} does not say when to kill"
