"""The agents that are served as models, as the settings name them."""

from __future__ import annotations

import re

from outlive.config.settings import Settings
from outlive.config.user_modules import load_object
from outlive.core.errors import SettingsError
from outlive.core.ids import IdSource
from outlive.served_agents.backend import AgentBackend
from outlive.served_agents.detect import detect_agent

_WHERE = "--agent"
_ODD = re.compile(r"[^\w.:-]+")


def load_agents(settings: Settings, ids: IdSource) -> dict[str, AgentBackend]:
    """Each agent under its model's name. Raises SettingsError for what cannot be served."""
    agents: dict[str, AgentBackend] = {}
    for written in settings.agents:
        given, equals, reference = written.rpartition("=")
        found = load_object(reference, _WHERE)[1]
        own, player = detect_agent(found, reference)
        # An agent's own name may be a sentence; a model's name is one word.
        name = given if equals else _ODD.sub("-", own or reference.rpartition(":")[2]).strip("-")
        if not name or name in agents:
            raise SettingsError(f"The agent {reference} needs a name of its own: --agent NAME={reference}.")
        agents[name] = AgentBackend(name, player, ids)
    return agents
