"""The answers of the stand-in's agents: texts that are made once and have one token filled in. Pure.

All rollouts have the same tokens but the first, which is the rollout's number: so each call has a digest of its own,
and who trains on a sample knows which rollout it was.
"""

import hashlib
import json
import random
from array import array

from benchmarks.open_rollouts.load import Load

_FIRST = 987_654_321  # where the number goes
_TOKENS = range(1000, 150_000)


class Answers:
    """What NeMo Gym's agents answer: calls of a tool, then a message; the last item of each model call has its ids."""

    def __init__(self, load: Load) -> None:
        """Makes the texts."""
        dice = random.Random(0)  # noqa: S311 - tokens
        history = [_FIRST]
        items: list[dict[str, object]] = []
        self._hashed: list[tuple[bytes, bytes]] = []  # of each call: before the number, after it
        for turn in range(load.turns):
            history += dice.choices(_TOKENS, k=load.prompt - (turn == 0))
            output = dice.choices(_TOKENS, k=load.sampled)
            ids: dict[str, object] = {
                "prompt_token_ids": history[:],
                "generation_token_ids": output,
                "generation_log_probs": [-dice.expovariate(2.0) for _ in output],
            }
            name: dict[str, object] = {"call_id": f"call_{turn}"}
            if turn + 1 < load.turns:
                items.append({"type": "function_call", "name": "look", "arguments": '{"at": "x"}'} | name | ids)
                items.append({"type": "function_call_output", "output": "x" * 4 * load.prompt} | name)
            else:
                text = {"type": "output_text", "text": "x" * 4 * load.sampled, "annotations": []}
                items.append({"type": "message", "role": "assistant", "content": [text]} | ids)
            self._hashed.append((len(history).to_bytes(8, "little"), array("I", history[1:] + output).tobytes()))
            history += output
        self._pieces = [self._split(items, reward) for reward in (0.0, 1.0)]

    @staticmethod
    def _split(items: list[dict[str, object]], reward: float) -> list[bytes]:
        response = {"id": "resp_1", "object": "response", "model": "policy", "output": items, "status": "completed"}
        body = {"reward": reward, "response": response | {"incomplete_details": None}}
        return json.dumps(body).encode().split(str(_FIRST).encode())

    def body(self, number: int) -> bytes:
        """What `POST /run` of this rollout answers: JSON. Every second one has a reward."""
        return str(number).encode().join(self._pieces[number % 2])

    def digests(self, number: int) -> list[bytes]:
        """Of its calls, as `gymtrain_api.ledger.token_digest` makes them: 16 bytes each."""
        first = array("I", [number]).tobytes()
        return [hashlib.blake2b(before + first + after, digest_size=16).digest() for before, after in self._hashed]
