"""Measures of MCP, compared with the limit and with servers on other frameworks."""
