"""The same tools on other people's frameworks, to be measured beside ours."""
