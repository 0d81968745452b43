"""The `analysis` activation: complexity, churn and deep context of a project.

Guarantees:
- Every figure names its analyser with the version, and the files that were seen and skipped. What
  was not measured is absent, with the reason.
- Work happens in worker processes, which end with the run. No file of the project is executed or
  imported, and no program that its git configuration names is started.
- All formats are rendered from one model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

from annotated_types import Ge, Le, MaxLen, MinLen

from activations.analysis.churn_analysis import analyze_churn
from activations.analysis.complexity import Thresholds
from activations.analysis.complexity_analysis import Events, analyze_complexity, cores
from activations.analysis.deep_context import ANALYSES, CacheStrategy, DeepOptions, Name
from activations.analysis.deep_context_analysis import analyze_deep_context
from activations.analysis.diagnosis import diagnose
from activations.analysis.environment import Environment
from activations.analysis.events import Finding, Summary
from activations.analysis.formats import Format
from activations.analysis.graphs import DagType
from activations.analysis.scan import MAX_WORKERS
from activations.processes.sandbox.hidden_paths import OwnPaths
from activations.processes.sandbox.profiles import Profile
from plexus import Activation, Context, method

__all__ = ("Analysis",)

#: Thresholds of SonarSource, complexipy and lizard.
MAX_CYCLOMATIC: Final = 15
MAX_COGNITIVE: Final = 15
Threshold = Annotated[int, Ge(1), Le(10_000)]
#: Rows of a ranking.
TopFiles = Annotated[int, Ge(0), Le(1000)]
#: Timeout of an analysis. The history of a large project takes minutes.
RUN_S: Final = 3600.0
#: The size of a report. The default fits into a result of MCP, which is cut beyond its limit.
DEFAULT_BYTES: Final = 40_000
MaxBytes = Annotated[int, Ge(10_000), Le(1_000_000)]

#: Days of history.
DEFAULT_DAYS: Final = 30
Depth = Annotated[int, Ge(0), Le(1000)]
Parallel = Annotated[int, Ge(1), Le(MAX_WORKERS)]
Patterns = Annotated[list[str], MaxLen(100)]
#: Files of one call of `diagnose`.
Paths = Annotated[list[str], MinLen(1), MaxLen(1000)]
Period = Annotated[int, Ge(1), Le(36_500)]


class Analysis(Activation):
    """Analyze the complexity, the churn and the context of a project. Every figure is measured."""

    namespace = "analysis"
    version = "1.0.0"
    audience = "client"
    #: It reads files of the server, which not every principal may.
    scope = "analysis"

    def __init__(
        self,
        sandbox: Profile = "off",
        workspace: str | None = None,
        own_paths: OwnPaths | None = None,  # noqa: ARG002 - what all activations of processes take
    ) -> None:
        """Configure what may be analysed: in a sandbox, only folders inside the workspace."""
        confined_to = Path(workspace or ".").resolve() if sandbox != "off" else None
        self._environment = Environment(confined_to)

    @method(
        title="Analyze complexity",
        alias="analyze_complexity",
        deadline_s=RUN_S,
        restart="from_start",
        read_only=True,
        open_world=False,
    )
    def analyze_complexity(
        self,
        project_path: str,
        toolchain: str,
        format: Format = "json",  # noqa: A002 - the name that callers send
        max_cyclomatic: Threshold = MAX_CYCLOMATIC,
        max_cognitive: Threshold = MAX_COGNITIVE,
        top_files: TopFiles | None = None,
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> AsyncIterator[Events]:
        """Measure cyclomatic and cognitive complexity of all functions, and rank files.

        Streams each file and finding, then the report.

        Args:
            project_path: Folder, such as "." for the current one.
            toolchain: rust, deno, node, python-uv, go, c, java, or auto for all languages.
            format: Format of the report.
            max_cyclomatic: Functions above it are violations.
            max_cognitive: Functions above it are violations.
            top_files: Files in the ranking; 0 shows all violations.
            max_bytes: Maximum size of the report.
        """
        thresholds = Thresholds(max_cyclomatic, max_cognitive)
        return analyze_complexity(
            self._environment, project_path, toolchain, format, thresholds, top_files, max_bytes
        )

    @method(
        title="Analyze code churn",
        alias="analyze_code_churn",
        deadline_s=RUN_S,
        restart="from_start",
        read_only=True,
        open_world=False,
    )
    def analyze_code_churn(
        self,
        project_path: str,
        period_days: Period = DEFAULT_DAYS,
        format: Format = "json",  # noqa: A002 - the name that callers send
        max_bytes: MaxBytes = DEFAULT_BYTES,
    ) -> AsyncIterator[Events]:
        """Report which files changed most in the git history, how often and by how many authors.

        Args:
            project_path: Folder in a git repository, such as ".".
            period_days: Days to look back.
            format: Format of the report.
            max_bytes: Maximum size of the report.
        """
        return analyze_churn(self._environment, project_path, period_days, format, max_bytes)

    @method(
        title="Analyze deep context",
        alias="analyze_deep_context",
        deadline_s=RUN_S,
        restart="from_start",
        read_only=True,
        open_world=False,
    )
    def analyze_deep_context(
        self,
        project_path: str = ".",
        include_analyses: list[Name] | None = None,
        exclude_analyses: list[Name] | None = None,
        period_days: Period = DEFAULT_DAYS,
        dag_type: DagType = "import-graph",
        max_depth: Depth | None = None,
        include_patterns: Patterns | None = None,
        exclude_patterns: Patterns | None = None,
        cache_strategy: CacheStrategy = "normal",
        parallel: Parallel | None = None,
        format: Format = "json",  # noqa: A002 - the name that callers send
        max_bytes: MaxBytes = DEFAULT_BYTES,
        *,
        ctx: Context,
    ) -> AsyncIterator[Events]:
        """Measure a project in all respects, and report scores, hotspots and recommendations.

        Every figure names its analyser; what was not measured is absent, with the reason.

        Args:
            project_path: Folder of the project.
            include_analyses: Only these analyses. Default: all.
            exclude_analyses: Not these.
            period_days: Days of history.
            dag_type: Kind of the dependency graph.
            max_depth: Maximum depth of folders.
            include_patterns: Only these files, such as "src/**/*.rs".
            exclude_patterns: Not these files, such as "**/target/**".
            cache_strategy: "force-refresh" measures files again, "offline" measures no file.
            parallel: Worker processes. Default: one for each processor core.
            format: Format of the report.
            max_bytes: Maximum size of the report.
        """
        analyses = frozenset(include_analyses or ANALYSES) - frozenset(exclude_analyses or ())
        options = DeepOptions(
            analyses,
            period_days,
            dag_type,
            max_depth,
            include_patterns or [],
            exclude_patterns or [],
            cache_strategy,
            parallel or cores(),
            format,
            max_bytes,
        )
        thresholds = Thresholds(MAX_CYCLOMATIC, MAX_COGNITIVE)
        return analyze_deep_context(self._environment, project_path, options, thresholds, ctx)

    @method(
        title="Check files for findings",
        deadline_s=RUN_S,
        restart="from_start",
        read_only=True,
        open_world=False,
    )
    def diagnose(
        self,
        paths: Paths,
        max_cyclomatic: Threshold = MAX_CYCLOMATIC,
        max_cognitive: Threshold = MAX_COGNITIVE,
    ) -> AsyncIterator[Finding | Summary]:
        """Stream the findings in these files: complex functions, and comments that admit debt.

        Args:
            paths: Source files; relative ones are in the current folder.
            max_cyclomatic: Functions above it are findings.
            max_cognitive: Functions above it are findings.
        """
        thresholds = Thresholds(max_cyclomatic, max_cognitive)
        return diagnose(self._environment, paths, thresholds)

    async def check_health(self) -> str:
        """Return the installed analysers, or how to install the extra."""
        return self._environment.check()

    async def close(self) -> None:
        """End all workers."""
        await self._environment.close()
