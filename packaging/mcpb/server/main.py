"""Entry point of the bundle: `substrate --stdio --mcp`, with the choices of the user.

The host passes the choices as environment variables, and starts the server in the folder of the
bundle. A choice without a value arrives as an empty text or as its placeholder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: What is switched off unless the user allows shell commands.
SHELL = "bash,claudecode"


def _choice(name: str) -> str:
    text = os.environ.pop(f"SUBSTRATE_BUNDLE_{name}", "").strip()
    return "" if text.startswith("${") else text


def _enter_folder(chosen: str) -> None:
    """Change to the project folder. Exits with a message if that is impossible."""
    folder = Path(chosen).expanduser() if chosen else Path.home()
    try:
        os.chdir(folder)
    except OSError as error:
        sys.exit(f"substrate: cannot use the project folder {folder}: {error.strerror}")


def main() -> None:
    """Read the choices, and serve MCP on stdin and stdout."""
    _enter_folder(_choice("FOLDER"))
    shell, background, record = (_choice(name) for name in ("SHELL", "BACKGROUND", "RECORD"))
    arguments = ["--stdio", "--mcp", "--mcp-tool-names", "underscore"]
    if shell.lower() != "true":
        # A sandbox also refuses models of `chat` that are Claude Code, which has its own shell.
        arguments += ["--without", SHELL, "--bash-sandbox", "strict"]
    if background.lower() == "true":
        arguments.append("--background")
    if record.lower() == "false":
        os.environ["SUBSTRATE_RECORD"] = "off"
    sys.argv[1:] = arguments

    from substrate.cli.main import main as run_program

    run_program()


if __name__ == "__main__":
    main()
