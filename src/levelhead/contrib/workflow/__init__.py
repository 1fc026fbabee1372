"""Policies that write workflows: a small language, operators that run it, and a reward for what it leads to."""
