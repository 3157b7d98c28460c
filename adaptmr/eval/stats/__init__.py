"""Means, ratios and paired differences with their intervals, and agreement between judges."""
