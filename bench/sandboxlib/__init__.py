"""Hostile programs, the trainer that they attack, and the walls between the two."""
