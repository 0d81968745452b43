"""Plexus: activations are async generators of typed events; every call is a run.

This package exports what the author of an activation imports. A program that embeds a hub imports
everything else from the module that defines it: limits from `plexus.limits`, other errors from
`plexus.errors`, terminals from `plexus.events`, and so on.
"""

from __future__ import annotations

from plexus.activation import (
    Activation,
    PromptInfo,
    ResourceInfo,
    completer,
    method,
    prompt,
    resource,
)
from plexus.context import Context
from plexus.errors import (
    Declined,
    Denied,
    Failed,
    InvalidParams,
    NotFound,
    PlexusError,
)
from plexus.events import (
    Audio,
    Complete,
    Content,
    Detached,
    Event,
    Image,
    Log,
    Message,
    Progress,
    Resource,
    Start,
    ToolResult,
    ToolUse,
)
from plexus.principal import Principal
from plexus.questions import (
    AskText,
    Confirm,
    Form,
    OpenUrl,
    Option,
    Roots,
    Sample,
    Select,
    SelectMany,
)
from plexus.registry.dependencies import Depends
from plexus.registry.secrets import Secret
from plexus.runtime.changes import Change
from plexus.runtime.hub import Plexus
from plexus.version import __version__ as __version__

__all__ = (
    "Activation",
    "AskText",
    "Audio",
    "Change",
    "Complete",
    "Confirm",
    "Content",
    "Context",
    "Declined",
    "Denied",
    "Depends",
    "Detached",
    "Event",
    "Failed",
    "Form",
    "Image",
    "InvalidParams",
    "Log",
    "Message",
    "NotFound",
    "OpenUrl",
    "Option",
    "Plexus",
    "PlexusError",
    "Principal",
    "Progress",
    "PromptInfo",
    "Resource",
    "ResourceInfo",
    "Roots",
    "Sample",
    "Secret",
    "Select",
    "SelectMany",
    "Start",
    "ToolResult",
    "ToolUse",
    "completer",
    "method",
    "prompt",
    "resource",
)
