"""Other MCP servers as namespaces: a call there is a run here.

`mount_config.py` and `mount_file.py` read what is mounted, `catalogue.py` has what servers offer
and what of it is trusted, `methods.py` makes methods of it, `mount.py` is the activation of one
server, `calls.py` its calls, `direct_call.py` those without a task, `session_pool.py` its sessions,
and `gateway.py` all mounts of a hub.
"""
