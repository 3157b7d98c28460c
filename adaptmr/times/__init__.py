"""Find, resolve and write time expressions in English and Chinese."""
from adaptmr.times.calendar import Window, format_date
from adaptmr.times.finder import annotate_dates, find_compared_events, find_times, time_window

__all__ = ["Window", "find_compared_events", "find_times", "format_date", "annotate_dates", "time_window"]
