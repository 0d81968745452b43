"""The `ide` activation: an editor for people, that programs such as Claude Code connect to.

It has one workspace, the project folder of the server. All its clients share one state: documents,
diffs that wait for an answer, and diagnostics. A proposed change is a run that asks, so it is
answered in the page, in the terminal or in a second browser, and the first answer counts. The
program that asked writes the file, never the editor.
"""

from __future__ import annotations

import asyncio

from activations.ide.methods.diffs import DiffMethods
from activations.ide.methods.documents import DocumentMethods
from activations.ide.methods.editor import EditorMethods

__all__ = ("Ide",)


class Ide(DocumentMethods, DiffMethods, EditorMethods):
    """Edit files, and review the changes that connected programs propose."""

    namespace = "ide"
    audience = "client"
    scope = "ide"
    version = "1.0.0"

    async def check_health(self) -> str:
        """Report the workspace, the connections and the diffs that wait. Raises Failed."""
        await asyncio.to_thread(self.workspace.check)
        status = self.status()
        connected = f"{len(status.connections)} connected" if status.on else "off"
        waiting = len(self.state.diffs)
        return f"{connected}, {len(self.state.documents)} open, {waiting} diffs waiting"
