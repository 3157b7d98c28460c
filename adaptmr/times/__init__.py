"""Time expressions in English and Chinese: found, resolved, written."""
from adaptmr.times.calendar import Window, format_date
from adaptmr.times.finder import compare_events, find_times, resolve, time_window

__all__ = ["Window", "compare_events", "find_times", "format_date", "resolve", "time_window"]
