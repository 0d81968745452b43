"""Bundle CodeMirror into the one module of the page: `python packaging/codemirror/bundle.py`.

`package.json` and `package-lock.json` pin every package, and esbuild with them, so the result is
the same on every machine. `--check` bundles again and compares instead of writing, and
`--install FOLDER` only installs the packages, for a check of types. npm must be present.

The policy of the page allows no `<style>` elements. CodeMirror can use constructed style sheets
instead, but does so only in shadow roots; `PATCH` removes that condition.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ("Bundle", "Failed", "bundle", "install", "write")

FOLDER: Final = Path(__file__).parent
VENDOR: Final = FOLDER.parents[1] / "substrate" / "server" / "page" / "assets" / "vendor"
NAME: Final = "codemirror"
SOURCES: Final = ("package.json", "package-lock.json", "entry.js")
OPTIONS: Final = (
    "--bundle",
    "--minify",
    "--format=esm",
    "--target=es2022",
    "--legal-comments=none",
    "--charset=utf8",
    "--outfile=bundle.mjs",
    "--metafile=meta.json",
)
#: The condition in `style-mod` under which it uses constructed style sheets.
PATCH: Final = ("!root.head && root.adoptedStyleSheets", "root.adoptedStyleSheets")
STYLES: Final = Path("node_modules", "style-mod", "src", "style-mod.js")
INSTALL_S: Final = 300.0
BUNDLE_S: Final = 60.0


class Failed(Exception):
    """npm or esbuild failed, or a package is not as expected; the text says which."""


class Bundle(NamedTuple):
    """The module, the licences of its packages, and their versions."""

    content: bytes
    licence: str
    packages: dict[str, str]

    @property
    def entry(self) -> dict[str, Any]:
        """The entry in `versions.json`."""
        digest = hashlib.sha256(self.content).hexdigest()
        return {"package": NAME, "packages": self.packages, "sha256": digest}


def install(folder: Path) -> None:
    """Install the packages with the locked versions into a folder. Raises Failed."""
    npm = shutil.which("npm")
    if npm is None:
        raise Failed("npm is missing: install Node.js, which includes it")
    folder.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        shutil.copyfile(FOLDER / name, folder / name)
    _run([npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], folder, INSTALL_S)
    path = folder / STYLES
    text = path.read_text()
    if text.count(PATCH[0]) != 1:
        raise Failed(f"{STYLES} does not contain {PATCH[0]!r} once")
    path.write_text(text.replace(*PATCH))
    # The package names a compiled copy first.
    shutil.rmtree(path.parents[1] / "dist", ignore_errors=True)


def bundle(folder: Path) -> Bundle:
    """Bundle the installed packages of a folder. Raises Failed."""
    program = folder / "node_modules" / ".bin" / "esbuild"
    _run([str(program), "entry.js", *OPTIONS, "--alias:style-mod=./" + STYLES.as_posix()], folder)
    used = json.loads((folder / "meta.json").read_text())["inputs"]
    names = sorted({_package(path) for path in used if path.startswith("node_modules/")})
    packages = {}
    licences: dict[str, list[str]] = {}
    for name in names:
        place = folder / "node_modules" / name
        packages[name] = json.loads((place / "package.json").read_text())["version"]
        [licence] = place.glob("LICENSE*")
        licences.setdefault(licence.read_text().strip(), []).append(name)
    text = "\n\n".join(f"{', '.join(of)}:\n\n{each}" for each, of in licences.items())
    return Bundle((folder / "bundle.mjs").read_bytes(), text + "\n", packages)


def write(made: Bundle, vendor: Path = VENDOR) -> None:
    """Write the module, its licences and its checksum into the folder of libraries."""
    versions = vendor / "versions.json"
    entries = json.loads(versions.read_text()) | {f"{NAME}.mjs": made.entry}
    versions.write_text(json.dumps(entries, indent=2) + "\n")
    (vendor / f"{NAME}.mjs").write_bytes(made.content)
    (vendor / f"{NAME}.LICENSE").write_text(made.licence)


def _package(path: str) -> str:
    """Return the package of an input, like `@codemirror/view`."""
    parts = path.removeprefix("node_modules/").split("/")
    return "/".join(parts[:2]) if path.startswith("node_modules/@") else parts[0]


def _run(command: list[str], folder: Path, timeout_s: float = BUNDLE_S) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{command[0]} timed out after {timeout_s:g} s") from None
    if done.returncode:
        raise Failed(f"{command[0]} failed:\n{done.stderr.strip()[-2000:]}")


def main() -> int:
    """Bundle, and write or compare the result."""
    parser = argparse.ArgumentParser(description="Bundle CodeMirror for the page.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--install", type=Path, metavar="FOLDER", help="only install the packages")
    options = parser.parse_args()
    try:
        if options.install:
            install(options.install)
            return 0
        with tempfile.TemporaryDirectory() as name:
            install(Path(name))
            made = bundle(Path(name))
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not options.check:
        write(made)
    elif made.content != (VENDOR / f"{NAME}.mjs").read_bytes():
        sys.stderr.write(f"{NAME}.mjs is not what its packages give: run this script\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
