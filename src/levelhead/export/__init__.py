"""A finished run as a model that others can load: weights, tokenizer, model card, and the hub."""
