"""The setting `database`: check it, and show it without its password."""

import re
from pathlib import Path

from outlive.core.errors import require

SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")

_PASSWORD = re.compile(r"(?<=://)([^/@?#:]*):.*@")
_PASSWORD_FIELD = re.compile(r"([?&](?:password|sslpassword)=)[^&]*")


def is_shared(url: str) -> bool:
    """Return True if several nodes can share the database."""
    return url.startswith(POSTGRES)


def path_of(url: str) -> Path:
    """Return the file of `sqlite:///FILE`."""
    return Path(url.removeprefix(SQLITE))


def show(url: str) -> str:
    """Return the file, or the URL without its password."""
    if not is_shared(url):
        return str(path_of(url).absolute())
    return _PASSWORD_FIELD.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def check(url: str) -> None:
    """Raise SettingsError for a malformed URL or a file that cannot be one. Nothing is opened."""
    written, shared = "The database must be written", "postgresql://USER@HOST/NAME"
    scheme, separator, rest = url.partition("://")
    if separator and scheme.split("+")[0] in ("postgres", "postgresql"):
        require("+" not in scheme, f"{written} {shared}, without a driver's name.")
        require(rest, f"{written} {shared}.")
        return
    name, path = url.removeprefix(SQLITE), path_of(url)
    is_file = name not in (url, "", ":memory:") and "?" not in name and not name.endswith("/")
    require(is_file, f"{written} sqlite:///FILE, or sqlite:////FOLDER/FILE for a full path, or {shared}.")
    missing = f"The folder {path.parent} for the database does not exist; create it, or choose another file."
    require(path.parent.is_dir(), missing)
    require(not path.is_dir(), f"The database {path} is a folder; give the name of a file in it.")
