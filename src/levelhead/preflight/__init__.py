"""The checks that run before a training run."""
