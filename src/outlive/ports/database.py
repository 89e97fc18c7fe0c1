"""The port of a database's single statements, which stand in its `queries.sql`."""

from typing import Any, Protocol

Change = tuple[str, tuple[Any, ...]]  # the name of a statement, and its values


class Statements(Protocol):
    """Runs statements, each by its name or whole. `parts` go into its braces: names of columns, say."""

    async def fetch(self, statement: str, *values: Any, **parts: str) -> list[Any]: ...

    async def change(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        """Run a statement that writes, and return the rows that it returns."""

    async def change_all(self, operation: str, changes: list[Change]) -> None:
        """Run statements that write in one transaction."""


class Stored:
    """Base of what is stored by single statements."""

    def __init__(self, database: Statements) -> None:
        self._database = database
