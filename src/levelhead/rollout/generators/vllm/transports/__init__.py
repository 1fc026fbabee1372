"""Ways to bring weights to a server, one a file, behind one interface."""
