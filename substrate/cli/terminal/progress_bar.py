"""Progress bar on a terminal."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported when progress is shown on a terminal
    from rich.progress import Progress

__all__ = ("ProgressBar",)


class ProgressBar:
    """Progress bar at the bottom of the terminal, hidden as soon as anything is written."""

    def __init__(self, err: IO[str]) -> None:
        self._err = err
        self._progress: Progress | None = None

    def show(self, done: float, total: float | None, message: str) -> None:
        """Show or update the bar. Without a total it is indeterminate."""
        if self._progress is None:
            self._progress = _make_progress(self._err)
            self._progress.add_task("", of="")
            self._progress.start()
        task = self._progress.task_ids[0]
        of = "" if total is None else f"/{total:g}"
        self._progress.update(task, completed=done, total=total, description=message, of=of)

    def hide(self) -> None:
        """Hide the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _make_progress(stream: IO[str]) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:g}{task.fields[of]}", markup=False),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
