"""Complexity of functions: lizard counts branches, complexipy the cognitive complexity of Python.

lizard has a cognitive complexity too, which measures the other languages. A function has exactly
one analyser for each figure. What an analyser does not report is absent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from typing import Any, Final

from activations.analysis.languages import LANGUAGES
from activations.analysis.worker.source_file import Skipped, SourceFile

__all__ = ("halstead_figures", "measure_complexity", "measure_halstead", "prepare")

#: Maximum characters of the name of a function.
NAME_CHARACTERS: Final = 200
#: A comment at which lizard stops to read a file.
STOP: Final = re.compile(r"^[ \t]*(?:#|//|/?\*)[^\n]{0,200}GENERATED CODE", re.MULTILINE)


@cache
def _analyzer(*extensions: str) -> Any:
    import lizard

    return lizard.FileAnalyzer(lizard.get_extensions(list(extensions)))


def prepare() -> None:
    """Import the analysers. Raises ImportError."""
    import complexipy  # noqa: F401 - the first use is faster

    _analyzer()


def _analyze(source: SourceFile, *extensions: str) -> Any:
    """Return what lizard finds in a file. Raises Skipped if it cannot read the code."""
    try:
        # lizard selects its parser by the name, and knows neither all extensions nor all names.
        name = "source" + LANGUAGES[source.language][0]
        return _analyzer(*extensions).analyze_source_code(name, source.text)
    except RecursionError as error:
        raise Skipped("nested too deeply for lizard") from error
    except Exception as error:  # a parser of any code may raise anything
        raise Skipped(f"lizard has failed: {type(error).__name__}") from error


def measure_complexity(source: SourceFile) -> dict[str, Any]:
    """Return the functions of a file with their figures.

    A function has a name, its lines, and `cyclomatic`; `cognitive` is absent if it was not
    measured. `cognitive_absent` is the reason for all.
    """
    is_python = source.language == "python"
    found = _analyze(source) if is_python else _analyze(source, "cognitive")
    functions: list[dict[str, Any]] = [
        {
            "name": str(each.name)[:NAME_CHARACTERS],
            "line": each.start_line,
            "end_line": each.end_line,
            "cyclomatic": each.cyclomatic_complexity,
        }
        for each in found.function_list
    ]
    result: dict[str, Any] = {"nloc": found.nloc, "functions": functions}
    if STOP.search(source.text):
        result["partial"] = "lizard stops at a comment with GENERATED CODE"
    if is_python:
        reason = _add_cognitive(source, functions)
        if reason:
            result["cognitive_absent"] = reason
    else:
        for function, each in zip(functions, found.function_list, strict=True):
            function["cognitive"] = each.cognitive_complexity
    return result


def _add_cognitive(source: SourceFile, functions: list[dict[str, Any]]) -> str:
    """Add what complexipy reports for each function. Returns why it reports nothing."""
    import complexipy

    try:
        reported = complexipy.code_complexity(source.text, no_ignore=True, with_plans=False)
    except Exception as error:  # noqa: BLE001 - a parser of any code may raise anything
        first, _, _ = str(error).partition("\n")
        return f"complexipy cannot parse it: {first[:200]}"
    # complexipy adds a nested function to the one that contains it, and does not report it. Its
    # functions begin at the first decorator, those of lizard at `def`.
    for each in reported.functions:
        name = each.name.rpartition("::")[2]
        inside = [
            function
            for function in functions
            if each.line_start <= function["line"] <= each.line_end
            and function["name"].rpartition(".")[2] == name
        ]
        if inside:
            min(inside, key=lambda function: int(function["line"]))["cognitive"] = each.complexity
    return ""


def measure_halstead(source: SourceFile) -> dict[str, Any]:
    """Return the Halstead figures of a file: those of its functions together.

    The operators and operands of all functions are counted as one text, so `effort` is that of
    understanding the file, not a sum of efforts.
    """
    found = _analyze(source, "halstead")
    operators: Counter[str] = Counter()
    operands: Counter[str] = Counter()
    for each in found.function_list:
        operators.update(each._halstead_operators)  # noqa: SLF001 - the only access to the counts
        operands.update(each._halstead_operands)  # noqa: SLF001
    efforts = [each.halstead.effort for each in found.function_list]
    return halstead_figures(operators, operands) | {"functions_effort": round(sum(efforts), 2)}


def halstead_figures(operators: Counter[str], operands: Counter[str]) -> dict[str, Any]:
    """Return Halstead's figures for counts. Without operands there are none to compute."""
    n1, n2 = len(operators), len(operands)
    total1, total2 = operators.total(), operands.total()
    if not n1 or not n2:
        return {}
    volume = (total1 + total2) * math.log2(n1 + n2)
    difficulty = n1 / 2 * total2 / n2
    return {
        "distinct_operators": n1,
        "distinct_operands": n2,
        "operators": total1,
        "operands": total2,
        "volume": round(volume, 2),
        "difficulty": round(difficulty, 2),
        "effort": round(volume * difficulty, 2),
    }
