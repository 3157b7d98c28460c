"""Rerankers: models that read a question and a memory together, by name, with a cache and a meter."""
from adaptmr.rerank.rerankers import DEFAULT_RERANKER, as_reranker, reranker
from adaptmr.rerank.scores import MalformedScores, MeteredReranker, Reranker, metered

__all__ = ["DEFAULT_RERANKER", "MalformedScores", "MeteredReranker", "Reranker", "as_reranker", "metered",
           "reranker"]
