"""Short made-up texts that teach a policy from random weights to copy, find, quote and choose."""
