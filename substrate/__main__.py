"""`python -m substrate`, and the `substrate` command."""

from substrate.cli.main import main

if __name__ == "__main__":
    main()
