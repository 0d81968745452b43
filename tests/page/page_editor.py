"""A server with the IDE in a separate project, its page, and a program that connects to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from editor_client import EditorClient, connected, wait_for
from page_browser import Site, opened
from playwright.sync_api import Page

__all__ = ("Desk", "editing")

#: Returns the text of an editor of the page, with its line ends.
TEXT = """async (selector) => {
  const { EditorView } = await import("codemirror");
  return EditorView.findFromDOM(document.querySelector(selector)).state.sliceDoc();
}"""


class Desk:
    """The site, and the folder of the project."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.work = folder / "work"

    def write(self, name: str, text: str | bytes) -> Path:
        """Write a file of the project and return its path."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def read(self, name: str) -> str:
        """Return the content of a file of the project."""
        return (self.work / name).read_bytes().decode()

    def open(self, page: Page, kind: str, name: str) -> None:
        """Show a file or a change in the page."""
        page.evaluate(
            "(parts) => { location.hash = '#/files/' + parts.map(encodeURIComponent).join('/'); }",
            [kind, name],
        )

    def text(self, page: Page, selector: str = ".cm-editor") -> str:
        """Return the text of an editor."""
        return str(page.evaluate(TEXT, selector))

    @contextmanager
    def program(self) -> Iterator[EditorClient]:
        """Connect a program, as Claude Code does."""
        with connected(self.folder) as peer:
            yield peer

    def propose(self, peer: EditorClient, name: str, text: str) -> tuple[int, str]:
        """Propose a change; return the request of the program and the number of the change."""
        path = str(self.work / name)
        request = peer.start_tool(
            "openDiff", old_file_path=path, new_file_contents=text, tab_name=f"✻ {name}"
        )

        def asked() -> str | None:
            found = [each for each in self.diffs() if each["path"] == name]
            return str(found[0]["diff"]) if found else None

        return request, str(wait_for(asked, "change"))

    def diffs(self) -> list[dict[str, Any]]:
        """Return the changes that wait and whose question was asked."""
        found: list[dict[str, Any]] = self.site.call("ide.diffs")
        return [each for each in found if not each["approval_id"].endswith(".")]


@contextmanager
def editing(folder: Path, *options: str) -> Iterator[Desk]:
    """Run a server with the IDE, and a browser, for the duration of the block."""
    work = folder / "work"
    work.mkdir()
    variables = {
        "CLAUDE_CONFIG_DIR": str(folder / "claude"),
        # The checkers and formatters of this environment.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with opened(*options, variables=variables, project=work) as site:
        yield Desk(site, folder)
