"""Folder trust: which project folders may give this program code and settings."""
