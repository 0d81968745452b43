"""Plexus: activations are plain async generators of typed events; every call is a run."""

from __future__ import annotations

from plexus.activation import Activation, method
from plexus.asking import Confirm, Form, Option, Prompt, Select, SelectMany
from plexus.context import Context
from plexus.errors import (
    Busy,
    DeadlineExceeded,
    Declined,
    Denied,
    Failed,
    InvalidParams,
    NotFound,
    PlexusError,
    RegistrationError,
    TooBig,
    UnknownMethod,
)
from plexus.events import (
    Audio,
    Cancelled,
    Complete,
    Content,
    Error,
    Event,
    Image,
    Log,
    Progress,
    Resource,
    Result,
    Start,
    Terminal,
    ToolResult,
    ToolUse,
)
from plexus.hub import Plexus
from plexus.limits import Limits
from plexus.principal import LOCAL, Principal
from plexus.version import __version__

__all__ = (
    "LOCAL",
    "Activation",
    "Audio",
    "Busy",
    "Cancelled",
    "Complete",
    "Confirm",
    "Content",
    "Context",
    "DeadlineExceeded",
    "Declined",
    "Denied",
    "Error",
    "Event",
    "Failed",
    "Form",
    "Image",
    "InvalidParams",
    "Limits",
    "Log",
    "NotFound",
    "Option",
    "Plexus",
    "PlexusError",
    "Principal",
    "Progress",
    "Prompt",
    "RegistrationError",
    "Resource",
    "Result",
    "Select",
    "SelectMany",
    "Start",
    "Terminal",
    "TooBig",
    "ToolResult",
    "ToolUse",
    "UnknownMethod",
    "__version__",
    "method",
)
