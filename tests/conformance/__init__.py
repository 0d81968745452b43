"""The official conformance suites, and the server they are run against."""
