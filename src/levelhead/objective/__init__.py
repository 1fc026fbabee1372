"""Pure maths on tensors: advantages, losses, KL, entropy, terms and signs, gradient merging."""
