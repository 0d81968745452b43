"""The version of the project, defined only here."""

__version__ = "0.1.0"
