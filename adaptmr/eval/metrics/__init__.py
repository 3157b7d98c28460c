"""Scores of answers and of rankings."""

from adaptmr.eval.metrics.answers import *  # noqa: F403
from adaptmr.eval.metrics.ranking import *  # noqa: F403
