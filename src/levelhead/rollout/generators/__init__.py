"""Where completions come from: the generator protocol, and one module an implementation."""
