"""The queries: plain functions over a transaction, one set of SQL for every engine.

Each public function is one operation. It checks everything before it writes anything, so that an
operation that is refused has left nothing to undo.
"""
