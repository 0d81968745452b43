"""The embedded engine: one SQLite file that several processes share all the time.

- One thread writes. It takes every work that waits, runs them in one transaction and commits
  once; only then are their callers told. A file lock keeps the writers of other processes out
  meanwhile, for as long as one such transaction takes.
- A few threads read, each over a connection of its own. They see the last commit and wait for
  nobody.
- One thread listens for commits of other processes, as long as somebody wants to know.

Nobody else in this process may open the file, least of all with `sqlite3`: a second copy of SQLite
would give up the locks of the first when it closes the file, and take its memory from under it.
"""

from __future__ import annotations

from activations.arbor.sqlite.engine import SqliteEngine, default_path, open_engine

__all__ = ("SqliteEngine", "default_path", "open_engine")
