"""What a dataset asks of the policy, beside what the run's vLLM is set to: warnings, each with its row."""

from dataclasses import dataclass

from gymtrain_api.spec import GymTrainingRunSpec
from gymtrain_api.vllm_arguments import AUTO_TOOL_CHOICE, TOOL_CALL_PARSER, max_model_len, parses_tool_calls
from gymtrain_gym.config.findings import Findings
from gymtrain_gym.datasets.rows import RowFacts

_CHARACTERS_PER_TOKEN = 6  # no usual tokenizer needs less tokens for a long text: prose takes 4 characters a token
_TRL_DEFAULT_COMPLETION = 2048  # tokens, TRL 1.16


@dataclass(frozen=True)
class Policy:
    """How the run's policy is served."""

    parses_tool_calls: bool
    context: int | None = None  # tokens of prompt and answer; None where spec.inference.args don't say it
    answer: int = _TRL_DEFAULT_COMPLETION  # tokens of it that an answer may take


def of(spec: GymTrainingRunSpec) -> Policy:
    """The policy of a run. A wrong type counts as TRL's default: the trainer's preflight reports it."""
    context = max_model_len(spec.inference.args)
    answer = spec.trainer.config.get("max_completion_length")
    return Policy(
        parses_tool_calls(spec.inference.args),
        context[1] if context else None,
        answer if isinstance(answer, int) and not isinstance(answer, bool) else _TRL_DEFAULT_COMPLETION,
    )


def warn(policy: Policy, facts: RowFacts, source: str, findings: Findings) -> None:
    """Adds what the rows of `source` will run into; of lengths, without a tokenizer, only what is far too long."""
    if facts.with_tools and not policy.parses_tool_calls:
        findings.warn(
            f"{source}:{facts.first_with_tools}",
            f"{facts.with_tools} rows have tools, and vLLM answers none of them: add {AUTO_TOOL_CHOICE} and "
            f"{TOOL_CALL_PARSER}=NAME to spec.inference.args, where NAME fits the model (hermes for Qwen)",
        )
    least = facts.longest // _CHARACTERS_PER_TOKEN
    if policy.context is not None and least > policy.context - policy.answer:
        findings.warn(
            f"{source}:{facts.longest_line}",
            f"has a prompt of {facts.longest} characters, {least} tokens or more; --max-model-len {policy.context} "
            f"leaves {max(0, policy.context - policy.answer)} beside an answer of {policy.answer} "
            "(max_completion_length): vLLM will refuse it",
        )
