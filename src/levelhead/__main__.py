"""``python -m levelhead``: the command line without its script."""

from levelhead.cli.main import main

main()
