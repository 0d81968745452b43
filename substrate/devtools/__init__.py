"""Tools for authors: lint, reload, code generation and project templates."""
