"""Failures that people read and label."""
