"""Findings, detectors, the guard, the doctor and its log readers."""
