"""`python -m substrate`, and the `substrate` command."""

import signal

from substrate.garbage import collect_rarely

collect_rarely()

# Until the program is imported, Ctrl-C ends it like any process, without a traceback. A shell that
# starts it in the background may have it ignore Ctrl-C.
ENDS_ON_CTRL_C = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if ENDS_ON_CTRL_C:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from substrate.cli.main import main as run_command_line  # noqa: E402

__all__ = ("main",)


def main() -> None:
    """Run the command line."""
    if ENDS_ON_CTRL_C:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command_line()


if __name__ == "__main__":
    main()
