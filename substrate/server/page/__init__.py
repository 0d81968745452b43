"""The web page and its assets."""
