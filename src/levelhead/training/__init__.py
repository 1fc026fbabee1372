"""The loops: SFT, GRPO, checkpoints, metrics."""
