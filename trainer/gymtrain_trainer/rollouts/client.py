"""Mode Agent: one rollout is one POST /run to the row's agent, which generates, calls tools and verifies by itself."""

from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.rollouts.answer import Answer, parse_answer
from gymtrain_trainer.rollouts.failures import Call
from gymtrain_trainer.rollouts.http import HttpSource
from gymtrain_trainer.rollouts.source import request_body


class AgentSource(HttpSource):
    """Posts rows to agents."""

    async def _once(self, task: Task) -> Answer:
        body = request_body(task.row, self._sampling)
        answer, _ = await self._post(Call.ROLLOUT, task.url, body, self._limits.timeout_seconds)
        return parse_answer(answer)
