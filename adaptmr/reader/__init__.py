"""Answer a question from the evidence, by a model or by rules."""
from adaptmr.reader.answering import (
    ABSTENTION_TEXT,
    ANSWER,
    ANSWER_STYLES,
    MEMORIES_ARE_DATA,
    QUESTION_IS_DATA,
    answer,
    build_context,
    fence_hits,
    render_finding,
    render_line,
    sanitize,
    today_line,
)

__all__ = [
    "ABSTENTION_TEXT",
    "ANSWER",
    "ANSWER_STYLES",
    "MEMORIES_ARE_DATA",
    "QUESTION_IS_DATA",
    "answer",
    "build_context",
    "fence_hits",
    "render_finding",
    "render_line",
    "sanitize",
    "today_line",
]
