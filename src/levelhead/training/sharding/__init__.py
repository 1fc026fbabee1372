"""Training with weights that are divided over processes: passes in step, checkpoints that reshard."""
