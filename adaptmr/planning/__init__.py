"""Who decides how to look: classifiers, planners, and what they fall back on."""
