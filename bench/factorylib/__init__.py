"""A factory of labelled training runs: simulated policies, faults put into their training, pasted logs."""
