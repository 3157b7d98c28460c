"""Models and what is asked of them: an OpenAI-compatible client, tasks, and calls that can be replayed."""
from adaptmr.llm.client import LLM, Reply, check_llm, price
from adaptmr.llm.replay import ReplayCache, ReplayError, ReplayMiss
from adaptmr.llm.tasks import Task, TaskResult
from adaptmr.llm.transport import (
                                  AuthError,
                                  BadRequest,
                                  EmptyReply,
                                  LLMError,
                                  ModelNotFound,
                                  ServerError,
                                  count_tokens,
)

__all__ = ["AuthError", "BadRequest", "EmptyReply", "LLM", "LLMError", "ModelNotFound",
           "Reply", "ReplayCache", "ReplayError", "ReplayMiss", "ServerError", "Task", "TaskResult",
           "check_llm", "count_tokens", "price"]
