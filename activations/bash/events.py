"""What `bash.execute` yields."""

from __future__ import annotations

from plexus import Complete, Event

__all__ = ("Exit", "Start", "Stderr", "Stdout", "Truncated")


class Start(Event):
    """The command runs."""

    pid: int

    def as_line(self) -> str:
        return f"Started as process {self.pid}"


class Stdout(Event):
    """Some of the command's standard output, as it came; a chunk, not a line."""

    data: str

    def as_text(self) -> str:
        return self.data


class Stderr(Event):
    """Some of the command's standard error, as it came; a chunk, not a line."""

    data: str

    def as_text(self) -> str:
        return self.data


class Truncated(Event):
    """The command wrote more than it may: the rest is lost and the command is killed."""

    limit_bytes: int

    def as_text(self) -> str:
        return f"\n[output cut at {self.limit_bytes} bytes; the command was killed]\n"


class Exit(Complete):
    """How the command ended. A signal's death has the exit code a shell gives it, 128 + n."""

    exit_code: int
    duration_ms: int
    truncated: bool
    signal: str | None = None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    def as_line(self) -> str:
        cause = f" ({self.signal})" if self.signal else ""
        return f"Exit code {self.exit_code}{cause} after {self.duration_ms} ms"
