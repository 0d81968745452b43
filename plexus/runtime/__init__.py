"""The runtime: the hub, runs and their logs, and the pump that drives them."""
