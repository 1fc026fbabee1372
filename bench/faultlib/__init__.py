"""What the benches of faults and of sound settings share."""
