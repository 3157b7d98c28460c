"""Find what files of any kind quote: licensed texts, or messages that a redacted run may not hold."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterable


def strings(value):
    """Yield every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from strings(v)
    elif isinstance(value, list):
        # a notebook's lines are one text
        if value and all(isinstance(v, str) for v in value):
            yield "".join(value)
        for v in value:
            yield from strings(v)


def texts(name: str, data: bytes):
    """Yield the texts in a file; archives are unpacked."""
    if name.endswith(".gz"):
        yield from texts(name[:-3], gzip.decompress(data))
    elif name.endswith((".npz", ".zip", ".whl")):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            for inner in z.namelist():
                yield inner
                yield from texts(inner, z.read(inner))
    elif name.endswith(".parquet"):
        import pyarrow.parquet as pq

        for column in pq.read_table(io.BytesIO(data)).columns:
            yield "\n".join(map(str, column.to_pylist()))
    else:
        text = data.decode("utf-8", "replace")
        yield text
        if name.endswith((".ipynb", ".json")):
            yield "\n".join(strings(json.loads(text)))
        elif name.endswith(".jsonl"):
            yield "\n".join(
                s for line in text.splitlines() if line.strip() for s in strings(json.loads(line))
            )


SHINGLE = 8
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")


def words(text: str) -> list[str]:
    return WORD.findall(
        text.lower().replace("\u2019", "'").replace("&#x27;", "'").replace("&quot;", " ").replace("\\n", " ")
    )


def shingles(text: str, length: int = SHINGLE) -> list[int]:
    """Return the hashes of all sequences of so many words in a text, in their order."""
    w = words(text)
    return [hash(tuple(w[i : i + length])) for i in range(len(w) - length + 1)]


def long_texts(value) -> set[str]:
    """Return the strings of 40 characters or more in a JSON value."""
    return {s for s in strings(value) if len(s) >= 40}


def quoted(whole: Iterable[str], files: Iterable[tuple[str, str]], length: int = SHINGLE) -> list[str]:
    """List which of the texts the files (name, text) quote.

    A file quotes a text if it has `length` of its words in a row, or all words of a shorter text of four or
    more.
    """
    whole = sorted(set(whole))
    of = {h: t for t in whole for h in shingles(t, length)}
    short = {tuple(words(t)): t for t in whole if 4 <= len(words(t)) < length}
    first = {w[0] for w in short}
    found = []
    for name, text in files:
        w = words(text)
        found += [f"{name}: {of[h][:60]!r}" for h in shingles(text, length) if h in of]
        if short:
            found += [
                f"{name}: {short[t][:60]!r}"
                for i, v in enumerate(w)
                if v in first
                for n in range(4, length)
                if (t := tuple(w[i : i + n])) in short
            ]
    return sorted(set(found))
