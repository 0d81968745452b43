"""JSON-RPC: the codec, and the effects that views return."""
