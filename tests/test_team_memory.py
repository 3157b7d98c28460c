"""The memory of a team: the faults of the design that it follows, the rules it keeps, threads, crashes."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptmr.embed import embedder
from adaptmr.llm.spending import count_tokens
from adaptmr.memory.team.records import (
    Board,
    EvidencePiece,
    Extraction,
    Fact,
    Hop,
    Hypothesis,
    Interaction,
    Lesson,
    PeerProfile,
    PlanItem,
    ReasoningStep,
    RoleContract,
    Search,
    TeamTask,
    TeamConfig,
    Triple,
    read_record,
)
from adaptmr.memory.team.steps import focus, only_rephrased, text_key
from adaptmr.memory.team.team import PrivateMemory, SharedMemory, TeamMemory, format_private, format_shared
from adaptmr.store.memory_store import MemoryStore

QUESTION = "Where was the keeper of the Brann lighthouse born?"
KEEPER = Triple("Brann lighthouse", "keeper", "Ilse Maro")
FACT = Fact(**KEEPER._asdict(), confidence=0.9)


def hashing() -> MemoryStore:
    return MemoryStore(embedder="hash")


def shared_memory(config: TeamConfig | None = None) -> SharedMemory:
    return SharedMemory(QUESTION, hashing(), config=config)


def private_memory(config: TeamConfig | None = None, agent: str = "solver") -> PrivateMemory:
    return PrivateMemory(RoleContract(agent), hashing(), config=config)


def shown(team: TeamMemory, agent: str, *asked: str) -> str:
    """Return the two blocks that a member is shown."""
    found = team.recall(agent, *asked)
    own = format_private(team.private[agent], found, team.shared.interactions)
    return f"{format_shared(team.shared, found)}\n\n{own}"


class Meanings:
    """An embedder with a direction for each word: cosines can be worked out by hand."""

    name, dim = "meanings", 64

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def encode(self, texts, kind="passage"):
        out = np.zeros((len(texts), self.dim), np.float32)
        for row, text in zip(out, texts):
            for word in text_key(text).split():
                row[self.known.setdefault(word, len(self.known) % self.dim)] += 1
            row[0] += not row.any()
        return out / np.linalg.norm(out, axis=1, keepdims=True)


# --- the faults of the design, one test each


@pytest.mark.parametrize(
    ("answer", "valid", "succeeds"),
    [("Ilse Maro", True, True), (None, True, False), ("", True, False), ("Ilse Maro", False, False)],
)
def test_a_valid_step_without_an_answer_is_no_success(answer, valid, succeeds):
    hop = shared_memory().add_hop("Who keeps it?", "Search[Brann]", "A page.", answer, valid=valid)
    assert hop.succeeded is succeeds and hop.success == float(succeeds)


def test_what_an_invalid_step_says_is_no_fact():
    team = TeamMemory(QUESTION, hashing())
    team.write("solver", "Who?", "Search[Brann", "Invalid.", Extraction("Ilse", facts=(KEEPER,)), valid=False)
    assert team.shared.facts == [] == team.private["solver"].board.all(Hypothesis)
    (lesson,) = team.private["solver"].board.all(Lesson)
    assert (lesson.about, lesson.lesson) == ("Search[Brann", "could not be carried out")
    (piece,) = team.private["solver"].board.all(EvidencePiece)
    assert piece.content == "Invalid." and not piece.answered


def test_conflicting_values_are_kept_and_shown_and_a_comparison_overwrites_nothing():
    shared = shared_memory()
    for value, confidence in (("29 m", 0.4), ("31 m", 0.9), ("30 m", 0.4)):
        shared.add_fact("Brann", "height", value, confidence)
    shared.add_fact("Sula", "height", "28 m")
    assert [f.value for f in shared.values("Brann", "height")] == ["31 m", "29 m", "30 m"]
    assert [f.value for f in shared.values("Sula", "height")] == ["28 m"]
    shown = format_shared(shared, shared.recall("How tall is Brann?"))
    assert "31 m (0.90), but also 29 m (0.40); 30 m (0.40)" in shown


def test_a_query_has_two_fields_at_most():
    assert focus("Search[birthplace]", "Ilse Maro", QUESTION) == "birthplace Ilse Maro"
    assert focus("Where was Ilse Maro born?", "Ilse Maro", QUESTION) == "Where was Ilse Maro born?"
    assert focus("", "", QUESTION) == QUESTION and focus("", "Ilse Maro", QUESTION) == "Ilse Maro"
    with pytest.raises(ValueError, match="nothing to look up"):
        focus(" ", "")


def test_a_search_is_made_once_and_its_observation_is_kept_whole():
    shared, calls, page = shared_memory(), [], "word " * 2_000 + "the end"
    run = lambda query: calls.append(query) or page  # noqa: E731
    first = shared.search("Brann lighthouse keeper", run, "solver", 1)
    again = shared.search("The KEEPER of the Brann lighthouse?", run, "retriever", 2)
    assert calls == ["Brann lighthouse keeper"] and (first.from_memory, again.from_memory) == (False, True)
    assert again.search.observation == page and again.search.repeats == 1


def test_searches_are_also_one_by_their_meaning():
    store = MemoryStore(embedder=Meanings())  # the cosine is 2 / √6
    shared = SharedMemory("Who?", store, config=TeamConfig(same_search=0.8))
    shared.search("Brann director", str)
    assert shared.find_search("director film Brann").query == "Brann director", "a plain word more"
    assert SharedMemory("Who?", store, "other").find_search("Brann director") is None, "of another team"
    strict = SharedMemory("Who?", store, config=TeamConfig(same_search=1.0))
    assert strict.find_search("director film Brann") is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("older brother of Ann Reed", "younger brother of Ann Reed"),
        ("Ann Reed", "Ann Reed (film)"),
        ("Ann Reed", "Ann Reed Bell"),
        ("mayors of Brann", "mayors of Brann 1931"),
        ("布兰灯塔", "布兰灯塔 看守人"),
    ],
)
def test_searches_for_something_else_are_never_one(first, second):
    shared = shared_memory(TeamConfig(same_search=0.0))
    shared.search(first, lambda query: "first")
    assert shared.search(second, lambda query: "second") == (shared.find_search(second), False)
    assert not only_rephrased(second, first)


def test_lessons_of_failures_stay_when_hypotheses_go():
    solver = private_memory(TeamConfig(max_hypotheses=2, max_lessons=2))
    lesson = solver.learn("repeating it leads nowhere", 1, about="Search[Brann]")
    for n in range(8):
        solver.suppose(f"The keeper is number {n}", 0.5 + n / 20, 2)
    assert solver.board.all(Lesson) == [lesson]
    kept = [h.claim for h in solver.board.all(Hypothesis)]
    assert kept == ["The keeper is number 6", "The keeper is number 7"]
    for turn in (2, 3):
        solver.learn(f"lesson {turn}", turn)
    assert [x.lesson for x in solver.board.all(Lesson)] == ["lesson 2", "lesson 3"], "the oldest goes"
    solver.learn("lesson 2", 4)
    solver.learn("lesson 5", 5)
    assert [x.lesson for x in solver.board.all(Lesson)] == ["lesson 2", "lesson 5"], "learnt again, it is new"


def test_the_relevance_of_evidence_is_computed():
    solver = private_memory(TeamConfig(max_evidence=2))
    near = solver.observe("Ilse Maro keeps the Brann lighthouse.", "Who keeps the Brann lighthouse?", 1)
    far = solver.observe("xyzzy plugh", "Who keeps the Brann lighthouse?", 2)
    assert near.relevance > far.relevance + 0.3
    newest = solver.observe("Brann has a lighthouse.", "Who keeps the Brann lighthouse?", 3)
    assert solver.board.all(EvidencePiece) == [near, newest], "the least relevant goes, not the oldest"


# --- one memory per team


def test_the_members_share_one_object_and_see_nothing_private():
    team = TeamMemory(QUESTION, hashing())
    team.private["solver"].suppose("The keeper is Ilse Maro", 0.9)
    team.shared.add_fact("Brann", "keeper", "Ilse Maro")
    found = team.recall("retriever", "Who is the keeper Ilse Maro?")
    assert [f.value for f in found.of(Fact)] == ["Ilse Maro"] and found.of(Hypothesis) == []
    assert team.recall("solver", "Who is the keeper?").of(Hypothesis)


def test_of_two_threads_with_one_search_one_runs_it():
    shared, calls, others = shared_memory(), [], []

    def run(query: str) -> str:
        calls.append(query)
        if not others:
            others.append(threading.Thread(target=shared.search, args=("keeper Brann", run)))
            others[0].start()
            others[0].join(0.2)  # it waits for this search, so it is still there
        return "page"

    with pytest.raises(TimeoutError):
        shared.search("Brann keeper", lambda query: (_ for _ in ()).throw(TimeoutError()))
    shared.search("Brann keeper", run)
    others[0].join()
    assert calls == ["Brann keeper"], "what fails to run is not remembered"
    assert shared.find_search("Brann keeper").repeats == 1


def test_members_that_write_at_once_lose_nothing():
    team = TeamMemory(QUESTION, hashing())
    calls: list[str] = []

    def step(n: int) -> None:
        team.shared.search(f"page {n % 3}", lambda query: calls.append(query) or "page", "solver", n)
        team.write("solver", f"What is {n}?", f"Search[{n}]", "…", Extraction(str(n)), n)
        team.shared.add_fact("Brann", "height", f"{n} m", n / 20)
        assert "✓" in shown(team, "retriever", f"What is {n}?")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(step, range(12)))
    hops = team.shared.hops
    assert [h.number for h in hops] == list(range(1, 13)) and {h.answer for h in hops} == set(
        map(str, range(12))
    )
    assert sorted(calls) == ["page 0", "page 1", "page 2"]
    assert sum(s.repeats for s in team.shared.board.all(Search)) == 9
    assert [f.value for f in team.shared.values("Brann", "height")] == [f"{n} m" for n in reversed(range(12))]


# --- crashes


def test_a_crash_fails_the_task_and_leaves_it_readable():
    shared = shared_memory()
    with pytest.raises(ConnectionError, match="server"), shared.attempt():
        shared.add_fact("Brann", "height", "31 m")
        raise ConnectionError("the server is gone")
    assert (shared.task.state, shared.task.reason) == ("failed", "ConnectionError: the server is gone")
    assert shared.facts[0].value == "31 m"
    assert "failed: ConnectionError" in format_shared(shared, shared.recall("How tall?"))
    with shared.attempt():
        shared.complete("31 m")
    assert (shared.task.state, shared.task.answer, shared.task.reason) == ("completed", "31 m", "")


@pytest.mark.slow
def test_what_a_killed_player_wrote_is_in_the_file(tmp_path):
    path = tmp_path / "team.db"
    code = (
        "import os, sys\n"
        "from adaptmr.store.memory_store import MemoryStore\n"
        "from adaptmr.memory.team.records import Extraction\n"
        "from adaptmr.memory.team.team import TeamMemory\n"
        "team = TeamMemory('Who?', MemoryStore(sys.argv[1], embedder='hash'), task='t')\n"
        "team.write('solver', 'Who?', 'Search[a]', 'page', Extraction('Ilse'))\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=120).returncode == 9
    with MemoryStore(path, embedder="hash") as store:
        assert store.check() == []
        team = TeamMemory("", store, task="t")
        assert team.shared.task.question == "Who?" and team.shared.hops[0].answer == "Ilse"
        assert team.private["solver"].board.all(Hypothesis)[0].claim == "Who? → Ilse"
        assert team.write("solver", "And?", "Search[b]", "page").number == 2, "it goes on"
        with pytest.raises(ValueError, match="asks 'Who\\?', not 'What\\?'"):
            TeamMemory("What?", store, task="t")


# --- records


# --- properties

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "change", "drop", "restore", "back", "other"]), st.integers(0, 5)),
    max_size=14,
)


@given(OPERATIONS)
@settings(max_examples=25, deadline=None)
def test_every_board_of_an_owner_sees_the_same_records(operations):
    store = hashing()
    writer, reader, other = Board(store, "a"), Board(store, "a"), Board(store, "b")
    other.put(FACT)
    dropped: list[str] = []
    for what, n in operations:
        facts = writer.all(Fact)
        if what == "add":
            writer.put(replace(FACT, value=f"v{n}", turn=n))
        elif what == "change" and facts:
            writer.put(replace(facts[n % len(facts)], confidence=n / 5))
        elif what == "drop" and facts:
            writer.put(drop=[facts[n % len(facts)].id])
            dropped.append(facts[n % len(facts)].id)
        elif what == "restore" and dropped:
            store.restore(dropped.pop())
        elif what == "back":
            store.rollback(max(0, store.last_event - n))
        elif what == "other":
            other.put(replace(FACT, value=f"w{n}"))
        assert reader.all(Fact) == writer.all(Fact) == Board(store, "a").all(Fact)
        assert all(f.id.startswith("a/") for f in reader.all(Fact))


def test_no_limit_is_passed():
    solver = private_memory(TeamConfig(max_hypotheses=3, max_evidence=3, max_reasoning=3))
    for n in range(6):
        newest = solver.suppose(f"claim {n}", n % 4 / 4, n)
        solver.conclude(f"premise {n}", "conclusion", n)
        solver.observe(f"page {n}", "Who?", n)
        assert newest in solver.board.all(Hypothesis), "what comes in is there"
    for kind in (Hypothesis, EvidencePiece, ReasoningStep):
        assert len(solver.board.all(kind)) == 3
    assert "claim 3" in [h.claim for h in solver.board.all(Hypothesis)], "the most probable"


@given(st.lists(st.text(max_size=300), max_size=4), st.integers(30, 300))
@settings(max_examples=10, deadline=None)
def test_blocks_keep_to_their_budget(texts, budget):
    config = TeamConfig(shared_tokens=budget, private_tokens=budget)
    team = TeamMemory("Who? " + "".join(texts[:1]), hashing(), config=config)
    for n, text in enumerate(texts):
        read = Extraction(text, facts=(Triple("e" + text, "r", "v" + text),))
        team.write("solver", f"q{n} {text}", f"Search[{text}]", text, read, n, valid=n % 2 == 0)
    for block in shown(team, "solver").split("\n\n"):
        assert count_tokens(block) <= budget and block.startswith("【")


@pytest.mark.parametrize(
    "config",
    [TeamConfig(), TeamConfig(relevance_weight=0, recency_weight=1.0), TeamConfig(success_weight=3, top_k=2)],
)
def test_the_score_is_the_weighted_sum(config):
    shared = shared_memory(config)
    for n in range(6):
        shared.add_fact(f"lighthouse {n}", "keeper", f"person {n}", n / 6, turn=2 * n)
    hits = shared.recall("Who keeps lighthouse 3?").evidence[Fact].hits
    assert len(hits) == config.top_k
    newest = max(f.turn for f in shared.facts)
    for hit in hits:
        parts = {
            "cosine": float(np.dot(*embedder("hash").encode(["Who keeps lighthouse 3?", hit.memory.text]))),
            "turn_recency": 0.5 ** ((newest - hit.memory.step) / 4),
            "priority": read_record(hit.memory, Fact).confidence,
        }
        assert hit.score == pytest.approx(sum(config.weights[n] * v for n, v in parts.items()), abs=2e-3)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


def test_the_blocks_have_the_form_of_the_document():
    team = TeamMemory("布兰灯塔的看守人出生在哪里？", hashing())
    read = Extraction(
        "伊尔莎",
        confidence=0.8,
        facts=(Triple("布兰灯塔", "看守人", "伊尔莎"),),
        next_queries=("伊尔莎 出生地",),
    )
    team.write("solver", "谁看守布兰灯塔？", "Search[布兰灯塔]", "布兰灯塔由伊尔莎看守。", read, 1)
    team.shared.search("布兰灯塔", str)
    shared, own = shown(team, "solver", "伊尔莎 出生地").split("\n\n")
    assert shared.splitlines() == [
        "【共享记忆】",
        "- 任务：布兰灯塔的看守人出生在哪里？",
        "- 进度：第 1 跳，共 2 跳，进行中",
        "- 推理链：1 ✓ 谁看守布兰灯塔？ Search[布兰灯塔] → 伊尔莎",
        "- 已知事实：布兰灯塔 · 看守人: 伊尔莎 (1.00) [1]",
        "- 已检索内容（避免重复）：布兰灯塔",
    ]
    assert own.splitlines()[:3] == [
        "【私有记忆】",
        "- 计划：→ 伊尔莎 出生地",
        "- 假设：~0.80 谁看守布兰灯塔？ → 伊尔莎",
    ]


def test_records_come_back_as_they_were_from_a_file_too(tmp_path):
    records = (
        TeamTask(question="Who?", hops_expected=2, state="failed", reason="no turns"),
        Hop(number=1, question="Who?", action="Search[x]", answer=None, valid=False),
        FACT,
        Search(query="x", repeats=2),
        Interaction(to="solver", kind="suggestion", content="Search[x]", helped=False),
        Hypothesis(claim="a", confidence=0.25),
        EvidencePiece(content="a", answered=True, relevance=0.25),
        ReasoningStep(premise="a", conclusion="b", evidence=("e1",)),
        PlanItem(description="a", done=True),
        PeerProfile(peer="solver", successes=1, helped_with=("suggestion",)),
        Lesson(lesson="a", about="Search[x]"),
    )
    with MemoryStore(tmp_path / "team.db", embedder="hash") as store:
        written = Board(store, "task").put(*records)
    with MemoryStore(tmp_path / "team.db", embedder="hash") as store:
        board = Board(store, "task")
        assert [r for kind in map(type, records) for r in board.all(kind)] == written
        assert [replace(r, id="") for r in written] == list(records)
        damaged = replace(store.memories[0], meta={"record": {"questions": 3}})
    with pytest.raises(ValueError, match="doesn't hold a record"):
        read_record(damaged, type(records[0]))
