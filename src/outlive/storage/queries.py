"""SQL files of the adapters: statements by name, and migrations by number."""

import re
from importlib import resources

from outlive.core.errors import SettingsError

SCHEMA_VERSION = 17  # of both databases: the number of their last migration


def load_queries(package: str) -> dict[str, str]:
    """Load the statements of a package's `queries.sql` by name. Each stands under a line `-- name --`."""
    text = resources.files(package).joinpath("queries.sql").read_text()
    parts = re.split(r"^-- (\w+) --$", text, flags=re.M)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def find_migrations(package: str, version: int, database: str) -> list[tuple[int, str]]:
    """Load the migrations that a schema of this version lacks, with their numbers. Raises SettingsError if too new."""
    if version > SCHEMA_VERSION:
        found = f"schema {version}, this one knows {SCHEMA_VERSION}"
        raise SettingsError(f"The {database} was written by a newer Outlive ({found}); use that version.")
    files = (file for file in resources.files(package).joinpath("migrations").iterdir() if file.name.endswith(".sql"))
    numbered = sorted((int(file.name[:4]), file.read_text()) for file in files)
    return [(number, text) for number, text in numbered if number > version]
