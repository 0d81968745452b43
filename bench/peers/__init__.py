"""The same tools on other frameworks, for comparison."""
