"""Transcripts in the documents, generated from the vectors that the tests replay.

A document names a transcript between two comments. `python tests/documents.py` writes the
messages of that transcript between them, and a test fails if a document is out of date.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from transcripts import MCP_TRANSCRIPTS, TRANSCRIPTS, Transcript

__all__ = ("DOCUMENTS", "filled", "render")

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
_PLACE = re.compile(r"(<!-- transcript: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(transcript: Transcript) -> str:
    """Render a transcript as Markdown."""
    lines = [f"*{transcript.about[0].upper()}{transcript.about[1:]}:*", "", "```jsonc"]
    for step in transcript.steps:
        if "send" in step:
            lines.append(f"→ {_text(step['send'])}")
        else:
            expected = step["expect_all"] if "expect_all" in step else [step["expect"]]
            lines += [f"← {_text(message)}" for message in expected]
    return "\n".join([*lines, "```", ""])


def _text(message: Any) -> str:
    if isinstance(message, str):
        return message if len(message) < 120 else f"{message[:100]}… ({len(message)} characters)"
    return re.sub(r'"(\$\w+)"', r"\1", json.dumps(message, ensure_ascii=False))


def filled(text: str) -> str:
    """Return the document with its transcripts up to date."""
    known = TRANSCRIPTS | MCP_TRANSCRIPTS
    return _PLACE.sub(lambda place: place[1] + render(known[place[2]]) + place[3], text)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text()))
