"""What the benches of the TRL callback share."""
