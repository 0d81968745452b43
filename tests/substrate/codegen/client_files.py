"""Generated clients for tests, and the real compilers for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from child_processes import clean_environment
from conformance.node import compiler, node
from network import REPOSITORY

__all__ = ("COUNTING", "TSC_OPTIONS", "codegen", "mypy", "shown", "tsc")

#: An activation in addition to the one that `network.Server` always loads.
COUNTING = REPOSITORY / "tests" / "native_rpc" / "counting.py"
DEMO = REPOSITORY / "tests" / "activations_for_tests.py"
#: Timeout of a compiler, sufficient on a busy machine.
COMPILE_S = 120.0

#: As strict as the compiler can be.
TSC_OPTIONS: dict[str, Any] = {
    "strict": True,
    "exactOptionalPropertyTypes": True,
    "noFallthroughCasesInSwitch": True,
    "noImplicitOverride": True,
    "noImplicitReturns": True,
    "noPropertyAccessFromIndexSignature": True,
    "noUncheckedIndexedAccess": True,
    "noUnusedLocals": True,
    "noUnusedParameters": True,
    # The file can be run without a compiler, and its types can be read without one.
    "declaration": True,
    "erasableSyntaxOnly": True,
    "isolatedDeclarations": True,
    "isolatedModules": True,
    "verbatimModuleSyntax": True,
    "module": "nodenext",
    "target": "es2022",
    "outDir": "out",
}


def codegen(language: str, *options: str) -> str:
    """Return the output of `substrate codegen` for a hub with the activations of the tests."""
    activations = ["--activation", str(DEMO), "--activation", str(COUNTING)]
    done = subprocess.run(
        [sys.executable, "-m", "substrate", *activations, "codegen", language, *options],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        timeout=COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def shown(language: str) -> str:
    """Return the example in this language from the document."""
    text = (REPOSITORY / "docs" / "generated-clients.md").read_text()
    block = re.search(rf"```{language}\n(.*?)```", text, re.S)
    assert block is not None
    return block[1]


def tsc(folder: Path, files: list[str], **options: Any) -> None:
    """Compile with the strictest options. Raises NotInstalled."""
    program, types = compiler()
    config = {
        "compilerOptions": TSC_OPTIONS | {"typeRoots": [str(types)]} | options,
        "files": files,
    }
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [str(node()), str(program), "--project", str(folder)],
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def mypy(folder: Path, files: list[str]) -> None:
    """Check types with the strictest options."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--warn-unreachable", *files],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
