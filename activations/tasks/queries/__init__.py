"""The queries: plain functions over a transaction, with the same SQL for every engine.

Each public function is one operation. It validates everything before its first write, so a refused
operation needs no rollback.
"""
