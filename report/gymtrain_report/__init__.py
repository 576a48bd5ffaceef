"""The report of a run: what its folder on the checkpoint volume tells, as a page.

```
rewards.csv, evaluations.csv ──► folder.py ──► overview ─┐
rollouts/*.parquet, *.jsonl  ──► folder.py ──► choice.py ├─► page.py: one HTML file        (write)
                                           └─► index.py ─┴─► live.py: the same page, live  (serve)
```
It reads what the trainer's recorder has written (docs/records.md), and writes nothing to that folder.
"""
