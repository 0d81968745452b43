"""The examples in `docs/commands.md` work as shown."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from command_line import SUBSTRATE, WAIT_S, environment

DOCUMENT = Path(__file__).parents[3] / "docs" / "commands.md"
#: Outputs of some examples, as regular expressions.
OUTPUTS = {
    "substrate call bash.execute 'seq 3' | wc -l": r"\s*3\n",
    "echo hello | substrate call bash.execute cat": r"hello\n",
    "substrate call --json bash.execute 'seq 3'": r'(\{"type":.*\}\n)+',
    "substrate call bash.execute @script.sh": r"42\n",
    "substrate call bash.execute cat --stdin @@home": "@home",
    "substrate show last": r"Run .*echo pear.*pear\n",
    "substrate --without bash,chat list": r"(?!.*(bash|chat) ).*arbor .*",
}
EXAMPLES = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)


def run_example(example: str, project: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in bash."""
    program = f'substrate() {{ {" ".join(SUBSTRATE)} "$@"; }}\nset -o pipefail\n'
    return subprocess.run(
        ["bash", "-c", program + example],
        cwd=project,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda each: each.splitlines()[0][:40])
def test_the_examples_of_a_section_work(examples: str, tmp_path: Path) -> None:
    if "show last" in examples:
        assert run_example("substrate call bash.execute 'echo pear'", tmp_path).returncode == 0
    for line in examples.splitlines():
        code = re.search(r"# exits with (\d+)$", line)
        done = run_example(line, tmp_path)
        assert done.returncode == int(code[1] if code else 0), f"{line}: {done.stderr}"
        expected = OUTPUTS.get(re.sub(r"\s+#.*", "", line))
        assert expected is None or re.fullmatch(expected, done.stdout, re.DOTALL), done.stdout


def test_every_expected_output_belongs_to_an_example() -> None:
    text = "".join(EXAMPLES)
    assert [command for command in OUTPUTS if command not in text] == []
