"""The keys of `_meta` and the names that the specification reserves, as both sides use them."""

from __future__ import annotations

from typing import Final

__all__ = (
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "LOG_LEVEL",
    "PREFIX",
    "PROTOCOL_VERSION",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "TASKS_EXTENSION",
)

PREFIX: Final = "io.modelcontextprotocol/"
PROTOCOL_VERSION: Final = PREFIX + "protocolVersion"
CLIENT_CAPABILITIES: Final = PREFIX + "clientCapabilities"
CLIENT_INFO: Final = PREFIX + "clientInfo"
SERVER_INFO: Final = PREFIX + "serverInfo"
LOG_LEVEL: Final = PREFIX + "logLevel"
SUBSCRIPTION_ID: Final = PREFIX + "subscriptionId"
TASKS_EXTENSION: Final = PREFIX + "tasks"
