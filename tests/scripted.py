"""A model by script, and players by script: what teams need in tests, since nothing plays without a model."""

from __future__ import annotations

import json
import re
from typing import Any

from adaptmr.agents.prompts import Move, PlayerView
from adaptmr.llm import LLM
from adaptmr.llm.client import Reply
from adaptmr.memory.team.records import ROLES
from adaptmr.memory.team.steps import parse_action
from adaptmr.text import content_words
from adaptmr.types import Usage

LESSON = "Search for the name that the question gives."


class ScriptedLLM(LLM):
    """Plays all parts of a team on any question, badly and always alike.

    `replies` are used instead, by task: each a value, or a text that is no JSON. `asked` keeps the prompts.
    """

    def __init__(self, **replies: Any) -> None:
        super().__init__("scripted", base_url="http://localhost:9")
        self.replies, self.asked = replies, list[tuple[str, str]]()

    def complete(self, messages: Any, *, task: str = "", **_: Any) -> Reply:
        prompt = messages[-1]["content"]
        self.asked.append((task, "\n".join(m["content"] for m in messages)))
        value = self.replies.get(task) or getattr(self, f"_{task}", lambda prompt: "no JSON")(prompt)
        return Reply(
            value if isinstance(value, str) else json.dumps(value), Usage(1, 0, len(prompt) // 4, 20)
        )

    def _team_retrieve(self, prompt: str) -> Any:
        words = content_words(re.findall(r"(?:Question: |问题：)(.+)", prompt)[-1])
        turn = int((re.findall(r"(?:Turn |第 )(\d+)", prompt) or ["1"])[-1])
        return {"thought": "a word of it", "action": f"Search[{words[turn % len(words)]}]"[:100]}

    def _team_solve(self, prompt: str) -> Any:
        suggested = re.findall(r"(?:suggestion: |建议：)(\w+\[.+\])", prompt)
        seen = re.findall(r"(?:Observation|观察) \d+[:：] ?(.+)", prompt)
        last = "This is the last turn" in prompt or "最后一轮" in prompt
        answer = f"Finish[{content_words(seen[-1])[-1] if seen else 'unknown'}]"
        search = suggested[-1] if suggested else self._team_retrieve(prompt)["action"]
        action = answer if last or seen else search[:100]
        return {"thought": "next", "extracted_info": "", "action": action}

    def _team_verify(self, prompt: str) -> Any:
        return {"reason": "as it is", "accept": True, "action": ""}

    def _extract(self, prompt: str) -> Any:
        page = re.search(r"<observation>\n(.*)\n</observation>", prompt, re.DOTALL)
        title, _, text = page[1].partition(": ") if page else ("", "", "")
        word = (re.findall(r"\w+", text) or ["-"])[-1]
        facts = [{"entity": title, "relation": "says", "value": word}] if text and len(title) < 100 else []
        answer = word if facts else ""
        read = {"answer": answer, "bridge": "", "reason": "", "confidence": 0.5, "facts": facts}
        return {**read, "entities": [answer] * bool(facts), "next_queries": [answer] * bool(facts)}

    def _reflect(self, prompt: str) -> Any:
        return {"lessons": [{"text": LESSON, "tags": ["chain"]}]}

    def _revise_insights(self, prompt: str) -> Any:
        return {"operations": [{"kind": "add", "number": 0, "rule": LESSON}]}


class Scripted:
    """A player that makes these moves in turn, the last one again and again, and keeps what it was shown."""

    def __init__(self, role: str, *script: str | Move | Exception) -> None:
        self.role, self.script, self.views = ROLES[role], list(script) or [""], list[PlayerView]()

    def act(self, view: PlayerView) -> Move:
        self.views.append(view)
        move = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(move, BaseException):
            raise move
        return move if isinstance(move, Move) else Move(parse_action(move), move or "no objection")
