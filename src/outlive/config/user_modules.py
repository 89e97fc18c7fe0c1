"""Import users' modules named in the settings, also from the folder that the server is started in."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from outlive.core.errors import SettingsError, require


def load_module(name: str, where: str) -> ModuleType:
    """Import a module. Raise SettingsError with one sentence if that fails."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        wrong = f"The module {name} ({where}) needs the module {error.name}, which is not there."
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            todo = "start the server in its folder, or install it"
            wrong = f"{where} names the module {name}, which is not there; {todo}."
        raise SettingsError(wrong) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        wrong = f"The module {name} ({where}) cannot be imported: {type(error).__name__}: {error}."
        raise SettingsError(wrong) from error


def load_object(reference: str, where: str) -> tuple[ModuleType, Any]:
    """Return the module and the object that `module:name` refers to."""
    name, colon, attribute = reference.partition(":")
    require(colon and name and attribute, f"{where} must be written MODULE:NAME, not {reference!r}.")
    module = load_module(name, where)
    found: Any = module
    for part in attribute.split("."):
        require(hasattr(found, part), f"The module {name} ({where}) has nothing named {attribute}.")
        found = getattr(found, part)
    return module, found
