"""Tries gymtrain with several releases of vLLM on the CPU: `make test-versions`.

pyproject.toml, uv.lock   the releases, each with its torch, and every package of theirs
matrix.py                 reads the releases; which tests tell whether one works
environment.py            one release's environment, in the cache
checks.py                 runs the tests in it
    trials.py                 what came out, as docs/recorded/versions.json keeps it
page.py                   the table of docs/versions.md
"""
