"""The run store: records every run, and makes the runs of all processes visible to each other."""
