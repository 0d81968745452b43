"""The subcommands, each a module that is imported when it is used."""
