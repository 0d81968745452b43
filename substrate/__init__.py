"""The program: command line, settings, transports, security and the HTTP app."""
