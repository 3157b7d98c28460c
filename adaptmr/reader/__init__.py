"""From evidence to an answer, by a model or by rules that cut it out."""
from adaptmr.reader.answering import ABSTENTION, ANSWER, MEMORIES_ARE_DATA, QUESTION_IS_DATA, answer, context, fenced, plain, shown

__all__ = ["ABSTENTION", "ANSWER", "MEMORIES_ARE_DATA", "QUESTION_IS_DATA", "answer", "context", "fenced", "plain", "shown"]
