"""Namespaced JSON-RPC subscriptions: the native view of runs, and a client for it."""
