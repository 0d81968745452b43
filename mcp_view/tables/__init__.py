"""The tables of the protocol: its revisions, its methods and its errors."""
