"""``python -m loadtune`` is the command line."""

from loadtune.cli import main

if __name__ == "__main__":
    main()
