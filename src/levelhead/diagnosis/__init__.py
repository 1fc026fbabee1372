"""Findings and how they are reached: signals of a run, detectors, ranking, texts."""
