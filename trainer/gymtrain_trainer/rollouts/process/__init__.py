"""The groups in a process of their own, so that no thread of it takes Python's lock from the one that trains.

```
trainer's process (client.py)                              rollouts' process (__main__.py)
  worker: what starts and when ──── Begin, NewVersion ───►  GroupRunner: requests, ledger, guard, samples
  report, buffer, place in data ◄── Ended, Dropped, ... ──
  weight sync ◄──────────────────── AskLook, Looked ─────►
```
A rollout's answer is text of some kilobytes a hundred tokens: reading it, hashing its tokens and chaining its turns is
all the work that rollouts make. Arrays of tokens come back. torch is in the trainer's process alone.

The two talk over a pair of sockets, in pickles, which only they can write to. The process ends when its socket closes:
however the trainer ends, it doesn't stay.
"""
