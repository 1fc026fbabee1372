"""The process between the trainer and a program: it builds the walls around itself, then becomes the program.

Started as ``python -I -S -B -c BOOT FOLDER CONFIG`` with the program on standard input; never imported by the trainer,
and with nothing but the standard library at hand, so that its modules import each other by their place in this folder.
"""

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from launcher.main import main; main(sys.argv[2])"
"""Starts it: FOLDER holds this package, CONFIG is JSON."""
