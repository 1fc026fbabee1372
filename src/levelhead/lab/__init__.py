"""Simulation, injected faults, experiments."""
