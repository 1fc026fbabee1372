"""Policies that write workflows, which are run and rewarded."""
