"""An index of the recorded rollouts, for search while the run goes on: SQLite with its full-text search.

The index holds what lists and filters need, and the words of the conversations, but not the conversations: those are
read from the record's file when one is opened.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymtrain_report.choice import shown
from gymtrain_report.errors import ReportError
from gymtrain_report.folder import RecordFile, RunFolder, conversation, last_words, texts
from gymtrain_report.hops import HOPS
from gymtrain_report.tokens import tokens_of

PAGE = 50  # rollouts of one answer
_WORDS = 200_000  # characters of a conversation that are searched
_SHOWN = (
    "step",
    "outcome",
    "reason",
    "error",
    "agent",
    "group",
    "rollout",
    "reward",
    "advantage",
    "staleness",
    "turns",
    "tokens",
    "truncated",
    "seconds",
)
_SORTS = {
    "newest": "step DESC, id",
    "oldest": "step, id",
    "reward": "reward DESC NULLS LAST, step DESC, id",
    "-reward": "reward NULLS LAST, step DESC, id",
    "tokens": "tokens DESC NULLS LAST, id",
    "seconds": "seconds DESC NULLS LAST, id",
}
_SCHEMA = f"""
CREATE TABLE files (key TEXT PRIMARY KEY, name TEXT);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT, row INTEGER, preview TEXT,
    {", ".join(f'"{name}"' for name in (*_SHOWN, *HOPS))}
);
CREATE INDEX by_step ON rollouts (step);
CREATE INDEX by_reward ON rollouts (reward);
CREATE INDEX by_file ON rollouts (file);
CREATE VIRTUAL TABLE words USING fts5 (text, content='', prefix='1 2 3');
"""  # prefix: of a word that is being typed; thousands of words may begin like that


class Index:
    """May be used from any thread; `update` by one at a time."""

    def __init__(self, folder: RunFolder, path: Path) -> None:
        """`path`: of its database, made anew."""
        self._folder = folder
        path.unlink(missing_ok=True)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _SCHEMA)
        self._damaged: set[str] = set()

    def update(self) -> None:
        """Takes what was written since the last time, and forgets what was removed."""
        files = {file.key: file for file in self._folder.files()}
        with self._lock:
            known = dict(self._database.execute("SELECT key, name FROM files"))
        for key in known.keys() - files.keys():
            self._forget(key)
        for key in sorted(files.keys() - known.keys() - self._damaged, key=lambda key: files[key]):
            try:
                self._take(files[key])
            except ReportError:
                self._damaged.add(key)  # the rest is worth reading

    def ends(self) -> list[dict[str, Any]]:
        """How many rollouts ended in which way."""
        query = "SELECT outcome, reason, agent, count(*) AS count FROM rollouts GROUP BY 1, 2, 3"
        return [dict(row) for row in self._rows(query, ())]

    def hops(self) -> dict[str, list[dict[str, Any]]]:
        """Where the rollouts' seconds went, as `hops.Means` has it."""
        means = ", ".join(f"round(avg(coalesce({name}, 0)), 3) AS {name}" for name in HOPS)
        return {
            key: [
                dict(row)
                for row in self._rows(
                    f"SELECT {key}, count(*) AS count, {means} FROM rollouts "  # noqa: S608 - no value in it
                    "WHERE outcome <> 'evaluated' AND model_s IS NOT NULL GROUP BY 1 ORDER BY 1",
                    (),
                )
            ]
            for key in ("step", "agent")
        }

    def search(self, wanted: Mapping[str, str]) -> dict[str, Any]:
        """A page of rollouts.

        Args:
            wanted: `q` words that all occur; `outcome`, `agent`, `step` and `group` as they are; `sort`; `offset`.

        Raises:
            ReportError: a value is not what it can be.
        """
        conditions, values = [], []
        for name in ("outcome", "agent", "step", "group"):
            if text := wanted.get(name, ""):
                conditions.append(f'"{name}" = ?')
                values.append(_whole(name, text) if name in ("step", "group") else text)
        if words := _match(wanted.get("q", "")):
            conditions.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(words)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        order = _SORTS.get(wanted.get("sort") or "newest")
        if order is None:
            raise ReportError(f"sort is one of {', '.join(_SORTS)}")
        offset = _whole("offset", wanted.get("offset") or "0")
        ((total,),) = (tuple(row) for row in self._rows(f"SELECT count(*) FROM rollouts{where}", values))  # noqa: S608
        query = f"SELECT * FROM rollouts{where} ORDER BY {order} LIMIT {PAGE} OFFSET ?"  # noqa: S608 - no value in it
        return {"total": total, "rollouts": [dict(row) for row in self._rows(query, [*values, offset])]}

    def rollout(self, number: int) -> dict[str, Any] | None:
        """One with its conversation and tokens; None where there is none, or it has been removed."""
        for place in self._rows("SELECT file, row FROM rollouts WHERE id = ?", [number]):
            for file in self._folder.files():
                if file.key == place["file"] and place["row"] < len(rows := self._folder.rollouts(file)):
                    told = shown(rows[place["row"]])
                    return told | {"id": number, "sampled": tokens_of(self._folder, told)}
        return None

    def _take(self, file: RecordFile) -> None:
        rows = self._folder.rollouts(file)
        columns = (*_SHOWN, *HOPS)
        names = ", ".join(f'"{name}"' for name in ("file", "row", "preview", *columns))
        marks = ", ".join("?" * (3 + len(columns)))
        for number, row in enumerate(rows):
            told = conversation(row)
            own = [row.get(name) for name in columns]
            words = " ".join((*texts(told), row.get("error") or ""))[:_WORDS]
            preview = last_words(told) or row.get("error") or ""
            with self._lock:  # for each row: who searches doesn't wait for a whole file
                made = self._database.execute(
                    f"INSERT INTO rollouts ({names}) VALUES ({marks})",  # noqa: S608 - no value in it
                    (file.key, number, preview, *own),
                )
                self._database.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (made.lastrowid, words))
        with self._lock:
            self._database.execute("INSERT INTO files VALUES (?, ?)", (file.key, file.name))
            self._database.commit()

    def _forget(self, key: str) -> None:
        with self._lock:
            # Their words stay: a table of words without texts can't be told what to forget. No number is used again.
            self._database.execute("DELETE FROM rollouts WHERE file = ?", (key,))
            self._database.execute("DELETE FROM files WHERE key = ?", (key,))
            self._database.commit()

    def _rows(self, query: str, values: Any) -> list[sqlite3.Row]:
        with self._lock:
            cursor = self._database.cursor()
            cursor.row_factory = sqlite3.Row
            return cursor.execute(query, values).fetchall()


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ReportError(f"{name} is a whole number, not {text[:40]!r}")
    return int(text)


def _match(text: str) -> str:
    """All words, the last one as it begins; each quoted, so that none is an operator."""
    words = [word.replace('"', '""') for word in text.split()]
    return " ".join(f'"{word}"' for word in words[:-1]) + (f' "{words[-1]}"*' if words else "")
