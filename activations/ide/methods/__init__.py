"""The methods of `ide`: documents and diffs for people, and the tools of editor clients."""
