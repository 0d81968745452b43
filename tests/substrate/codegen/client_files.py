"""Generated clients for the tests, and the real compilers for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from conformance.node import compiler, node
from network import REPOSITORY

__all__ = ("COUNTING", "TSC_OPTIONS", "codegen", "mypy", "shown", "tsc")

#: Beside what `network.Server` always has.
COUNTING = REPOSITORY / "tests" / "native_rpc" / "counting.py"
DEMO = REPOSITORY / "tests" / "activations_for_tests.py"
#: What a compiler may take on a busy machine.
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
    # It can be run without a compiler, and its types can be read without it.
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
    """What the command writes for a hub that has the activations of the tests too."""
    activations = ["--activation", str(DEMO), "--activation", str(COUNTING)]
    clean = {key: value for key, value in os.environ.items() if "SUBSTRATE" not in key}
    done = subprocess.run(
        [sys.executable, "-m", "substrate", *activations, "codegen", language, *options],
        cwd=REPOSITORY,
        env=clean,
        capture_output=True,
        timeout=COMPILE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def shown(language: str) -> str:
    """The program in this language that the document shows."""
    text = (REPOSITORY / "docs" / "generated-clients.md").read_text()
    block = re.search(rf"```{language}\n(.*?)```", text, re.S)
    assert block is not None
    return block[1]


def tsc(folder: Path, files: list[str], **options: Any) -> None:
    """Compile, as strictly as can be; raises NotInstalled."""
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
    """Check the types, as strictly as can be."""
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
