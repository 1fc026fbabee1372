"""MiniWoB++ pages in a real browser: a policy reads the page as text and writes one action a turn."""
