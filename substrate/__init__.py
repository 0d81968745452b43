"""The program: command line, settings, transports, guard and HTTP app."""
