"""The program of a worker process: it lists, reads and measures source files.

It runs in its own process, in the interpreter of the server but without its packages, so that the
event loop stays free and code that hangs or crashes an analyser costs one file. It needs the
standard library and the packages of the extra `analysis`.
"""
