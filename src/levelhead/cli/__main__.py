"""``python -m levelhead.cli``: the command line without its script."""

from levelhead.cli.main import main

main()
