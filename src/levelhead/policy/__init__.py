"""The model: loading, LoRA, the reference, log-probabilities and entropies of given tokens."""
