"""The CPU's own way: prefix trees without padding or masks, and decoding without the model's modules."""
