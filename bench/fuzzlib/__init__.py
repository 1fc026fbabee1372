"""Hostile inputs for everything that reads files of unknown origin: logs, run folders, reports and recipes."""
